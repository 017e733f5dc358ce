"""Names of hosts are looked up in threads of their own, not in those that all share.

Trio looks names up in the threads for all blocking work that has no limit of its own. A name server
that hangs keeps each of them for as long as the C library tries, also when nobody waits any more,
and soon no file would be read either. So the agent's names have a share of threads, and names that
somebody else may choose, as a server of static pods does that redirects, have another one.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import trio
from attrs import field, frozen

from trio_kubelet.tasks.threads import run_in_thread_now

LOOKUPS = 16
"""Threads for names of the API server, of its proxy, and of the place where the runtime streams."""

_apart: ContextVar[trio.CapacityLimiter | None] = ContextVar("lookups_apart", default=None)


@frozen
class HostLookups(trio.abc.HostnameResolver):
    """Looks names up for all of trio's sockets, which ask it for what is no numeric address."""

    _limiter: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(LOOKUPS))

    async def getaddrinfo(
        self,
        host: bytes | None,
        port: bytes | str | int | None,
        family: int = 0,
        type: int = 0,  # noqa: A002 - the name that the interface has
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        """As `socket.getaddrinfo`, and NoThreadError. Cancelled, it leaves the thread behind."""
        limiter = _apart.get() or self._limiter
        query = (host, port, family, type, proto, flags)
        return await run_in_thread_now(
            socket.getaddrinfo, *query, limiter=limiter, abandon_on_cancel=True
        )

    async def getnameinfo(
        self, sockaddr: tuple[str, int] | tuple[str, int, int, int], flags: int
    ) -> tuple[str, str]:
        """As `socket.getnameinfo`, and as above; the interface has it."""
        return await run_in_thread_now(
            socket.getnameinfo, sockaddr, flags, limiter=self._limiter, abandon_on_cancel=True
        )


@contextmanager
def looking_up_with(limiter: trio.CapacityLimiter) -> Iterator[None]:
    """Look names up in threads of this limiter, as far as the task of the block asks for some."""
    token = _apart.set(limiter)
    try:
        yield
    finally:
        _apart.reset(token)
