"""Servers on loopback that do to a probe what containers do."""

import resource
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress

import trio
import trustme
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived, StreamEnded

from trio_kubelet.pod_clients.result import ProbeResult

LOOPBACK = "127.0.0.1"
BEATS = 3
FLOOD_BYTES = 8 * 1024 * 1024
Serve = Callable[[trio.abc.Stream], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve each connection on a port of its own."""

    async def handle(stream: trio.abc.Stream) -> None:
        secured = stream if tls is None else trio.SSLStream(stream, tls, server_side=True)
        try:
            async with secured:
                await serve(secured)
        except trio.BrokenResourceError:
            pass

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host=LOOPBACK)
        nursery.start_soon(trio.serve_listeners, handle, listeners)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


@contextmanager
def closed_port(address: str = LOOPBACK) -> Iterator[socket.socket]:
    """A socket whose port refuses connections until it listens; nobody else gets that port."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as bound:
        bound.bind((address, 0))
        yield bound


def port_of(listener: socket.socket) -> int:
    """The port of a socket."""
    port: int = listener.getsockname()[1]
    return port


def answer(data: bytes, seen: list[str] | None = None) -> Serve:
    """Read the head of a request, and answer it with some bytes."""

    async def serve(stream: trio.abc.Stream) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            received = await stream.receive_some()
            if not received:
                return
            head += received
        if seen is not None:
            seen.append(head.decode())
        await stream.send_all(data)

    return serve


def http(status: int, *headers: str, body: str = "") -> bytes:
    """A response."""
    lines = (f"HTTP/1.1 {status} Words", *headers, f"Content-Length: {len(body)}")
    return "\r\n".join((*lines, "", body)).encode()


async def hang(_stream: trio.abc.Stream) -> None:
    """Take the connection, and say nothing."""
    await trio.sleep_forever()


async def reset(stream: trio.abc.Stream) -> None:
    """Drop the connection without a goodbye, once something came."""
    await stream.receive_some()
    assert isinstance(stream, trio.SocketStream)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


@contextmanager
def flooding(opening: bytes, flood: bytes) -> Iterator[tuple[int, threading.Event]]:
    """Answer one connection with a flood that comes faster than it is read, from a thread.

    The event is set when as much is there to be read as the connection holds. It ends with the
    connection, or once it is over.
    """
    begun = threading.Event()
    listener = socket.create_server((LOOPBACK, 0))
    listener.settimeout(30)
    data = memoryview(opening + flood * (FLOOD_BYTES // len(flood)))

    def pour() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.recv(16 * 1024)
            connection.setblocking(False)
            sent = 0
            with suppress(BlockingIOError):
                while sent < len(data):
                    sent += connection.send(data[sent:])
            begun.set()
            connection.setblocking(True)
            connection.sendall(data[sent:])

    peer = threading.Thread(target=pour)
    peer.start()
    try:
        yield port_of(listener), begun
    finally:
        peer.join()
        listener.close()


async def lets_others_run(
    run: Callable[[], Awaitable[ProbeResult]], begun: threading.Event
) -> bool:
    """Whether another task runs again and again after an event, before a probe is over."""
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while beats < BEATS:
            await trio.lowlevel.checkpoint()
            beats += begun.is_set()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(beat)
        await run()
        nursery.cancel_scope.cancel()
    return beats == BEATS


def server_tls(*names: str, protocols: Sequence[str] = ()) -> ssl.SSLContext:
    """The context of a server with a certificate that nobody trusts."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert(*names).configure_cert(context)
    context.set_alpn_protocols(list(protocols))
    return context


def refusing(tls: ssl.SSLContext) -> Serve:
    """A server that says by an alert what it has against the handshake of its client."""

    async def serve(stream: trio.abc.Stream) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = tls.wrap_bio(incoming, outgoing, server_side=True)
        async for received in stream:
            incoming.write(bytes(received))
            with suppress(ssl.SSLError):
                session.do_handshake()
            await stream.send_all(outgoing.read())

    return serve


def http2(
    answer: Callable[[H2Connection, int], None], seen: list[dict[str, str]] | None = None
) -> Serve:
    """A server of HTTP/2, which answers a request on a stream, and hangs up."""

    async def serve(stream: trio.abc.Stream) -> None:
        h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        h2.initiate_connection()
        await stream.send_all(h2.data_to_send())
        while received := await stream.receive_some():
            for event in h2.receive_data(received):
                if isinstance(event, RequestReceived) and seen is not None:
                    seen.append({str(name): str(value) for name, value in event.headers})
                if isinstance(event, StreamEnded):
                    answer(h2, event.stream_id)
                    await stream.send_all(h2.data_to_send())
                    return
            await stream.send_all(h2.data_to_send())

    return serve


def goodbye(last_stream: int, code: int = 0, debug: bytes = b"") -> bytes:
    """A frame GOAWAY, after which h2's server would say no more."""
    content = last_stream.to_bytes(4) + code.to_bytes(4) + debug
    return len(content).to_bytes(3) + b"\7\0\0\0\0\0" + content


def health(
    trailers: dict[str, str],
    message: bytes | None = None,
    seen: list[dict[str, str]] | None = None,
) -> Serve:
    """A server of gRPC's health service with one answer."""

    def answer(h2: H2Connection, stream: int) -> None:
        _answer_call(h2, stream, trailers, message)

    return http2(answer, seen)


def _answer_call(
    h2: H2Connection, stream_id: int, trailers: dict[str, str], message: bytes | None
) -> None:
    head = [(":status", "200"), ("content-type", "application/grpc")]
    if message is None:
        h2.send_headers(stream_id, [*head, *trailers.items()], end_stream=True)
        return
    h2.send_headers(stream_id, head)
    h2.send_data(stream_id, b"\0" + len(message).to_bytes(4, "big") + message)
    h2.send_headers(stream_id, list(trailers.items()), end_stream=True)


@contextmanager
def no_descriptors() -> Iterator[None]:
    """No file and no socket can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
