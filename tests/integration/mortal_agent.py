"""The agent in a process that kills itself, as `kill -9` would, just before one of its steps.

    python -m tests.integration.mortal_agent FOLDER PYTHON -m trio_kubelet run ...

Steps are what outlives an agent: a file takes the place of another one, a runtime or a plugin is
asked to change something, a pod is written to the API server. They count while `dies_at` is in
FOLDER, which has the number of the step that is not taken. `steps` there has the name of each.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import httpx

from trio_kubelet.cli import main
from trio_kubelet.rpc import Channel
from trio_kubelet.rpc.methods import UnaryStub, method_of

CALLS = frozenset(
    {
        *("run_pod_sandbox", "stop_pod_sandbox", "remove_pod_sandbox"),
        *("create_container", "start_container", "stop_container", "remove_container"),
        *("update_container_resources", "allocate", "pre_start_container"),
        *("node_prepare_resources", "node_unprepare_resources"),
    }
)
DIES_AT, STEPS = "dies_at", "steps"


class Mortality:
    """Counts steps, in whichever thread they are taken, and kills the process at one of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._count = 0

    def step(self, name: str) -> None:
        """Return if the step is to be taken."""
        with self._lock:
            try:
                dies_at = int((self._folder / DIES_AT).read_text())
            except FileNotFoundError:
                return
            self._count += 1
            with (self._folder / STEPS).open("a") as file:
                file.write(f"{name}\n")
            if self._count == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def on_audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Hook of the interpreter: files that are put in the place of others."""
        if event == "os.rename":
            self.step(f"file {Path(os.fsdecode(arguments[1])).name}")


def watch(mortality: Mortality) -> None:
    """Let all steps of this process be counted."""
    sys.addaudithook(mortality.on_audit)
    call, ask = Channel.unary_raw, httpx.AsyncHTTPTransport.handle_async_request

    async def unary_raw(self: Channel, method: UnaryStub[Any, Any], *rest: Any, **more: Any) -> Any:
        if (name := method_of(method).name) in CALLS:
            mortality.step(name)
        return await call(self, method, *rest, **more)

    async def handle_async_request(
        self: httpx.AsyncHTTPTransport, request: httpx.Request
    ) -> httpx.Response:
        if request.method != "GET" and "/pods/" in request.url.path:
            mortality.step(f"{request.method} pod")
        return await ask(self, request)

    Channel.unary_raw = unary_raw  # type: ignore[method-assign]
    httpx.AsyncHTTPTransport.handle_async_request = handle_async_request  # type: ignore[method-assign]


if __name__ == "__main__":
    _, folder, _python, _m, program, *arguments = sys.argv
    watch(Mortality(Path(folder)))
    sys.argv = [program, *arguments]
    main()
