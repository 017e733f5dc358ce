"""Where the agent listens: addresses, and unix sockets that only their owner may use."""

import socket
from collections.abc import Sequence
from pathlib import Path

import trio

from trio_kubelet.kernel.unix_sockets import bind_unix

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
