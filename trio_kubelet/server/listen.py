"""Where the agent listens: addresses, and unix sockets that only their owner may use."""

import errno
import os
import socket
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import trio

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
    """Listen on a unix socket with mode 0600, however long its path is. Raises OSError.

    A socket that an earlier agent left behind is replaced. Where somebody still listens this is
    an OSError with EADDRINUSE, where the path is something else one with EEXIST.
    """
    with _short(path) as short:
        _clear_stale(path, short)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            # The file takes over the mode of the socket: there is no moment without it.
            os.fchmod(listener.fileno(), SOCKET_MODE)
            listener.bind(str(short))
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
    return [trio.SocketListener(trio.socket.from_stdlib_socket(listener))]


@contextmanager
def _short(path: Path) -> Iterator[Path]:
    """The same path in a few characters: an address of a unix socket has at most 107."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{folder}") / path.name
    finally:
        os.close(folder)


def _clear_stale(path: Path, short: Path) -> None:
    try:
        found = short.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise OSError(errno.EEXIST, "exists and is not a socket", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        if probe.connect_ex(str(short)) != errno.ECONNREFUSED:
            raise OSError(errno.EADDRINUSE, "another process listens on this socket", str(path))
    short.unlink(missing_ok=True)
