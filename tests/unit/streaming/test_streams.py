"""exec, attach and port-forward: what the runtime is asked, and the bytes that go both ways."""

from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest
import trio
from attrs import define, evolve, field

from tests.unit.server.serving import connect, everything, head, serving, until
from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.codec import decode
from trio_kubelet.rpc import Code, FieldCut, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.observed import (
    ObservedContainer,
    ObservedPod,
    ObservedSandbox,
    ObservedState,
)
from trio_kubelet.server import Handler, RequestError, route_requests
from trio_kubelet.server.messages import Headers, Values
from trio_kubelet.streaming import PodStreams, stream_routes
from trio_kubelet.streaming.pod_streams import (
    ALL_OUTPUT_BYTES,
    LEAST_OUTPUT_BYTES,
    MOST_OUTPUT_BYTES,
    Streams,
    wanted_ports,
    wanted_streams,
)
from trio_kubelet.tasks.pieces import StreamPieces

UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: SPDY/3.1",
    "X-Stream-Protocol-Version: v4.channel.k8s.io",
    "Authorization: Bearer secret",
    "Cookie: secret",
)
ACCEPTED = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
    b"X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"
)
POD = decode(
    Pod,
    {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u1"},
        "spec": {"containers": [{"name": "c"}]},
    },
)


@define
class Runtime:
    """A runtime whose streaming server says what a test wants, and echoes in capitals."""

    answer: bytes = ACCEPTED
    error: RpcError | None = None
    url: str = ""
    asked: list[Any] = field(factory=list)
    output: bytes = b"out"
    head: bytes = b""
    last_words: bytes = b""
    ended: trio.Event = field(factory=trio.Event)

    async def exec(self, request: cri.ExecRequest) -> str:
        return self._url(request)

    async def attach(self, request: cri.AttachRequest) -> str:
        return self._url(request)

    async def port_forward(self, request: cri.PortForwardRequest) -> str:
        return self._url(request)

    async def exec_sync(
        self, container_id: str, command: Any, timeout_seconds: int, cut: FieldCut | None = None
    ) -> cri.ExecSyncResponse:
        self._url((container_id, command, timeout_seconds))
        said = cri.ExecSyncResponse(stdout=self.output, stderr=b"err", exit_code=len(command) - 1)
        if cut is None:
            return said
        cut.feed(bytes(said))
        return cri.ExecSyncResponse().parse(cut.message())

    def _url(self, request: Any) -> str:
        self.asked.append(request)
        if self.error is not None:
            raise self.error
        return self.url

    async def serve(self, stream: trio.SocketStream) -> None:
        try:
            async with stream:
                self.head = await until(stream, b"\r\n\r\n")
                await stream.send_all(self.answer)
                while data := await stream.receive_some():
                    await stream.send_all(data.upper())
                await stream.send_all(self.last_words)
        except trio.BrokenResourceError:
            pass
        finally:
            self.ended.set()


def observed(uid: str) -> ObservedPod:
    assert uid == "u1"
    states = {"c": ObservedState.RUNNING, "over": ObservedState.EXITED}
    containers = tuple(
        ObservedContainer(id=f"id-{name}", name=name, sandbox_id="s", state=state)
        for name, state in states.items()
    )
    sandbox = ObservedSandbox(
        id="s", name="p", namespace="ns", uid="u1", attempt=0, created_at=1, ready=True
    )
    return ObservedPod(
        uid="u1",
        name="p",
        namespace="ns",
        observed_at=0.0,
        containers=containers,
        sandboxes=(sandbox,),
    )


def streaming(runtime: Runtime, idle_seconds: float = 3600) -> Handler:
    """The endpoints for streams of a node with that runtime."""
    streams = PodStreams(
        find_pod=lambda namespace, name: POD if (namespace, name) == ("ns", "p") else None,
        observed=observed,
        runtime=runtime,
        idle_seconds=lambda: idle_seconds,
    )
    return route_requests(stream_routes(streams))


@asynccontextmanager
async def node(runtime: Runtime, idle_seconds: float = 3600) -> AsyncIterator[int]:
    """The port of a node with that runtime."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    runtime.url = runtime.url or f"http://127.0.0.1:{port}/exec/token?x=1"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, runtime.serve, listeners)
        async with serving(streaming(runtime, idle_seconds)) as node_port:
            yield node_port
        nursery.cancel_scope.cancel()


def asking(path: str, *lines: str, method: str = "POST") -> bytes:
    return head(path, *(lines or UPGRADE), method=method) + b"\r\n"


EXEC = "/exec/ns/p/c?command=ls&command=-l&input=1&output=1&error=1"


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (
            EXEC,
            cri.ExecRequest(
                container_id="id-c", cmd=["ls", "-l"], stdin=True, stdout=True, stderr=True
            ),
        ),
        (
            "/exec/ns/p/u1/c?command=sh&output=1&error=1&tty=1",
            cri.ExecRequest(container_id="id-c", cmd=["sh"], stdout=True, tty=True),
        ),
        ("/attach/ns/p/c?output=1", cri.AttachRequest(container_id="id-c", stdout=True)),
        ("/portForward/ns/p", cri.PortForwardRequest(pod_sandbox_id="s")),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_the_runtime_streams_and_the_node_passes_on(
    path: str, asked: object, method: str
) -> None:
    runtime = Runtime(answer=ACCEPTED + b"early ")
    async with node(runtime) as port:
        stream = await connect(port, asking(path, method=method) + b"abc")
        said = await until(stream, b"early ABC")
        assert said.startswith(b"HTTP/1.1 101 ")
        assert b"v4.channel.k8s.io" in said
        await stream.send_all(b"\0\xffdef")
        await until(stream, b"\0\xffDEF")
        await stream.aclose()
        await runtime.ended.wait()
    assert runtime.asked == [asked]
    assert runtime.head.startswith(method.encode() + b" /exec/token?x=1 HTTP/1.1\r\n")
    assert b"secret" not in runtime.head, "who the client is is not the runtime's business"


async def test_no_token_of_a_browser_is_passed_on() -> None:
    protocols = "Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.c2VjcmV0, v4.channel"
    runtime = Runtime()
    async with node(runtime) as port:
        stream = await connect(port, asking(EXEC, *UPGRADE, protocols))
        await until(stream, b"\r\n\r\n")
        await stream.aclose()
        await runtime.ended.wait()
    assert b"sec-websocket-protocol: v4.channel\r\n" in runtime.head.lower()


async def test_a_header_that_is_no_ascii_is_passed_on_as_it_came() -> None:
    runtime = Runtime()
    async with node(runtime) as port:
        odd = b"X-Stream-Protocol-Version: \xff\xe9"
        stream = await connect(port, asking(EXEC).replace(b"Cookie: secret", odd))
        assert (await until(stream, b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        await stream.aclose()
        await runtime.ended.wait()
    assert odd.lower() in runtime.head.lower()


async def test_much_passes_whole() -> None:
    size, runtime = 20_000_000, Runtime()
    async with node(runtime) as port:
        stream = await connect(port, asking(EXEC))
        await until(stream, b"\r\n\r\n")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, b"x" * size)
            received = 0
            while received < size:
                data = await stream.receive_some()
                assert set(data) == set(b"X")
                received += len(data)
        await stream.aclose()


async def test_the_end_of_the_clients_side_is_passed_on_and_the_rest_comes() -> None:
    runtime = Runtime(last_words=b"bye")
    async with node(runtime) as port:
        stream = await connect(port, asking(EXEC))
        await until(stream, b"\r\n\r\n")
        await stream.send_eof()
        assert await everything(stream) == b"bye"


async def test_a_client_that_breaks_off_ends_what_it_asked_for() -> None:
    runtime = Runtime()
    async with node(runtime) as port:
        stream = await connect(port, asking(EXEC))
        await until(stream, b"\r\n\r\n")
        await trio.aclose_forcefully(stream)
        await runtime.ended.wait()


async def test_a_stream_that_is_idle_too_long_is_ended() -> None:
    runtime = Runtime()
    async with node(runtime, idle_seconds=0.1) as port:
        stream = await connect(port, asking(EXEC))
        await until(stream, b"\r\n\r\n")
        assert await everything(stream) == b""
        await runtime.ended.wait()


REFUSED = b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\ngone\n"


@pytest.mark.parametrize(
    ("runtime", "path", "lines", "status", "words"),
    [
        (Runtime(), "/exec/ns/other/c?output=1", UPGRADE, 404, b"pod does not exist"),
        (Runtime(), "/exec/ns/p/u2/c?output=1", UPGRADE, 404, b"pod does not exist"),
        (Runtime(), "/exec/ns/p/x?output=1", UPGRADE, 500, b'container not found ("x")'),
        (Runtime(), "/exec/ns/p/over?output=1", UPGRADE, 500, b'container not found ("over")'),
        (Runtime(), "/exec/ns/p/c", UPGRADE, 400, b"you must specify at least 1 of"),
        (Runtime(), EXEC, ("Accept: */*",), 400, b"Upgrade request required"),
        (Runtime(), EXEC, ("Upgrade: SPDY/3.1",), 400, b"Upgrade request required"),
        (Runtime(error=RpcError(Code.NOT_FOUND, "no such")), EXEC, UPGRADE, 404, b"no such"),
        (Runtime(error=RpcError(Code.UNAVAILABLE, "away")), EXEC, UPGRADE, 500, b"away"),
        (Runtime(answer=REFUSED), EXEC, UPGRADE, 404, b"gone"),
        (Runtime(answer=b"rubbish\r\n\r\n"), EXEC, UPGRADE, 500, b"does not answer"),
        (Runtime(url="http://127.0.0.1:1/x"), EXEC, UPGRADE, 500, b"cannot be reached"),
        (Runtime(url="https://127.0.0.1:1/x"), EXEC, UPGRADE, 500, b"no address that can be"),
        (Runtime(url="file:///etc/passwd"), EXEC, UPGRADE, 500, b"no address that can be"),
        (Runtime(url="//"), EXEC, UPGRADE, 500, b"no address that can be"),
        (Runtime(url="http://[::1/x"), EXEC, UPGRADE, 500, b"no address that can be"),
        (Runtime(url="http://h:x/"), EXEC, UPGRADE, 500, b"no address that can be"),
    ],
)
async def test_what_cannot_be_streamed_is_told(
    runtime: Runtime, path: str, lines: tuple[str, ...], status: int, words: bytes
) -> None:
    async with node(evolve(runtime)) as port:
        stream = await connect(port, asking(path, *lines, "Content-Length: 0"))
        said = await until(stream, words)
        assert said.startswith(f"HTTP/1.1 {status} ".encode())
        await stream.aclose()


@pytest.mark.parametrize(
    ("cmd", "status", "body"), [("ls", 200, b"outerr"), ("ls+-l", 500, b"exited with 1: outerr")]
)
async def test_a_command_is_run_to_its_end(cmd: str, status: int, body: bytes) -> None:
    runtime = Runtime()
    async with node(runtime) as port:
        stream = await connect(port, asking(f"/run/ns/p/c?cmd={cmd}", "Connection: close"))
        said = await everything(stream)
    assert said.startswith(f"HTTP/1.1 {status} ".encode())
    assert said.endswith(body)
    assert runtime.asked == [("id-c", cmd.split("+"), 0)]


async def test_the_output_of_a_command_has_a_limit() -> None:
    runtime = Runtime(output=b"o" * (MOST_OUTPUT_BYTES + 1))
    async with node(runtime) as port:
        stream = await connect(port, asking("/run/ns/p/c?cmd=cat", "Connection: close"))
        said = await everything(stream)
    kept = b"\r\n\r\n" + b"o" * MOST_OUTPUT_BYTES + b"err"
    words = f"\nthe output is cut after {MOST_OUTPUT_BYTES} bytes\n".encode()
    assert said.endswith(kept + words)


def query(text: str) -> Values:
    pairs = (pair.partition("=") for pair in filter(None, text.split("&")))
    return Values(tuple((name, value) for name, _, value in pairs))


@pytest.mark.parametrize(
    ("text", "streams"),
    [
        ("input=1", Streams(stdin=True)),
        ("output=1&error=1", Streams(stdout=True, stderr=True)),
        ("output=1&error=1&tty=1", Streams(stdout=True, tty=True)),
        ("output=true&input=1", Streams(stdin=True)),
        ("tty=1", None),
        ("", None),
    ],
)
def test_streams_are_read_off_the_query(text: str, streams: Streams | None) -> None:
    assert _or_none(lambda: wanted_streams(query(text))) == streams


@pytest.mark.parametrize(
    ("protocol", "text", "ports"),
    [
        ("SPDY/3.1", "", ()),
        ("websocket", "port=80", (80,)),
        ("WebSocket", "port=80,81&port=65535", (80, 81, 65535)),
        ("websocket", "", None),
        ("websocket", "port=0", None),
        ("websocket", "port=65536", None),
        ("websocket", "port=x", None),
        ("websocket", "port=00080", (80,)),
        ("websocket", "port=000", None),
        ("websocket", "port=00000199999", None),
        ("websocket", f"port=1{'0' * 5000}", None),
        ("websocket", "port=99999999999999999999", None),
        ("websocket", "port=" + ",".join(["8"] * 128), (8,) * 128),
        ("websocket", "port=" + ",".join(["8"] * 129), None),
    ],
)
def test_ports_are_read_off_the_query(
    protocol: str, text: str, ports: tuple[int, ...] | None
) -> None:
    headers = Headers([("Upgrade", protocol)])
    assert _or_none(lambda: wanted_ports(query(text), headers)) == ports


def _or_none(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except RequestError as error:
        return None if error.status == 400 else error


@pytest.mark.parametrize(
    "lines",
    [
        ("Upgrade: SPDY/3.1",),
        ("Upgrade: SPDY/3.1", "Connection: keep-alive"),
        ("Upgrade: SPDY/3.1", "Connection: Upgrade", "Content-Length: 1"),
    ],
)
async def test_no_command_runs_for_a_client_that_cannot_be_switched(lines: tuple[str, ...]) -> None:
    runtime = Runtime()
    async with node(runtime) as port, await connect(port) as client:
        await client.send_all(asking(EXEC, *lines))
        answer = await until(client, b"Upgrade request required")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert runtime.asked == []


def test_many_commands_share_the_memory_of_their_output() -> None:
    outputs = StreamPieces(MOST_OUTPUT_BYTES, LEAST_OUTPUT_BYTES, ALL_OUTPUT_BYTES)
    with ExitStack() as commands:
        sizes = []
        for _ in range(320):
            commands.enter_context(outputs.one_more_stream())
            sizes.append(outputs.size_bytes)
    assert sizes[0] == MOST_OUTPUT_BYTES
    assert sizes[-1] == LEAST_OUTPUT_BYTES
    assert sum(sizes) < 6 * ALL_OUTPUT_BYTES
