"""A connection to a gRPC server on a unix socket that is held to learn when the server goes.

No call is made on it: whoever calls has other connections. Settings and pings of the server are
answered, so that it keeps the connection; a server that sends without end is read slowly.
"""

from collections.abc import Callable

import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated
from h2.exceptions import ProtocolError

RECEIVE_BYTES = 1024
PACE_SECONDS = 0.1
"""Between two reads, each of which has some 60 frames at most that have to be answered."""


async def hold_connection(path: str, opened: Callable[[], None]) -> None:
    """Connect, call `opened`, and return when the connection has ended, for whatever reason.

    Raises OSError if nobody takes connections at the socket.
    """
    http2 = H2Connection(H2Configuration(client_side=True))
    http2.initiate_connection()
    async with await trio.open_unix_socket(path) as stream:
        opened()
        try:
            await stream.send_all(http2.data_to_send())
            while data := await stream.receive_some(RECEIVE_BYTES):
                events = http2.receive_data(data)
                if any(isinstance(each, ConnectionTerminated) for each in events):
                    return
                await stream.send_all(http2.data_to_send())
                await trio.sleep(PACE_SECONDS)
        except (trio.BrokenResourceError, ProtocolError):
            return
