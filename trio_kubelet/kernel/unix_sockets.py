"""Unix sockets to listen on, in the place of those that nobody serves any more."""

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def bind_unix(path: Path, *, mode: int, backlog: int) -> socket.socket:
    """Listen on a unix socket of that mode, however long its path is. Raises OSError.

    A socket that another process left behind is replaced. Where somebody still listens this is
    an OSError with EADDRINUSE, where the path is something else one with EEXIST.
    """
    with _short(path) as short:
        _clear_stale(path, short)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            # The file takes over the mode of the socket: there is no moment without it.
            os.fchmod(listener.fileno(), mode)
            listener.bind(str(short))
            short.chmod(mode)  # whatever the umask has taken away
            listener.listen(backlog)
        except BaseException:
            listener.close()
            raise
    return listener


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
