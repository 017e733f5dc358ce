"""Anything at all sent to the node's port, past authentication: `python -m tests.fuzz.port`.

The routes are the agent's own, on a real server and real sockets; behind them are a log, a folder
of the node's logs, and a runtime that streams or fails. Each connection carries requests that were
mutated as values, as bytes, or not at all, and some clients hang up in the middle. In the end the
server must answer, nothing may have been logged with a traceback, and neither descriptors nor
tasks nor objects may be left of what was.
"""

import gc
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import structlog
import trio
from attrs import evolve, frozen
from structlog.typing import EventDict

from tests.fuzz.command import run_command
from tests.fuzz.values import ValueGenerator
from tests.unit.server.serving import at_most_open_files, open_files
from trio_kubelet.config import KubeletConfiguration, Settings
from trio_kubelet.config.model import NodeOptions
from trio_kubelet.debugging import LoopMeter
from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.codec import decode
from trio_kubelet.logs.journal import SystemdJournal
from trio_kubelet.logs.system_logs import SystemLogs, system_log_routes
from trio_kubelet.ports.endpoints import NodeEndpoints, PodEndpoints
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.cache import RuntimeCache
from trio_kubelet.runtime.observed import (
    ObservedContainer,
    ObservedPod,
    ObservedSandbox,
    ObservedState,
)
from trio_kubelet.server import (
    AnswerWriters,
    Limits,
    Route,
    healthz_routes,
    listen_tcp,
    pod_routes,
    route_requests,
    serve_http,
)
from trio_kubelet.tasks.clock import SystemClock
from trio_kubelet.telemetry import Journal

CLIENTS = 8
ANSWER_SECONDS = 60.0
OBJECTS_LEFT = 30_000
"""So many objects more at the end than at half of it are a leak, at 100,000 requests."""
LIMITS = Limits(head_seconds=2, idle_seconds=2, progress_seconds=2, take_seconds=2)
PATHS = (
    *("/pods", "/pods/", "/runningpods/", "/runningpods", "/healthz", "/healthz/log", "/configz"),
    *("/statusz", "/flagz", "/debug/journal", "/debug/flags/v", "/debug/pprof/cmdline", "/nowhere"),
    *("/debug/pprof/goroutine", "/debug/pprof/nothing", "/containerLogs/ns/p/c", "/", "//", "/.."),
    *("/containerLogs/ns/p/<any>", "/logs/", "/logs/<any>", "/logs/a.log", "/logs/sub/../a.log"),
    *("/exec/ns/p/c", "/exec/ns/p/u1/c", "/attach/ns/p/c", "/portForward/ns/p", "/run/ns/p/c"),
    *("/exec/<any>/<any>/<any>", "/checkpoint/ns/p/c", "/<any>", "/<any>/<any>/<any>"),
)
NAMES = (
    *("follow", "tailLines", "sinceSeconds", "sinceTime", "limitBytes", "timestamps", "previous"),
    *("stream", "command", "input", "output", "error", "tty", "port", "cmd", "timeout", "debug"),
    *("query", "untilTime", "boot", "pattern", "pod", "verbose", "<any>"),
)
GOOD_VALUES = ("1", "true", "10", "sub/a", "a", "ls", "80", "2026-01-01T00:00:00Z", "")
HEADERS = (
    *("Accept", "Range", "Connection", "Upgrade", "Content-Length", "Transfer-Encoding", "Expect"),
    *("Authorization", "X-Stream-Protocol-Version", "Sec-WebSocket-Protocol", "Cookie", "<any>"),
)
GOOD_HEADERS = (
    *("Connection: Upgrade\r\nUpgrade: SPDY/3.1", "Range: bytes=1-3", "Connection: close"),
    *("Accept: application/json;as=Flagz;v=v1beta1;g=config.k8s.io", "Expect: 100-continue"),
    *("Content-Length: 0\r\nTransfer-Encoding: chunked", "Content-Length: 1\r\nContent-Length: 2"),
    *("X: a\r\n folded", "Host: y", "Transfer-Encoding: chunked, chunked", "X: a\nY: b"),
)
METHODS = ("GET", "GET", "GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "CONNECT", "<any>")
POD = decode(
    Pod,
    {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u1"},
        "spec": {"containers": [{"name": "c"}]},
        "status": {
            "containerStatuses": [
                {"name": "c", "containerID": "containerd://id", "state": {"running": {}}}
            ]
        },
    },
)


@frozen(kw_only=True)
class PortReport:
    """How a run went."""

    seed: int
    requests: int
    statuses: frozenset[str]
    findings: tuple[str, ...]


class StreamingRuntime:
    """A runtime that streams somewhere, or fails."""

    def __init__(self, chance: random.Random, values: ValueGenerator) -> None:
        self._chance = chance
        self._values = values
        self.url = ""

    async def exec(self, _request: object) -> str:
        if self._chance.random() < 0.2:
            raise RpcError(self._chance.choice(list(Code)), self._values.text())
        return self.url if self._chance.random() < 0.8 else self._values.text()

    attach = port_forward = exec  # noqa: A003

    async def exec_sync(self, *_: object) -> cri.ExecSyncResponse:
        await self.exec(None)
        return cri.ExecSyncResponse(
            stdout=self._values.data(), exit_code=self._chance.randint(0, 1)
        )

    async def checkpoint_container(self, *_: object) -> None:
        await self.exec(None)

    async def serve(self, stream: trio.SocketStream) -> None:
        """Switch protocols and echo, or answer anything, or hang up."""
        with trio.move_on_after(5):
            try:
                async with stream:
                    await stream.receive_some()
                    answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"
                    how = self._chance.random()
                    await stream.send_all(
                        answer if how < 0.6 else self._values.spoiled_bytes(answer)
                    )
                    while how < 0.5 and (data := await stream.receive_some()):
                        await stream.send_all(data)
            except trio.BrokenResourceError:
                pass


def fuzz_port(seed: int, requests: int) -> PortReport:
    """Send at least so many requests."""
    with tempfile.TemporaryDirectory(prefix="fuzz-port-") as folder:
        return trio.run(_run, seed, requests, Path(folder))


async def _run(seed: int, requests: int, root: Path) -> PortReport:
    findings: list[str] = []
    chance = random.Random(seed)
    run = PortRun(chance, requests)

    def on_log(_logger: object, _method: str, entry: EventDict) -> EventDict:
        if entry.get("exc_info"):
            error = sys.exc_info()[1]
            findings.append(f"{entry['event']} {entry.get('path')!r}: {error!r:.300}")
        raise structlog.DropEvent

    configured_before = structlog.get_config()
    structlog.configure(processors=[on_log], cache_logger_on_first_use=False)
    descriptors = open_files()
    try:
        async with _node(root, run) as (port, nursery):
            tasks, idle = len(nursery.child_tasks), open_files()
            await run.send(port, requests // 2)
            half = await _objects(idle)
            await run.send(port, requests - requests // 2)
            more = await _objects(idle) - half
            if len(nursery.child_tasks) != tasks:
                findings.append(f"{len(nursery.child_tasks) - tasks} tasks are left")
            if more > OBJECTS_LEFT:
                findings.append(f"{more} objects are left")
            if b" 200 " not in await run.exchange(port, b"GET /healthz HTTP/1.0\r\n\r\n"):
                findings.append("the server does not answer at the end")
    finally:
        structlog.configure(**configured_before)
    if open_files() > descriptors:
        findings.append(f"{open_files() - descriptors} descriptors are left")
    found = tuple(dict.fromkeys((*findings, *run.findings)))
    return PortReport(
        seed=seed, requests=requests, statuses=frozenset(run.statuses), findings=found
    )


async def _objects(idle: int) -> int:
    """How many objects there are, once no more descriptors are open than without a connection."""
    with suppress(trio.TooSlowError):  # what is left is told at the end
        await at_most_open_files(idle)
    gc.collect()
    return len(gc.get_objects())


@asynccontextmanager
async def _node(root: Path, run: "PortRun") -> AsyncIterator[tuple[int, trio.Nursery]]:
    """The port of a node, and the nursery that its tasks are in."""
    async with trio.open_nursery() as nursery:
        streaming = await trio.open_tcp_listeners(0, host="127.0.0.1")
        runtime = StreamingRuntime(run.chance, run.values)
        runtime.url = f"http://127.0.0.1:{streaming[0].socket.getsockname()[1]}/stream"
        nursery.start_soon(trio.serve_listeners, runtime.serve, streaming)
        listeners = await listen_tcp("127.0.0.1", 0)
        routes = _routes(root, runtime, nursery)
        serve = partial(serve_http, listeners, route_requests(routes), limits=LIMITS)
        await nursery.start(serve)
        yield listeners[0].socket.getsockname()[1], nursery
        nursery.cancel_scope.cancel()


def _routes(root: Path, runtime: Any, nursery: trio.Nursery) -> Sequence[Route]:
    folder = root / "pod-logs" / "ns_p_u1" / "c"
    folder.mkdir(parents=True)
    (folder / "0.log").write_text("2026-01-01T00:00:00.000000000Z stdout F hello\n" * 100)
    (root / "log" / "sub").mkdir(parents=True)
    (root / "log" / "a.log").write_text("hello\n")
    (root / "log" / "outside").symlink_to("/etc/hostname")
    configuration = evolve(
        KubeletConfiguration(),
        pod_logs_dir=str(root / "pod-logs"),
        enable_system_log_handler=False,
    )
    settings = Settings(configuration=configuration, options=NodeOptions(root_dir=str(root)))
    cache, writers = RuntimeCache(), AnswerWriters()
    nursery.start_soon(writers.run)
    cache.put(_observed(str(folder / "0.log")))
    pods = PodEndpoints(
        settings=settings,
        in_force=lambda: settings,
        clock=SystemClock(),
        cache=cache,
        runtime=runtime,
        writers=writers,
        find_pod=lambda namespace, name: POD if (namespace, name) == ("ns", "p") else None,
    )
    node = NodeEndpoints(
        settings=settings,
        in_force=lambda: settings,
        clock=SystemClock(),
        journal=Journal(SystemClock()),
        loop_meter=LoopMeter(),
        writers=writers,
    )
    journal = SystemdJournal("/nowhere/journalctl")
    logs = SystemLogs(queries=True, root=root / "log", journal=journal)
    switched_off = "/logs/{rest...}"
    return (
        *pod_routes(lambda: [POD], writers),
        *healthz_routes({"ping": lambda: "", "log": lambda: ""}),
        *pods.open(nursery),
        *(route for route in node.routes() if route.pattern != switched_off),
        *system_log_routes(logs),
    )


def _observed(log_path: str) -> ObservedPod:
    container = ObservedContainer(
        id="id", name="c", sandbox_id="s", state=ObservedState.RUNNING, log_path=log_path
    )
    sandbox = ObservedSandbox(
        id="s", name="p", namespace="ns", uid="u1", attempt=0, created_at=1, ready=True
    )
    return ObservedPod(
        uid="u1",
        name="p",
        namespace="ns",
        observed_at=0.0,
        containers=(container,),
        sandboxes=(sandbox,),
    )


class PortRun:
    """Makes requests out of chance, and sends them."""

    def __init__(self, chance: random.Random, requests: int) -> None:
        self.chance = chance
        self.values = ValueGenerator(chance)
        self.requests = requests
        self.statuses: set[str] = set()
        self.findings: list[str] = []

    async def send(self, port: int, requests: int) -> None:
        """Send so many, some at a time."""
        left = requests

        async def client() -> None:
            nonlocal left
            while left > 0:
                texts = [self.request() for _ in range(self.chance.randint(1, 4))]
                left -= len(texts)
                await self._converse(port, b"".join(texts))

        async with trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(client)

    async def _converse(self, port: int, text: bytes) -> None:
        hangs_up = self.chance.random() < 0.1
        try:
            with trio.fail_after(ANSWER_SECONDS):
                said = await self.exchange(port, text, hangs_up=hangs_up)
        except trio.TooSlowError:
            self.findings.append(f"there is no answer to {text[:300]!r}")
            return
        except (trio.BrokenResourceError, OSError):
            return
        if said and not said.startswith(b"HTTP/1.1 "):
            self.findings.append(f"{said[:100]!r} is the answer to {text[:300]!r}")
        self.statuses.add(said[9:12].decode(errors="replace"))

    async def exchange(self, port: int, text: bytes, *, hangs_up: bool = False) -> bytes:
        """What is said to some bytes; who follows a log hangs up after a second."""
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        said = b""
        async with stream:
            await stream.send_all(text)
            if hangs_up:
                return b""
            await stream.send_eof()
            with trio.move_on_after(1):
                while data := await stream.receive_some():
                    said += data
        return said

    def request(self) -> bytes:
        """One request, whole or spoiled."""
        text = self._line() + self._headers() + b"\r\n" + self._body()
        how = self.chance.random()
        if how < 0.2:
            return self.values.spoiled_bytes(text)
        return self.values.data() if how < 0.25 else text

    def _line(self) -> bytes:
        pairs = [
            f"{self._escaped(self.chance.choice(NAMES))}={self._value()}"
            for _ in range(self.chance.randint(0, 3))
        ]
        path = "/".join(self._escaped(part) for part in self.chance.choice(PATHS).split("/"))
        query = f"?{'&'.join(pairs)}" if pairs else ""
        method = self._text(self.chance.choice(METHODS))
        return f"{method} {path}{query} HTTP/1.1\r\n".encode(errors="replace")

    def _headers(self) -> bytes:
        lines = ["Host: x"]
        for _ in range(self.chance.choice((0, 0, 1, 1, 2))):
            name = self._text(self.chance.choice(HEADERS))
            own = f"{name}: {self._text('<any>')}"
            lines.append(own if self.chance.random() < 0.3 else self.chance.choice(GOOD_HEADERS))
        return "".join(f"{line}\r\n" for line in lines).encode(errors="replace")

    def _body(self) -> bytes:
        return self.values.data() if self.chance.random() < 0.1 else b""

    def _value(self) -> str:
        if self.chance.random() < 0.6:
            return quote(self.chance.choice(GOOD_VALUES))
        return self._escaped("<any>")

    def _escaped(self, text: str) -> str:
        if text != "<any>":
            return text
        any_text = self.values.text()
        is_raw = self.chance.random() < 0.2
        return any_text if is_raw else quote(any_text.encode(errors="replace"), safe="")

    def _text(self, text: str) -> str:
        return self.values.text() if text == "<any>" else text


def _command(seed: int, requests: int) -> tuple[str, Sequence[str]]:
    report = fuzz_port(seed, requests)
    return f"{requests} requests, statuses {sorted(report.statuses)}", report.findings


if __name__ == "__main__":
    sys.exit(run_command(_command, "tests.fuzz.port", __doc__, "requests"))
