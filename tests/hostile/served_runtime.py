"""A hollow runtime on a socket, in a thread of the test: what it does is not the agent's work.

It is asked and filled in the thread's own event loop: `do`.
"""

import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import trio

from tests.turns import run_unmetered
from trio_kubelet.hollow import Behaviour, HollowOptions, HollowRuntime, Invocation
from trio_kubelet.hollow.runtime import open_hollow_runtime
from trio_kubelet.rpc import RpcError, open_rpc_loop, serve
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.config.names import CONTAINER_NAME_LABEL, POD_UID_LABEL
from trio_kubelet.tasks.clock import SystemClock

T = TypeVar("T")

CRASHING, DEAD = "crashing", "dead"
"""Images of containers that end all at the same time, with a message, and at once."""
TOGETHER_SECONDS = 20
MESSAGE = "x" * 4096
OF_A_SANDBOX = 500


def behaviour_of(invocation: Invocation) -> Behaviour:
    """Containers run, but for those of two images."""
    if invocation.image.startswith(CRASHING):
        left = TOGETHER_SECONDS - time.time() % TOGETHER_SECONDS
        return Behaviour(run_seconds=left, exit_code=1, termination_message=MESSAGE)
    return Behaviour(run_seconds=0.0 if invocation.image.startswith(DEAD) else None)


class ServedRuntime:
    """Serves a runtime below a folder with a short path. A context manager."""

    def __init__(self, folder: Path, *, has_events: bool = True) -> None:
        self._has_events = has_events
        self.socket = folder / "hollow.sock"
        self._runtime: HollowRuntime
        self._token: trio.lowlevel.TrioToken
        self._scope = trio.CancelScope()
        self._started = threading.Event()
        self._thread = threading.Thread(target=run_unmetered, args=(self._run,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        trio.from_thread.run_sync(self._scope.cancel, trio_token=self._token)
        self._thread.join()

    def do(self, work: Callable[[HollowRuntime], Awaitable[T]]) -> T:
        """Do something with the runtime; returns, or raises, what comes of it."""
        return trio.from_thread.run(work, self._runtime, trio_token=self._token)

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        options = HollowOptions(
            name="containerd",
            images=(f"{DEAD}:latest",),
            behaviours=behaviour_of,
            shuffle=False,
            write_files=True,
            has_events=self._has_events,
        )
        with self._scope:
            async with (
                open_rpc_loop(),
                open_hollow_runtime(SystemClock(), options) as self._runtime,
                trio.open_nursery() as nursery,
            ):
                await nursery.start(serve, [self._runtime], self.socket)
                self._started.set()
                await trio.sleep_forever()


@contextmanager
def served_runtime(*, has_events: bool = True) -> Iterator[ServedRuntime]:
    """A runtime whose socket has a short path."""
    with (
        tempfile.TemporaryDirectory(prefix="hostile-") as folder,
        ServedRuntime(Path(folder), has_events=has_events) as served,
    ):
        yield served


async def make_dead_containers(
    runtime: HollowRuntime, count: int, prefix: str, *, of_pods: bool
) -> None:
    """Make containers that have ended, of pods that nobody knows, or of no pod at all.

    An agent that knows a pod not may stop its sandbox, and remove it, before it has all of them.
    """
    for number in range(count // OF_A_SANDBOX):
        name = f"{prefix}-{number}"
        labels = {POD_UID_LABEL: name} if of_pods else {}
        metadata = cri.PodSandboxMetadata(name=name, uid=name, namespace="hostile")
        sandbox = cri.PodSandboxConfig(metadata=metadata, labels=labels)
        made = await runtime.run_pod_sandbox(cri.RunPodSandboxRequest(config=sandbox))
        with suppress(RpcError):
            for each in range(OF_A_SANDBOX):
                config = cri.ContainerConfig(
                    metadata=cri.ContainerMetadata(name=f"c{each}"),
                    image=cri.ImageSpec(image=DEAD),
                    labels={**labels, CONTAINER_NAME_LABEL: f"c{each}"} if of_pods else {},
                )
                request = cri.CreateContainerRequest(
                    pod_sandbox_id=made.pod_sandbox_id, config=config, sandbox_config=sandbox
                )
                container = await runtime.create_container(request)
                await runtime.start_container(
                    cri.StartContainerRequest(container_id=container.container_id)
                )
