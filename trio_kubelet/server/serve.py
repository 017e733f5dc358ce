"""A server: connections are accepted, each is a task of its own, and all have an end."""

from collections.abc import Hashable, Sequence
from contextlib import suppress

import structlog
import trio

from trio_kubelet.server.client import GOODBYE_SECONDS, Client, peer_of
from trio_kubelet.server.connection import Connection
from trio_kubelet.server.connections import ClientGoneError, ConnectionTable, NoPlaceError
from trio_kubelet.server.limits import Limits
from trio_kubelet.server.messages import Handler, Peer, TcpPeer

log = structlog.get_logger("server")


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
