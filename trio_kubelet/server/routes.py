"""Which path gives what: health checks, the pods of this node, the journal.

Paths and forms are those of the Go kubelet where it has them; the journal is this agent's own.
The read-only port has no authentication: nothing that is served there may tell a secret.
"""

from collections.abc import Callable, Iterable, Mapping

import orjson
from attrs import asdict

from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.codec import encode
from trio_kubelet.server.http import Answer, Handler, Question
from trio_kubelet.telemetry import Journal

Check = Callable[[], str]
"""A health check: empty if all is well, else why not."""

Route = Callable[[Question], Answer]


def route(routes: Mapping[str, Route]) -> Handler:
    """A handler that knows these paths and answers 404 to all others."""

    async def handle(question: Question) -> Answer:
        found = routes.get(question.path.rstrip("/") or "/")
        if found is None:
            return Answer(status=404, body=b"404 page not found\n")
        return found(question)

    return handle


def healthz_routes(checks: Mapping[str, Check]) -> Mapping[str, Route]:
    """`/healthz` asks all checks, `/healthz/<name>` one; `?verbose` lists them."""

    def healthz(question: Question, names: Iterable[str]) -> Answer:
        results = {name: checks[name]() for name in names}
        failed = any(results.values())
        if not failed and "verbose" not in question.query:
            return Answer(body=b"ok")
        lines = [
            f"[-]{name} failed: {why}" if why else f"[+]{name} ok" for name, why in results.items()
        ]
        lines.append("healthz check failed" if failed else "healthz check passed")
        return Answer(status=500 if failed else 200, body=("\n".join(lines) + "\n").encode())

    single: dict[str, Route] = {
        f"/healthz/{name}": lambda question, name=name: healthz(question, [name])  # type: ignore[misc]
        for name in checks
    }
    return {"/healthz": lambda question: healthz(question, checks), **single}


def read_only_routes(pods: Callable[[], Iterable[Pod]], journal: Journal) -> Mapping[str, Route]:
    """`/pods` as the Go kubelet has it, and `/debug/journal[?pod=<namespace>/<name>]`."""

    def list_pods(_question: Question) -> Answer:
        items = [encode(pod) for pod in pods()]
        return json_answer({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})

    def show_journal(question: Question) -> Answer:
        entries = [asdict(entry) for entry in journal.entries(question.query.get("pod", ""))]
        return json_answer({"dropped": journal.dropped, "entries": entries})

    return {"/pods": list_pods, "/debug/journal": show_journal}


def json_answer(value: object) -> Answer:
    """An answer that carries a value as JSON."""
    return Answer(content_type="application/json", body=orjson.dumps(value))
