"""Who may ask the node's port for what: callers, requests, and what was answered.

`answers` asks everything as everybody. A table of answers is rows of method, path, status, body
and the callers who were answered so; what a body says of its caller stands there as `<user>`.
"""

import http.client
import ssl
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from attrs import frozen

from lab.control_plane import ControlPlane
from lab.pki import Authority, KeyPair
from tests.e2e.cluster import Namespace

SUBRESOURCES = (
    *("proxy", "stats", "log", "spec", "metrics", "checkpoint", "configz", "healthz", "pods"),
    *("statusz", "flagz"),
)
VERBS = ("get", "create")
REFUSED = "-"
"""In place of a status: the handshake was refused, or the connection cut."""
WORDS_OF = (400, 401, 403, 404, 405, 406, 500)
"""Statuses whose bodies are words for users."""
SECONDS = 60
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Protocol": "v4.channel.k8s.io",
}
EXEC = "/exec/default/nothing/c?command=a&output=1"
UNKNOWN_PATHS = ("/", "/nowhere", "/spec/")
PATHS = (
    *UNKNOWN_PATHS,
    *("/pods", "/runningpods/", "/healthz", "/healthz/ping", "/healthz/log", "/healthz/syncloop"),
    *("/metrics", "/metrics/cadvisor", "/metrics/probes", "/metrics/resource", "/stats/summary"),
    *("/configz", "/logs/", "/logs/nothing", "/statusz", "/flagz", EXEC),
    *("/debug/pprof/cmdline", "/debug/pprof/nothing", "/debug/flags/v"),
    *("/containerLogs/default/nothing/c", "/checkpoint/default/nothing/c"),
    *("/attach/default/nothing/c?output=1", "/portForward/default/nothing"),
    "/run/default/nothing/c?cmd=a",
)
RARE_METHODS = ("PUT", "DELETE", "HEAD", "PATCH", "OPTIONS")
ASK_BY_ALL_METHODS = ("nobody", "nodes only", "API server")
AT_A_TIME = 8


class Answer(NamedTuple):
    """What was answered."""

    status: str
    body: str


class Cell(NamedTuple):
    """One request of one caller."""

    caller: str
    method: str
    path: str


@frozen(kw_only=True)
class Caller:
    """Somebody who asks; `user` is whom the API server knows him as."""

    name: str
    user: str = ""
    token: str = ""
    identity: KeyPair | None = None


def callers(plane: ControlPlane, namespace: Namespace) -> Iterator[Caller]:
    """Everybody. Rights are given to who has one of them."""
    yield Caller(name="nobody")
    yield Caller(name="bad token", token="bad")
    yield Caller(
        name="token without rights",
        user=f"system:serviceaccount:{namespace.name}:default",
        token=namespace.kubectl("create", "token", "default").strip(),
    )
    yield Caller(name="nodes only", user="nodes-only", identity=_with_right(plane, "get", ""))
    for name in SUBRESOURCES:
        for verb in VERBS:
            identity = _with_right(plane, verb, name)
            yield Caller(name=f"{verb} {name}", user=f"{verb}-{name}", identity=identity)
    pki = plane.folder / "pki"
    of_the_server = KeyPair(
        (pki / "kubelet-client.key").read_bytes(), (pki / "kubelet-client.crt").read_bytes()
    )
    yield Caller(name="API server", user="kube-apiserver-kubelet-client", identity=of_the_server)
    group = ("system:masters",)
    expired = plane.authority.issue("late", groups=group, life=timedelta(minutes=-1))
    yield Caller(name="expired", user="late", identity=expired)
    stranger = Authority("lab-ca").issue("stranger", groups=group)
    yield Caller(name="another authority", user="stranger", identity=stranger)


def _with_right(plane: ControlPlane, verb: str, subresource: str) -> KeyPair:
    user = f"{verb}-{subresource}" if subresource else "nodes-only"
    resource = f"nodes/{subresource}" if subresource else "nodes"
    metadata = {"metadata": {"name": f"matrix-{user}"}}
    group = "rbac.authorization.k8s.io"
    rule = {"apiGroups": [""], "resources": [resource], "verbs": [verb]}
    plane.api.create(f"/apis/{group}/v1/clusterroles", {**metadata, "rules": [rule]})
    plane.api.create(
        f"/apis/{group}/v1/clusterrolebindings",
        {
            **metadata,
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": f"matrix-{user}"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        },
    )
    return plane.authority.issue(user)


def forget(plane: ControlPlane) -> None:
    """Take the rights away again."""
    roles = (f"matrix-{verb}-{name}" for verb in VERBS for name in SUBRESOURCES)
    for name in (*roles, "matrix-nodes-only"):
        for kind in ("clusterrolebindings", "clusterroles"):
            plane.api.delete(f"/apis/rbac.authorization.k8s.io/v1/{kind}/{name}")


def answers(port: int, everybody: Iterable[Caller], folder: Path) -> Mapping[Cell, Answer]:
    """Ask everything as everybody, some at a time; by rare methods only as few."""

    def ask(caller: Caller) -> Mapping[Cell, Answer]:
        asking = _Asking(port, caller, folder)
        methods = ("GET", "POST", *(RARE_METHODS if caller.name in ASK_BY_ALL_METHODS else ()))
        found = {
            Cell(caller.name, method, path): asking.ask(method, path)
            for path in PATHS
            for method in methods
        }
        found[Cell(caller.name, "GET websocket", EXEC)] = asking.ask("GET", EXEC, UPGRADE)
        asking.close()
        return found

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        return {
            cell: answer for found in pool.map(ask, everybody) for cell, answer in found.items()
        }


class _Asking:
    """One caller's connection, made anew where it was closed."""

    def __init__(self, port: int, caller: Caller, folder: Path) -> None:
        self._port = port
        self._caller = caller
        self._context = ssl.create_default_context()
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE
        if caller.identity is not None:
            self._context.load_cert_chain(
                *caller.identity.write(folder, caller.name.replace(" ", "-"))
            )
        self._connection: http.client.HTTPSConnection | None = None

    def ask(self, method: str, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        if self._connection is None:
            self._connection = http.client.HTTPSConnection(
                "127.0.0.1", self._port, context=self._context, timeout=SECONDS
            )
        token = self._caller.token
        sent = {**(headers or {}), **({"Authorization": f"Bearer {token}"} if token else {})}
        try:
            self._connection.request(method, path, headers=sent)
            response = self._connection.getresponse()
            body = response.read().decode(errors="replace") if response.status != 101 else ""
        except (OSError, http.client.HTTPException):
            self.close()
            return Answer(REFUSED, "")
        if response.will_close or headers:
            self.close()
        if self._caller.user:
            body = body.replace(f"user={self._caller.user},", "user=<user>,")
        return Answer(str(response.status), body.strip() if response.status in WORDS_OF else "")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def written(found: Mapping[Cell, Answer]) -> str:
    """Answers as a table."""
    grouped: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for cell, answer in found.items():
        body = answer.body.replace("\n", "\\n").replace("\t", "\\t")
        grouped[cell.path, cell.method, answer.status, body].append(cell.caller)
    rows = ("\t".join((*key, ", ".join(names))) for key, names in sorted(grouped.items()))
    return "\n".join(("path\tmethod\tstatus\tbody\tcallers", *rows, ""))


def read(text: str) -> Mapping[Cell, Answer]:
    """The answers that a table has."""
    found: dict[Cell, Answer] = {}
    for line in text.splitlines()[1:]:
        path, method, status, body, names = line.split("\t")
        answer = Answer(status, body.replace("\\n", "\n").replace("\\t", "\t"))
        found.update({Cell(name, method, path): answer for name in names.split(", ")})
    return found
