"""An API server in memory, and the references of one node to it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from attrs import field, frozen

from tests.apiserver.server import ApiServer
from tests.trio_clock import TrioClock
from trio_kubelet.k8s import ConfigMap, ObjectMeta, Secret, ServiceAccount
from trio_kubelet.k8s.client import ApiClient
from trio_kubelet.k8s.kinds import CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS
from trio_kubelet.references import References

NAMESPACE = "shop"


@frozen
class Told:
    """Which pods were told that something changed, in order."""

    uids: list[str] = field(factory=list)
    news: list[trio.Event] = field(factory=lambda: [trio.Event()])

    def __call__(self, uid: str) -> None:
        self.uids.append(uid)
        self.news[0].set()

    async def wait(self, seconds: float = 300) -> list[str]:
        """Wait until a pod is told; return all that were told since the last time."""
        with trio.fail_after(seconds):
            await self.news[0].wait()
        self.news[0] = trio.Event()
        uids = sorted(self.uids)
        self.uids.clear()
        return uids


@frozen
class Cluster:
    """The server, its client, the node's references, and whom they told."""

    server: ApiServer
    api: ApiClient
    references: References
    told: Told

    def put_map(self, name: str, *, immutable: bool = False, **data: str) -> None:
        """Create a config map, or replace it."""
        value = ConfigMap(
            metadata=ObjectMeta(name=name, namespace=NAMESPACE),
            data=data,
            immutable=immutable or None,
        )
        if self.server.find(CONFIG_MAPS, name, NAMESPACE) is None:
            self.server.create(CONFIG_MAPS, value)
        else:
            self.server.update(CONFIG_MAPS, value)

    def put_secret(self, name: str, **data: bytes) -> None:
        """Create a secret."""
        metadata = ObjectMeta(name=name, namespace=NAMESPACE)
        self.server.create(SECRETS, Secret(metadata=metadata, data=data))

    def delete_map(self, name: str) -> None:
        """Delete a config map."""
        self.server.delete(CONFIG_MAPS, name, NAMESPACE)

    def another_node(self) -> References:
        """References of another node, which do not run yet."""
        return References(self.server.client(), clock=TrioClock())

    def asked(self, verb: str, resource: str = "configmaps") -> int:
        """How often the server was asked so."""
        return sum((each.verb, each.resource) == (verb, resource) for each in self.server.requests)

    def watched(self, resource: str = "configmaps") -> int:
        """How many watches of objects of a kind are open."""
        return sum(stream.resource[1] == resource for stream in self.server.watches)


@asynccontextmanager
async def open_cluster(strategy: str = "Watch", **options: bool) -> AsyncIterator[Cluster]:
    """A server with a service account, and references that run until the end of the block."""
    server, told = ApiServer(), Told()
    account = ServiceAccount(metadata=ObjectMeta(name="robot", namespace=NAMESPACE))
    server.create(SERVICE_ACCOUNTS, account)
    api = server.client()
    references = References(api, clock=TrioClock(), strategy=strategy, **options)
    references.on_change.add(told)
    async with trio.open_nursery() as nursery:
        await nursery.start(references.run)
        yield Cluster(server, api, references, told)
        nursery.cancel_scope.cancel()
