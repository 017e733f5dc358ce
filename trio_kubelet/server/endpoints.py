"""The simple endpoints: health checks, the pods of this node, the journal.

Paths and forms are those of the Go kubelet where it has them; the journal is this agent's own.
The read-only port has no authentication, so it has nothing that the Go kubelet's would not tell:
the journal, with its errors and commands of every pod, is for who may use the agent's own socket.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from attrs import asdict

from trio_kubelet.config import KubeletConfiguration, to_wire
from trio_kubelet.foreign_text import MASKED, without_passwords
from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.codec import encode
from trio_kubelet.k8s.json_text import dumps
from trio_kubelet.runtime.observed import ObservedPod, ObservedState
from trio_kubelet.server.messages import Handler, Request, Response
from trio_kubelet.server.router import ADMIN, ANY, RUN_IN_POD, Right, Route
from trio_kubelet.server.writers import AnswerWriters, Write
from trio_kubelet.tasks.fair_limiter import Share
from trio_kubelet.telemetry import Journal
from trio_kubelet.telemetry.journal import Entry

T = TypeVar("T")

LIST_PIECE_BYTES = 64 * 1024
"""Of a list of pods, and the rest of the last pod in it."""

PODS = Right(fine_grained="pods")
HEALTHZ = Right(fine_grained="healthz")
NODE_LOGS = {"/logs/{rest...}": Right(subresource="log")}
PROFILES = {"/debug/pprof/{rest...}": ADMIN}

Check = Callable[[], str]
"""A health check: empty if all is well, else why not."""


def healthz_routes(checks: Mapping[str, Check]) -> Sequence[Route]:
    """`/healthz` makes all checks (`?verbose` lists them), `/healthz/<name>` one; by any method."""

    async def all_checks(request: Request) -> Response:
        results = {name: check() for name, check in checks.items()}
        failed = any(results.values())
        if not failed and "verbose" not in request.query:
            return Response(body=b"ok")
        lines = [
            f"[-]{name} failed: {why}" if why else f"[+]{name} ok" for name, why in results.items()
        ]
        lines.append("healthz check failed" if failed else "healthz check passed")
        return Response(status=500 if failed else 200, body=("\n".join(lines) + "\n").encode())

    return (
        Route(ANY, "/healthz", all_checks, HEALTHZ, is_public=True),
        *(
            Route(ANY, f"/healthz/{name}", _one_check(check), HEALTHZ, is_public=True)
            for name, check in checks.items()
        ),
    )


def _one_check(check: Check) -> Handler:
    async def ask(_request: Request) -> Response:
        if why := check():
            return Response(status=500, body=f"internal server error: {why}\n".encode())
        return Response(body=b"ok")

    return ask


DEBUGGING_PATHS: Mapping[str, Right] = {
    "/containerLogs/{rest...}": ADMIN,
    "/exec/{rest...}": RUN_IN_POD,
    "/attach/{rest...}": RUN_IN_POD,
    "/portForward/{rest...}": RUN_IN_POD,
    "/run/{rest...}": RUN_IN_POD,
    "/runningpods/{rest...}": PODS,
    **NODE_LOGS,
    **PROFILES,
}


def disabled_routes(words: str, paths: Mapping[str, Right]) -> Sequence[Route]:
    """The route in place of endpoints that the configuration leaves out, by any method."""

    async def refuse(_request: Request) -> Response:
        return Response(status=405, body=f"{words}\n".encode())

    return tuple(Route(ANY, pattern, refuse, right) for pattern, right in paths.items())


def pod_routes(pods: Callable[[], Iterable[Pod]], writers: AnswerWriters) -> Sequence[Route]:
    """`/pods` as the Go kubelet has it."""

    async def list_pods(request: Request) -> Response:
        return _pod_list(_list_item, pods(), writers.threads("/pods", request.peer))

    return (Route("GET", "/pods[/]", list_pods, PODS, is_public=True),)


def running_pods_routes(
    observed: Callable[[], Iterable[ObservedPod]], writers: AnswerWriters
) -> Sequence[Route]:
    """`/runningpods/`: what the runtime runs, whoever wanted it."""

    async def list_pods(request: Request) -> Response:
        running = (pod for pod in observed() if pod.is_running)
        return _pod_list(_running_item, running, writers.threads("/runningpods", request.peer))

    return (Route("GET", "/runningpods/", list_pods, PODS),)


def configz_routes(in_force: Callable[[], KubeletConfiguration]) -> Sequence[Route]:
    """`/configz`: what the agent acts on, without what opens a source of manifests."""

    async def show_configuration(_request: Request) -> Response:
        configuration = in_force()
        shown = to_wire(configuration)
        if names := configuration.static_pod_url_header:
            shown["staticPodURLHeader"] = {name: [MASKED] for name in names}
        if url := configuration.static_pod_url:
            shown["staticPodURL"] = without_passwords(url)
        return json_response({"kubeletconfig": shown})

    return (Route(ANY, "/configz", show_configuration, Right(fine_grained="configz")),)


def journal_routes(journal: Journal, writers: AnswerWriters) -> Sequence[Route]:
    """`/debug/journal[?pod=<namespace>/<name>]`: not for a port without authentication."""

    async def show_journal(request: Request) -> Response:
        pod = request.query.first("pod")

        async def gather() -> Write:
            return partial(_journal, journal.dropped, tuple(journal.entries(pod)))

        return await writers.answer("/debug/journal", gather, pod)

    return (Route("GET", "/debug/journal[/]", show_journal, ADMIN),)


def _journal(dropped: int, chosen: Sequence[Entry]) -> Response:
    """Entries of the journal; of one that is full they take a tenth of a second."""
    entries = [asdict(entry, recurse=False) for entry in chosen]
    return json_response({"dropped": dropped, "entries": entries})


def _pod_list(item_of: Callable[[T], object], pods: Iterable[T], threads: Share) -> Response:
    """A list of pods, of which no more is written than the client takes."""
    written = _written_pods(item_of, tuple(pods), threads)
    return Response(content_type="application/json", body=written)


async def _written_pods(
    item_of: Callable[[T], object], pods: Sequence[T], threads: Share
) -> AsyncGenerator[bytes, None]:
    """The pieces of a list, made in threads: a pod takes a millisecond, a large one a hundred."""
    rest = iter(pods)

    def next_piece() -> bytes:
        written = bytearray()
        for pod in rest:
            written += b"," + dumps(item_of(pod))
            if len(written) >= LIST_PIECE_BYTES:
                break
        return bytes(written)

    start = b'{"kind":"PodList","apiVersion":"v1","metadata":{},"items":['
    piece = await threads.run_sync(next_piece)
    yield start + piece[1:]  # without the comma before the first pod
    while piece:
        piece = await threads.run_sync(next_piece)
        yield piece
    yield b"]}"


def _list_item(pod: Pod) -> Mapping[str, object]:
    """A pod in a list: kind and version are the list's to tell."""
    fields: Mapping[str, object] = encode(pod)
    return {name: value for name, value in fields.items() if name not in ("kind", "apiVersion")}


def _running_item(pod: ObservedPod) -> Mapping[str, object]:
    containers = [
        {"name": each.name, "image": each.image_id or each.image, "resources": {}}
        for each in reversed(pod.containers)
        if each.state is ObservedState.RUNNING
    ]
    return {
        "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
        "spec": {"containers": containers},
        "status": {},
    }


def json_response(value: object) -> Response:
    """A response that carries a value as JSON."""
    return Response(content_type="application/json", body=dumps(value))
