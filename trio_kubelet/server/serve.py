"""A server: where it listens, its connections, and the requests on each, one after another.

Addresses take clients of the network, unix sockets only their owner. Connections are accepted,
each is a task of its own, and all have an end.
"""

import socket
from collections.abc import Hashable, Sequence
from contextlib import suppress
from http.client import responses
from pathlib import Path

import h11
import structlog
import trio

from trio_kubelet.kernel.unix_sockets import bind_unix
from trio_kubelet.server.client import GOODBYE_SECONDS, Client, peer_of
from trio_kubelet.server.connections import ClientGoneError, ConnectionTable, NoPlaceError
from trio_kubelet.server.exchange import Exchange, error_response
from trio_kubelet.server.limits import Limits
from trio_kubelet.server.messages import Handler, Peer, RequestError, TcpPeer
from trio_kubelet.server.request_head import check_head, check_lines

log = structlog.get_logger("server")

SOCKET_MODE = 0o600
BACKLOG = 64

KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 9),
)
"""The defaults of Go's listeners: a client that has gone without a word is noticed in 150 s.

Without it a stream on which nothing happens (a quiet log that is followed) would never end.
"""

ANY_ADDRESS = ("0.0.0.0", "::")
"""Either stands for all addresses of both families, as in Go: nodes have one or the other."""


async def listen_tcp(host: str, port: int) -> Sequence[trio.SocketListener]:
    """Listen on an address; port 0 takes any. Raises OSError."""
    listeners = await trio.open_tcp_listeners(port, host=None if host in ANY_ADDRESS else host)
    for listener in listeners:
        for option in KEEPALIVE:  # Connections take it over from who accepts them.
            listener.socket.setsockopt(*option)
    return listeners


def listen_unix(path: Path) -> Sequence[trio.SocketListener]:
    """Listen on a unix socket that only its owner may use. Raises OSError, as `bind_unix`."""
    listener = bind_unix(path, mode=SOCKET_MODE, backlog=BACKLOG)
    return [trio.SocketListener(trio.socket.from_stdlib_socket(listener))]


class Connection:
    """The server's side of one connection."""

    def __init__(self, client: Client, handler: Handler) -> None:
        self._client = client
        self._handler = handler
        self._limits = client.limits
        self._http = h11.Connection(h11.SERVER, self._limits.head_bytes)
        self._asks_for_head = False

    async def serve(self) -> None:
        """Answer requests until client or server have enough; the stream is left to the caller."""
        deadline = trio.current_time() + self._limits.head_seconds
        try:
            await self._client.greet(self._limits.head_seconds)
            patience = max(0.0, deadline - trio.current_time())
            while (head := await self._next_head(patience)) is not None:
                exchange = Exchange(self._http, self._client, head)
                if not await exchange.run(self._handler):
                    if not exchange.request_read and not self._client.place.gone:
                        await self._client.linger()
                    return
                self._http.start_next_cycle()
                patience = self._limits.idle_seconds
        except RequestError as error:
            await self._refuse(error)
        except ClientGoneError:
            return

    async def _next_head(self, patience: float) -> h11.Request | None:
        """The next request's head, None if there is no more.

        Its first byte is waited for for `patience` seconds. Raises RequestError and
        ClientGoneError.
        """
        received = bytearray(self._http.trailing_data[0])
        deadline = trio.current_time() + (self._limits.head_seconds if received else patience)
        try:
            while (event := self._next_event(received)) is h11.NEED_DATA:
                seconds = max(0.0, deadline - trio.current_time())
                data = await self._client.receive(seconds, for_request=True)
                if not received:
                    deadline = trio.current_time() + self._limits.head_seconds
                received += data
                self._http.receive_data(data)
        except h11.RemoteProtocolError as error:
            raise RequestError(error.error_status_hint, str(error)) from error
        if not isinstance(event, h11.Request):
            return None
        self._asks_for_head = event.method == b"HEAD"
        rest = len(self._http.trailing_data[0])
        check_head(bytes(received[: len(received) - rest]), self._limits)
        return event

    def _next_event(self, received: bytearray) -> object:
        check_lines(received, self._limits)
        return self._http.next_event()

    async def _refuse(self, error: RequestError) -> None:
        """Tell a client that it does not speak HTTP, or too much of it."""
        response = error_response(error)
        assert isinstance(response.body, bytes)
        head = h11.Response(
            status_code=response.status,
            reason=responses.get(response.status, ""),
            headers=[
                ("Content-Type", response.content_type),
                ("Content-Length", str(len(response.body))),
                ("Connection", "close"),
            ],
        )
        data = self._http.send(head)
        if not self._asks_for_head:
            data += self._http.send(h11.Data(data=response.body))
        try:
            await self._client.send(data)
        except ClientGoneError:
            return
        await self._client.linger()


async def serve_http(
    listeners: Sequence[trio.abc.Listener[trio.abc.Stream]],
    handler: Handler,
    *,
    limits: Limits | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve HTTP/1.1 on TCP, TLS or Unix sockets until cancelled.

    Then the listeners are closed, idle connections too, and requests in flight have
    `limits.close_seconds` to be answered before they are cut.
    """
    limits = limits or Limits()
    table = ConnectionTable(limits)
    closing = trio.Event()

    async def serve_one(stream: trio.abc.Stream) -> None:
        try:
            await _serve_connection(stream, handler, table, limits)
        except Exception:
            log.exception("HTTP connection handler failed")

    async with trio.open_nursery() as nursery:
        with trio.CancelScope(shield=True):
            connections = await nursery.start(_hold_connections, table, closing)
        try:
            task_status.started()
            await trio.serve_listeners(serve_one, list(listeners), handler_nursery=connections)
        finally:
            table.close_idle()
            connections.cancel_scope.deadline = trio.current_time() + limits.close_seconds
            closing.set()


async def _hold_connections(
    table: ConnectionTable, closing: trio.Event, *, task_status: trio.TaskStatus[trio.Nursery]
) -> None:
    """Hold the connections beyond a cancellation of the server, until its deadline for them."""
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as turns:
            turns.start_soon(table.give_turns)
            async with trio.open_nursery() as connections:
                task_status.started(connections)
                await closing.wait()
            turns.cancel_scope.cancel()


async def _serve_connection(
    stream: trio.abc.Stream, handler: Handler, table: ConnectionTable, limits: Limits
) -> None:
    try:
        with suppress(NoPlaceError, ClientGoneError):
            peer = peer_of(stream)
            with table.place(_counted_as(peer)) as place:
                await Connection(Client(stream, peer, place, limits), handler).serve()
    finally:
        # Over TLS a goodbye is sent, which the client may not take.
        with trio.move_on_after(GOODBYE_SECONDS):
            await stream.aclose()


def _counted_as(peer: Peer) -> Hashable:
    """Whom a connection counts for: an address of the network, a user of this machine."""
    return peer.host if isinstance(peer, TcpPeer) else peer.uid
