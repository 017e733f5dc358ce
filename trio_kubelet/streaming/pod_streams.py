"""`/exec`, `/attach`, `/portForward` and `/run`: what kubectl comes to on the node."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

import trio
from attrs import field, frozen

from trio_kubelet.k8s import Pod
from trio_kubelet.rpc import Code, FieldCut, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.observed import ObservedPod, ObservedState
from trio_kubelet.server.messages import (
    Handler,
    HeaderPairs,
    Headers,
    Request,
    RequestError,
    Response,
    Values,
)
from trio_kubelet.server.router import RUN_IN_POD, Route
from trio_kubelet.streaming.backend import (
    ALL_PIECES_BYTES,
    LEAST_PIECE_BYTES,
    MOST_PIECE_BYTES,
    SwitchedConnection,
    dial,
    splice,
)
from trio_kubelet.streaming.port_streams import STREAMS_OF_A_PORT, CountedStreams, StreamCounts
from trio_kubelet.streaming.translation import (
    COMMAND_PROTOCOL,
    ERROR,
    RESIZE,
    SPDY_COMMAND,
    SPDY_PORT_FORWARD,
    STDERR,
    STDIN,
    STDOUT,
    TUNNEL_PROTOCOL,
    CommandClient,
    TunnelClient,
    wants_command,
    wants_tunnel,
)
from trio_kubelet.streaming.websocket import WebSocket, accepted
from trio_kubelet.tasks.pieces import StreamPieces

MAX_PORT = 65535
MOST_PORTS = 128
"""Each has two channels of a WebSocket, whose number is a byte."""
MOST_OUTPUT_BYTES = 1 << 20
LEAST_OUTPUT_BYTES = 16 * 1024
ALL_OUTPUT_BYTES = 4 << 20
"""Of each of the two streams of a command that `/run` answers with; all commands share the last.

A runtime gives up to 16 MiB, and hundreds of clients may let the answer wait.
"""


@frozen(kw_only=True)
class Streams:
    """The streams that a client wants to be connected with."""

    stdin: bool = False
    stdout: bool = False
    stderr: bool = False
    tty: bool = False

    @property
    def channels(self) -> Sequence[int]:
        """The channels of a WebSocket that has them."""
        wanted = (
            (STDIN, self.stdin),
            (STDOUT, self.stdout),
            (STDERR, self.stderr),
            (ERROR, True),
            (RESIZE, self.tty),
        )
        return [channel for channel, is_wanted in wanted if is_wanted]


def wanted_streams(query: Values) -> Streams:
    """Raises RequestError (400). A terminal has no stream of its own for errors."""
    tty, stdin, stdout, stderr = (
        query.first(name) == "1" for name in ("tty", "input", "output", "error")
    )
    if not (stdin or stdout or stderr):
        raise RequestError(400, "you must specify at least 1 of stdin, stdout, stderr")
    return Streams(stdin=stdin, stdout=stdout, stderr=stderr and not tty, tty=tty)


def wanted_ports(query: Values, headers: Headers) -> tuple[int, ...]:
    """The ports of a port-forward over WebSocket. RequestError (400).

    Over SPDY they come later, also through a WebSocket.
    """
    if headers.first("upgrade").lower() != "websocket":
        return ()
    ports = [text for texts in query.all("port") for text in texts.split(",")]
    if not ports:
        raise RequestError(400, 'query parameter "port" is required')
    found = []
    for text in ports:
        digits = text.lstrip("0")
        if not (digits.isascii() and digits.isdecimal() and int(digits[:6]) <= MAX_PORT):
            raise RequestError(400, f'invalid port "{text}"')
        found.append(int(digits))
    if len(found) > MOST_PORTS:
        raise RequestError(400, f"more than {MOST_PORTS} ports cannot be forwarded")
    return tuple(found)


METHODS = ("GET", "POST")
_STATUS = {Code.NOT_FOUND: 404, Code.RESOURCE_EXHAUSTED: 429}


class StreamingRuntime(Protocol):
    """The runtime's calls that say where it will stream (`RuntimeClient`). All raise RpcError."""

    async def exec(self, request: cri.ExecRequest) -> str:
        """The URL of a command's streams."""
        ...

    async def attach(self, request: cri.AttachRequest) -> str:
        """The URL of a container's streams."""
        ...

    async def port_forward(self, request: cri.PortForwardRequest) -> str:
        """The URL of a sandbox's ports."""
        ...

    async def exec_sync(
        self,
        container_id: str,
        command: Sequence[str],
        timeout_seconds: int,
        cut: FieldCut | None = None,
    ) -> cri.ExecSyncResponse:
        """Run a command to its end, of whose output `cut` may drop the rest."""
        ...


@frozen(kw_only=True)
class PodStreams:
    """Answers requests for streams.

    `find_pod` gives a pod by namespace and name; `observed` what was last seen of it in the
    runtime, by UID. `idle_seconds` gives streamingConnectionIdleTimeout to each new stream.
    With `takes_websockets` the protocols that runtimes do not know are translated.
    """

    find_pod: Callable[[str, str], Pod | None]
    observed: Callable[[str], ObservedPod]
    runtime: StreamingRuntime
    idle_seconds: Callable[[], float]
    takes_websockets: bool = False
    _pieces: StreamPieces = field(
        init=False,
        factory=lambda: StreamPieces(MOST_PIECE_BYTES, LEAST_PIECE_BYTES, ALL_PIECES_BYTES),
    )
    _ports: StreamCounts = field(init=False, factory=StreamCounts)
    _outputs: StreamPieces = field(
        init=False,
        factory=lambda: StreamPieces(MOST_OUTPUT_BYTES, LEAST_OUTPUT_BYTES, ALL_OUTPUT_BYTES),
    )

    async def exec(self, request: Request) -> Response | None:
        """Run a command with its streams at the client's."""
        streams = wanted_streams(request.query)
        wanted = cri.ExecRequest(
            container_id=self._container_id(request),
            cmd=list(request.query.all("command")),
            tty=streams.tty,
            stdin=streams.stdin,
            stdout=streams.stdout,
            stderr=streams.stderr,
        )
        return await self._command(request, streams, lambda: self.runtime.exec(wanted))

    async def attach(self, request: Request) -> Response | None:
        """Put the client at the streams of the container's own process."""
        streams = wanted_streams(request.query)
        wanted = cri.AttachRequest(
            container_id=self._container_id(request),
            tty=streams.tty,
            stdin=streams.stdin,
            stdout=streams.stdout,
            stderr=streams.stderr,
        )
        return await self._command(request, streams, lambda: self.runtime.attach(wanted))

    async def port_forward(self, request: Request) -> Response | None:
        """Connect the client with ports of the pod."""
        is_tunnel = self.takes_websockets and wants_tunnel(request.headers)
        ports = () if is_tunnel else wanted_ports(request.query, request.headers)
        pod = self._pod(request)
        sandbox = self.observed(pod.metadata.uid).ready_sandbox
        if sandbox is None:
            name = f"{pod.metadata.name}_{pod.metadata.namespace}"
            raise RequestError(500, f'pod not found ("{name}")')
        wanted = cri.PortForwardRequest(pod_sandbox_id=sandbox.id, port=list(ports))
        ask = partial(self.runtime.port_forward, wanted)
        if is_tunnel:
            headers = accepted(request.headers, TUNNEL_PROTOCOL)
            return await self._translate(
                request,
                ask,
                SPDY_PORT_FORWARD,
                headers,
                lambda client: CountedStreams(TunnelClient(client), request.place, self._ports),
            )
        if not ports:
            return await self._stream(request, ask, self._ports)
        with self._ports.held(request.place.owner, STREAMS_OF_A_PORT * len(ports)):
            return await self._stream(request, ask)

    async def run(self, request: Request) -> Response:
        """Run a command to its end; what it has said on both streams."""
        id_, command = self._container_id(request), request.query.first("cmd")
        request.will_last()
        with self._outputs.one_more_stream():
            most = self._outputs.size_bytes
            try:
                done = await self.runtime.exec_sync(id_, command.split(" "), 0, FieldCut(most))
            except RpcError as error:
                raise RequestError(500, error.message) from error
        said = done.stdout + done.stderr
        if most in (len(done.stdout), len(done.stderr)):
            said += f"\nthe output is cut after {most} bytes\n".encode()
        if done.exit_code:
            words = f"command '{command}' exited with {done.exit_code}: "
            return Response(status=500, body=words.encode() + said)
        return Response(content_type="application/json", body=said)

    async def _stream(
        self,
        request: Request,
        ask: Callable[[], Awaitable[str]],
        counts: StreamCounts | None = None,
    ) -> Response | None:
        found = await _dialled(request, ask, request.method, request.headers)
        if not isinstance(found, SwitchedConnection):
            return found
        async with found.stream:
            client = await request.switch_protocols(found.headers)
            if counts is not None:
                client = CountedStreams(client, request.place, counts)
            async with client:
                await splice(client, found.stream, found.ahead, self._pieces, self.idle_seconds())
        return None

    async def _command(
        self, request: Request, streams: Streams, ask: Callable[[], Awaitable[str]]
    ) -> Response | None:
        if not (self.takes_websockets and wants_command(request.headers)):
            return await self._stream(request, ask)
        headers = accepted(request.headers, COMMAND_PROTOCOL)
        open_client = partial(CommandClient, channels=streams.channels)
        return await self._translate(request, ask, SPDY_COMMAND, headers, open_client)

    async def _translate(
        self,
        request: Request,
        ask: Callable[[], Awaitable[str]],
        spdy: Headers,
        headers: HeaderPairs,
        open_client: Callable[[WebSocket], trio.abc.Stream],
    ) -> Response | None:
        """Connect a WebSocket with a runtime that speaks SPDY."""
        found = await _dialled(request, ask, "POST", spdy)
        if not isinstance(found, SwitchedConnection):
            return found
        async with found.stream:
            stream = await request.switch_protocols(headers)
            client = open_client(WebSocket(stream, request.place.turn))
            async with client:
                if isinstance(client, CommandClient):
                    await client.greet()
                await splice(client, found.stream, found.ahead, self._pieces, self.idle_seconds())
        return None

    def _pod(self, request: Request) -> Pod:
        names = request.parameters
        pod = self.find_pod(names["namespace"], names["pod"])
        if pod is None or names.get("uid", pod.metadata.uid) != pod.metadata.uid:
            raise RequestError(404, "pod does not exist")
        return pod

    def _container_id(self, request: Request) -> str:
        """The container that runs under the name."""
        name = request.parameters["container"]
        for each in self.observed(self._pod(request).metadata.uid).containers:
            if each.name == name and each.state is ObservedState.RUNNING:
                return each.id
        raise RequestError(500, f'container not found ("{name}")')


async def _dialled(
    request: Request, ask: Callable[[], Awaitable[str]], method: str, headers: Headers
) -> SwitchedConnection | Response:
    """Ask the runtime where it streams, and connect; a Response is its refusal. RequestError."""
    if not request.may_switch:  # The runtime runs a command before the client is answered.
        raise RequestError(400, "Upgrade request required")
    request.will_last()
    try:
        url = await ask()
    except RpcError as error:
        raise RequestError(_STATUS.get(error.code, 500), error.message) from error
    return await dial(url, method, headers)


def stream_routes(streams: PodStreams) -> Sequence[Route]:
    """All paths, with and without the pod's UID."""
    pod = "{namespace}/{pod}"
    handlers: Sequence[tuple[str, Handler]] = (
        (f"/exec/{pod}/{{container}}", streams.exec),
        (f"/exec/{pod}/{{uid}}/{{container}}", streams.exec),
        (f"/attach/{pod}/{{container}}", streams.attach),
        (f"/attach/{pod}/{{uid}}/{{container}}", streams.attach),
        (f"/portForward/{pod}", streams.port_forward),
        (f"/portForward/{pod}/{{uid}}", streams.port_forward),
    )
    return (
        *(
            Route(method, path, handler, RUN_IN_POD)
            for method in METHODS
            for path, handler in handlers
        ),
        Route("POST", f"/run/{pod}/{{container}}", streams.run, RUN_IN_POD),
        Route("POST", f"/run/{pod}/{{uid}}/{{container}}", streams.run, RUN_IN_POD),
    )
