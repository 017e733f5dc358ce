"""The clients that an agent needs, all of one kubeconfig.

They have pools of their own, so that no burst of one kind of requests starves another: the main
one for reads and writes, with as many watches beside it as are needed; the heartbeat's without
a rate limit, and with a deadline that is shorter than the lease; the events' with a rate of theirs;
and one to review those who ask the node, so that no flood of bad tokens holds up the rest.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
from attrs import frozen

from trio_kubelet.k8s.client.client import ApiClient, RequestLimits
from trio_kubelet.k8s.client.identity import Identity
from trio_kubelet.k8s.client.kubeconfig import Kubeconfig, read_kubeconfig
from trio_kubelet.k8s.client.rate_limit import UNLIMITED, RateLimit
from trio_kubelet.k8s.client.transport import (
    EVENTS,
    HEARTBEAT,
    REQUESTS,
    REVIEWS,
    WATCHES,
    PoolSize,
    RotatingTransport,
    open_pool,
    proxy_from_environment,
)
from trio_kubelet.tasks.clock import Clock, SystemClock
from trio_kubelet.tasks.threads import run_in_thread

REVIEW_SECONDS = 10.0
"""The time that a client of the node waits for the API server to know it."""

REVIEW_RATE_LIMIT = RateLimit(50, 100)


@frozen(kw_only=True)
class ClientLimits:
    """The pace of requests, that of events, and the deadline of the heartbeat's requests."""

    rate: RateLimit = UNLIMITED
    """kubeAPIQPS and kubeAPIBurst."""
    events: RateLimit = UNLIMITED
    """eventRecordQPS and eventBurst."""
    heartbeat_seconds: float = 10.0


@frozen
class ApiClients:
    """One server, one identity, four clients; only `main` is for watches."""

    server: str
    main: ApiClient
    heartbeat: ApiClient
    events: ApiClient
    reviews: ApiClient
    _transports: tuple[RotatingTransport, ...] = ()

    async def renew_connections(self) -> None:
        """Use the newest certificate from now on, though nothing is asked just now.

        Requests under way end on the connections that they have, watches go on over new ones.
        Whoever waits for the API server's return tries again. Raises CredentialError.
        """
        for transport in self._transports:
            await transport.renew()
        for client in (self.main, self.heartbeat, self.events, self.reviews):
            client.recovery.tell()


@asynccontextmanager
async def open_api_clients(
    kubeconfig: Path | Kubeconfig,
    *,
    limits: ClientLimits | None = None,
    clock: Clock | None = None,
    rotated: Callable[[], bytes] | None = None,
    wrap: Callable[[httpx.AsyncBaseTransport], httpx.AsyncBaseTransport] | None = None,
) -> AsyncIterator[ApiClients]:
    """Make the clients of a kubeconfig, and close their connections at the end.

    `rotated` is a certificate that the agent renews (`Identity`); `wrap` makes the transports of
    others, which see each request. Raises KubeconfigError. The server need not be there: nothing
    is connected yet.
    """
    if isinstance(kubeconfig, Path):
        kubeconfig = await run_in_thread(read_kubeconfig, kubeconfig)
    clock, limits = clock or SystemClock(), limits or ClientLimits()
    cluster = kubeconfig.cluster
    identity = Identity(kubeconfig, clock, rotated)
    proxy = cluster.proxy_url or proxy_from_environment(cluster.server)

    transports: list[RotatingTransport] = []

    def pool(size: PoolSize, *, watches: bool = False) -> httpx.AsyncBaseTransport:
        make = partial(open_pool, size=size, proxy_url=proxy)
        transport = RotatingTransport(identity.ssl_context, make, size.connections, watches=watches)
        transports.append(transport)
        return transport if wrap is None else wrap(transport)

    client = partial(ApiClient, cluster.server, credentials=identity, clock=clock)
    clients = ApiClients(
        server=cluster.server,
        main=client(
            pool(REQUESTS),
            pool(WATCHES, watches=True),
            limits=RequestLimits(rate=limits.rate),
        ),
        heartbeat=client(
            pool(HEARTBEAT),
            limits=RequestLimits(deadline_seconds=limits.heartbeat_seconds),
        ),
        events=client(
            pool(EVENTS),
            limits=RequestLimits(rate=limits.events),
        ),
        reviews=client(
            pool(REVIEWS),
            limits=RequestLimits(rate=REVIEW_RATE_LIMIT, deadline_seconds=REVIEW_SECONDS),
        ),
        transports=tuple(transports),
    )
    async with AsyncExitStack() as stack:
        for one in (clients.main, clients.heartbeat, clients.events, clients.reviews):
            stack.push_async_callback(one.aclose)
        yield clients
