"""The client's end of an HTTP/2 connection, made for answers of hundreds of kilobytes.

The list of a thousand containers comes in 40 frames of HTTP/2's least size. So the server is told
that frames may be larger: servers on h2, as the hollow runtime, then send fewer, and gRPC for Go
does not care. And a frame's text is kept short: h2 hands the `repr` of each frame to a logger that
nobody reads, which for a data frame would be all its bytes as hexadecimal numbers.

A name is looked up in a thread that is left behind when nobody waits any more: asyncio would hold
up the end of the agent for as long as a resolver hangs.
"""

import socket
from asyncio import BaseTransport
from functools import partial
from typing import Any, final

import grpclib.client
import trio
import trio_asyncio
from grpclib.protocol import H2Protocol
from h2.settings import SettingCodes
from hyperframe.frame import DataFrame

from trio_kubelet.rpc.frames import FrameBudget, Pace, PacedProtocol
from trio_kubelet.tasks.threads import run_in_thread_now

LARGEST_FRAME = 64 * 2**10
"""Bytes. Copies of still larger frames cost more in fresh memory than their number saves."""


@final
class ClientConnection(PacedProtocol):
    """Takes large frames, which a server that is trusted may send as soon as it has read so."""

    def connection_made(self, transport: BaseTransport) -> None:
        """Send the settings with grpclib's own, before the first call."""
        super().connection_made(transport)
        if self._pace is None:
            h2 = self.connection._connection
            h2.update_settings({SettingCodes.MAX_FRAME_SIZE: LARGEST_FRAME})
            self.connection.flush()


@final
class GrpcChannel(grpclib.client.Channel):
    """grpclib's channel over such a connection; `budget` is that of a server without trust.

    `look_ups` bounds the threads that look the names of hosts up.
    """

    def __init__(
        self, *, look_ups: trio.CapacityLimiter, budget: FrameBudget | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self._look_ups = look_ups
        self._budget = budget
        self._end: ClientConnection | None = None

    def _protocol_factory(self) -> H2Protocol:
        protocol = super()._protocol_factory()
        pace = None if self._budget is None else Pace(self._budget)
        self._end = ClientConnection(
            protocol.handler, protocol.config, protocol.h2_config, pace=pace
        )
        return self._end

    async def _create_connection(self) -> H2Protocol:
        """Connect to the first address of the host that answers. Raises OSError."""
        if self._path is not None:
            return await super()._create_connection()
        addresses: list[str] = await trio_asyncio.trio_as_aio(self._addresses)()
        for address in addresses[:-1]:
            try:
                return await self._connect(address)
            except OSError:
                continue
        return await self._connect(addresses[-1])

    async def _addresses(self) -> list[str]:
        """The addresses of the host, in the resolver's order. Raises OSError."""
        look_up = partial(socket.getaddrinfo, self._host, self._port, type=socket.SOCK_STREAM)
        found = await run_in_thread_now(look_up, limiter=self._look_ups, abandon_on_cancel=True)
        return [str(address[0]) for *_, address in found]

    async def _connect(self, address: str) -> H2Protocol:
        _, protocol = await self._loop.create_connection(
            self._protocol_factory, address, self._port
        )
        return protocol

    def close(self) -> None:
        """Close the connection, also to a server that does not read what it was sent."""
        super().close()
        if self._end is not None:
            self._end.drop_unsent()
            self._end = None


def _length(frame: DataFrame) -> str:
    return f"{frame.body_len} bytes"


# The frame's text is made before the logger is asked whether it wants it: there is no option.
DataFrame._body_repr = _length  # type: ignore[assignment,method-assign]
