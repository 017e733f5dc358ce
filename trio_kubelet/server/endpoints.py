"""Which path gives what: health checks, the pods of this node, the journal.

Paths and forms are those of the Go kubelet where it has them; the journal is this agent's own.
The read-only port has no authentication, so it has nothing that the Go kubelet's would not tell:
the journal, with its errors and commands of every pod, is for who may use the agent's own socket.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping

import trio
from attrs import asdict

from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.codec import encode
from trio_kubelet.k8s.json_text import dumps
from trio_kubelet.server.http import Answer, Handler, Question
from trio_kubelet.telemetry import Journal

Check = Callable[[], str]
"""A health check: empty if all is well, else why not."""

Route = Callable[[Question], Awaitable[Answer]]


def route(routes: Mapping[str, Route]) -> Handler:
    """A handler that knows these paths and answers 404 to all others."""

    async def handle(question: Question) -> Answer:
        found = routes.get(question.path.rstrip("/"))
        if found is None:
            return Answer(status=404, body=b"404 page not found\n")
        return await found(question)

    return handle


def healthz_routes(checks: Mapping[str, Check]) -> Mapping[str, Route]:
    """`/healthz` asks all checks (`?verbose` lists them), `/healthz/<name>` asks one."""

    async def all_checks(question: Question) -> Answer:
        results = {name: check() for name, check in checks.items()}
        failed = any(results.values())
        if not failed and "verbose" not in question.query:
            return Answer(body=b"ok")
        lines = [
            f"[-]{name} failed: {why}" if why else f"[+]{name} ok" for name, why in results.items()
        ]
        lines.append("healthz check failed" if failed else "healthz check passed")
        return Answer(status=500 if failed else 200, body=("\n".join(lines) + "\n").encode())

    return {
        "/healthz": all_checks,
        **{f"/healthz/{name}": _one_check(check) for name, check in checks.items()},
    }


def _one_check(check: Check) -> Route:
    async def ask(_question: Question) -> Answer:
        if why := check():
            return Answer(status=500, body=f"internal server error: {why}\n".encode())
        return Answer(body=b"ok")

    return ask


def read_only_routes(pods: Callable[[], Iterable[Pod]]) -> Mapping[str, Route]:
    """`/pods` as the Go kubelet has it."""

    async def list_pods(_question: Question) -> Answer:
        items = []
        for pod in pods():
            items.append(_list_item(pod))
            await trio.lowlevel.checkpoint()  # Each takes a millisecond, and others wait.
        return json_answer({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})

    return {"/pods": list_pods}


def journal_routes(journal: Journal) -> Mapping[str, Route]:
    """`/debug/journal[?pod=<namespace>/<name>]`: not for a port without authentication."""

    async def show_journal(question: Question) -> Answer:
        chosen = journal.entries(question.query.get("pod", ""))
        entries = [asdict(entry, recurse=False) for entry in chosen]
        return json_answer({"dropped": journal.dropped, "entries": entries})

    return {"/debug/journal": show_journal}


def _list_item(pod: Pod) -> Mapping[str, object]:
    """A pod in a list: kind and version are the list's to tell."""
    fields: Mapping[str, object] = encode(pod)
    return {name: value for name, value in fields.items() if name not in ("kind", "apiVersion")}


def json_answer(value: object) -> Answer:
    """An answer that carries a value as JSON."""
    return Answer(content_type="application/json", body=dumps(value))
