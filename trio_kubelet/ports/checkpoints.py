"""`/checkpoint/<namespace>/<pod>/<container>`: the runtime writes down a container that runs.

KEP-2008. The archive holds the container's memory, secrets and all: it goes into a folder of the
agent that only root enters, and only its path is told.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from attrs import frozen

from trio_kubelet.k8s import Pod
from trio_kubelet.logs.options import is_in_spec
from trio_kubelet.rpc import RpcError, rpc_words
from trio_kubelet.runtime.observed import ObservedPod, ObservedState
from trio_kubelet.server import Request, RequestError, Response, Right, Route, json_response
from trio_kubelet.tasks.clock import Clock

MAX_TIMEOUT_DIGITS = 9


class Runtime(Protocol):
    """A maker of checkpoints, as `RuntimeClient` is."""

    async def checkpoint_container(
        self, container_id: str, location: str, timeout_seconds: int
    ) -> None:
        """Write a container into an archive. Raises RpcError."""
        ...


@frozen(kw_only=True)
class Checkpoints:
    """Answers requests for checkpoints, which go into `folder`.

    `find_pod` gives a pod by namespace and name; `observed` what was last seen of it in the
    runtime, by UID.
    """

    find_pod: Callable[[str, str], Pod | None]
    observed: Callable[[str], ObservedPod]
    runtime: Runtime
    folder: Path
    clock: Clock

    async def answer(self, request: Request) -> Response:
        """Have one made; the answer has its path. Raises RequestError in the Go kubelet's words."""
        names = request.parameters
        namespace, name, container = names["namespace"], names["pod"], names["container"]
        pod = self.find_pod(namespace, name)
        if pod is None:
            raise RequestError(404, "pod does not exist")
        if not is_in_spec(pod, container):
            raise RequestError(404, f"container {container} does not exist")
        timeout = checkpoint_timeout(request.query.first("timeout"))
        path = self.folder / archive_name(pod, container, self.clock.now_ns())
        failed = f"checkpointing of {namespace}/{name}/{container} failed"
        if timeout < 0:
            why = "CheckpointContainer requires the timeout value to be > 0"
            raise RequestError(500, f"{failed} ({why})")
        id_ = self._running(pod, container)
        if id_ is None:
            raise RequestError(500, f"{failed} (container {container} not found)")
        request.will_last()
        try:
            await self.runtime.checkpoint_container(id_, str(path), timeout)
        except RpcError as error:
            raise RequestError(500, f"{failed} ({rpc_words(error.code, error.message)})") from error
        return json_response({"items": [str(path)]})

    def _running(self, pod: Pod, container: str) -> str | None:
        for each in self.observed(pod.metadata.uid).containers:
            if each.name == container and each.state is ObservedState.RUNNING:
                return each.id
        return None


def checkpoint_timeout(text: str) -> int:
    """The seconds that a request gives the runtime, 0 for its own. Raises RequestError (404)."""
    digits = text.removeprefix("-")
    if not text:
        return 0
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= MAX_TIMEOUT_DIGITS):
        raise RequestError(404, "cannot parse value of timeout parameter")
    return int(text)


def archive_name(pod: Pod, container: str, now_ns: int) -> str:
    """The name of an archive: pod, namespace, container and the second it is made in."""
    moment = datetime.fromtimestamp(now_ns // 1_000_000_000, UTC)
    full_name = f"{pod.metadata.name}_{pod.metadata.namespace}"
    return f"checkpoint-{full_name}-{container}-{moment:%Y-%m-%dT%H:%M:%SZ}.tar"


def checkpoint_routes(checkpoints: Checkpoints) -> Sequence[Route]:
    """The one route."""
    pattern = "/checkpoint/{namespace}/{pod}/{container}"
    return (Route("POST", pattern, checkpoints.answer, Right(subresource="checkpoint")),)
