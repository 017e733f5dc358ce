"""Connections: httpx's pools, with what notices a dead peer, and with certificates that change.

A peer that vanished without a word is found by TCP itself: probes once a connection is idle, and
a limit for what stays unacknowledged. So a watch that hears nothing for hours is still known to
be alive, and a dead one is given up within 35 s.
"""

import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit
from urllib.request import getproxies_environment

import httpx
import trio
from attrs import define, field, frozen

KEEPALIVE_IDLE_SECONDS = 15
KEEPALIVE_INTERVAL_SECONDS = 5
UNACKNOWLEDGED_SECONDS = 30

SOCKET_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_SECONDS * 1000),
)
"""With TCP_USER_TIMEOUT it is time that counts, not the number of probes (tcp(7))."""

IDLE_SECONDS = 90.0
"""Connections that nobody uses are kept for so long."""


@frozen
class PoolSize:
    """The connections that a pool may have (None: as many as needed), and the idle ones."""

    connections: int | None
    idle: int


REQUESTS = PoolSize(connections=6, idle=6)
"""Few: for every request httpcore looks at each connection as often as there are connections."""
WATCHES = PoolSize(connections=None, idle=8)
HEARTBEAT = PoolSize(connections=2, idle=1)
EVENTS = PoolSize(connections=4, idle=1)
REVIEWS = PoolSize(connections=4, idle=1)


def open_pool(
    context: ssl.SSLContext, size: PoolSize, proxy_url: str = ""
) -> httpx.AsyncHTTPTransport:
    """Make a pool of HTTP/1.1 connections; nothing is connected yet."""
    limits = httpx.Limits(
        max_connections=size.connections,
        max_keepalive_connections=size.idle,
        keepalive_expiry=IDLE_SECONDS,
    )
    return httpx.AsyncHTTPTransport(
        verify=context,
        http1=True,
        http2=False,
        limits=limits,
        trust_env=False,
        proxy=proxy_url or None,
        socket_options=SOCKET_OPTIONS,
    )


def proxy_from_environment(server: str) -> str:
    """Return the proxy that HTTPS_PROXY, HTTP_PROXY and NO_PROXY name for a server, as Go does.

    This machine itself is never asked through a proxy.
    """
    url = urlsplit(server)
    proxies = getproxies_environment()
    proxy = proxies.get(url.scheme, "")
    host = url.hostname or ""
    if not proxy or host == "localhost" or _excepted(host, url.port, proxies.get("no", "")):
        return ""
    return proxy if "//" in proxy else f"http://{proxy}"


def _excepted(host: str, port: int | None, no_proxy: str) -> bool:
    address = _address(host)
    if address is not None and address.is_loopback:
        return True
    for rule in no_proxy.split(","):
        name = rule.strip().lower()
        if name == "*" or (name and name in (host, f"{host}:{port}")):
            return True
        if address is not None and _holds(name, address):
            return True
        if name and address is None and host.endswith("." + name.lstrip(".")):
            return True
    return False


def _holds(network: str, address: IPv4Address | IPv6Address) -> bool:
    try:
        return address in ip_network(network, strict=False)
    except ValueError:
        return False


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


@define(eq=False)
class _Generation:
    """A pool of connections that were made with the same certificates."""

    context: ssl.SSLContext
    pool: httpx.AsyncBaseTransport
    in_use: int = 0
    retired: bool = False
    reading: set[trio.CancelScope] = field(factory=set)
    """The reads of watches that wait for more."""

    async def retire(self, *, ends_watches: bool) -> None:
        """Take no more requests; those under way end by themselves, watches at once if wanted."""
        self.retired = True
        if ends_watches:
            for scope in self.reading:
                scope.cancel()
        if not self.in_use:
            await self.pool.aclose()

    async def leave(self) -> None:
        """A request has ended; the last one of an old pool closes it."""
        self.in_use -= 1
        if self.retired and not self.in_use:
            with trio.CancelScope(shield=True):
                await self.pool.aclose()


class RotatingTransport(httpx.AsyncBaseTransport):
    """A pool that begins anew when the certificates change.

    `context` is asked before each request and by `renew`. Requests that are under way end on their
    old connections. With `watches` all that is asked are watches: those on old connections end as
    if the server had ended them, and go on over a new one. Of requests only as many are handed to
    the pool as it may have connections: httpcore looks at all that wait whenever one has ended.
    """

    def __init__(
        self,
        context: Callable[[], Awaitable[ssl.SSLContext]],
        make_pool: Callable[[ssl.SSLContext], httpx.AsyncBaseTransport],
        connections: int | None = None,
        *,
        watches: bool = False,
    ) -> None:
        self._watches = watches
        self._context = context
        self._make_pool = make_pool
        self._slots = None if connections is None else trio.Semaphore(connections)
        self._generation: _Generation | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request over a connection with the current certificates."""
        if self._slots is not None:
            await self._slots.acquire()
        try:
            generation = await self._current(await self._context())
            generation.in_use += 1
            try:
                response = await generation.pool.handle_async_request(request)
            except BaseException:
                await generation.leave()
                raise
        except BaseException:
            self._free_slot()
            raise
        stream = response.stream
        assert isinstance(stream, httpx.AsyncByteStream)
        done = partial(self._done, generation)
        if self._watches:
            response.stream = _WatchStream(stream, done, generation)
        else:
            response.stream = _Stream(stream, done)
        return response

    async def renew(self) -> None:
        """Begin anew now if the certificates have changed; raises CredentialError."""
        if self._generation is not None:
            await self._current(await self._context())

    async def _done(self, generation: _Generation) -> None:
        self._free_slot()
        await generation.leave()

    def _free_slot(self) -> None:
        if self._slots is not None:
            self._slots.release()

    async def aclose(self) -> None:
        """Close all connections."""
        generation, self._generation = self._generation, None
        if generation is not None:
            await generation.pool.aclose()

    async def _current(self, context: ssl.SSLContext) -> _Generation:
        old = self._generation
        if old is not None and old.context is context:
            return old
        new = self._generation = _Generation(context, self._make_pool(context))
        if old is not None:
            await old.retire(ends_watches=self._watches)
        return new


class _Stream(httpx.AsyncByteStream):
    """An answer's body that says when it is closed."""

    def __init__(
        self, stream: httpx.AsyncByteStream, closed: Callable[[], Awaitable[None]]
    ) -> None:
        self._stream = stream
        self._closed: Callable[[], Awaitable[None]] | None = closed

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._stream.__aiter__()

    async def aclose(self) -> None:
        closed, self._closed = self._closed, None
        try:
            await self._stream.aclose()
        finally:
            if closed is not None:
                await closed()


class _WatchStream(_Stream):
    """The frames of a watch, which ends in good order when its pool is retired."""

    def __init__(
        self,
        stream: httpx.AsyncByteStream,
        closed: Callable[[], Awaitable[None]],
        generation: _Generation,
    ) -> None:
        super().__init__(stream, closed)
        self._generation = generation

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = super().__aiter__()
        reading = self._generation.reading
        while not self._generation.retired:
            chunk: bytes | None = None
            with trio.CancelScope() as scope:
                reading.add(scope)
                try:
                    chunk = await anext(chunks, None)
                finally:
                    reading.discard(scope)
            if chunk is None:
                return
            yield chunk
