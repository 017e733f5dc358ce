"""The device plugins of this node: who offers which resource, and which devices there are.

A plugin registers, by a call to the agent's socket or through `plugins_registry`, and has a task
from then on that follows its lists. For each resource the one that registered last serves. What a
plugin does wrong ends its list: its devices are unhealthy then, and after five minutes the node has
the resource no longer. A plugin that only broke off is asked again for as long as its socket is
the one that it registered with; one that starts anew has to register.

What pods and the node need to know is told by callbacks; nothing here waits for them.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import structlog
import trio
from attrs import define, field, frozen

from state_machines.backoff import BackoffPolicy
from state_machines.device_plugin import (
    DEVICE_PLUGIN,
    UNKNOWN_DEVICES,
    DevicePluginEvent,
    DevicePluginState,
)
from trio_kubelet.devices.client import (
    MAX_ANSWER_FIELDS,
    DeviceList,
    DevicePluginClient,
    DevicePluginError,
    Devices,
    PluginOptions,
)
from trio_kubelet.plugins import MAX_ANSWER_BYTES
from trio_kubelet.rpc import Channel
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.retries import Retries
from trio_kubelet.tasks.threads import run_in_thread
from trio_kubelet.telemetry import Journal, Walk

log = structlog.get_logger("devices")

GRACE_SECONDS = 300.0
"""The time in which a plugin may come back; after that the node has its resource no longer."""
PACE_SECONDS = 0.1
"""Between two lists of a plugin, or two registrations: one that goes on and on costs ten a second.
"""
PACE_SECONDS_OF_DEVICE = 0.0002
"""More for each device of the list: reading it takes a tenth of that."""
RETRY = BackoffPolicy(initial_seconds=0.5, cap_seconds=60.0)
MAX_RESOURCES = 128
"""All of them are amounts of the Node object."""


@frozen(eq=False)
class Endpoint:
    """A plugin that has registered: the way to it, what it wants, and its task."""

    client: DevicePluginClient
    options: PluginOptions
    channel: Channel
    socket: "SocketIdentity | None"
    scope: trio.CancelScope = field(factory=trio.CancelScope)


@frozen
class SocketIdentity:
    """A socket at a path, told from others that were there before or came after."""

    path: str
    device: int
    inode: int
    made_at_ns: int

    @classmethod
    def of(cls, path: str) -> "SocketIdentity | None":
        """The socket that is at a path now; None if there is none. Blocks."""
        try:
            status = Path(path).stat()
        except OSError:
            return None
        return cls(path, status.st_dev, status.st_ino, status.st_mtime_ns)

    def is_there(self) -> bool:
        """True if it is still the one at its path. Blocks."""
        return SocketIdentity.of(self.path) == self


@define(eq=False)
class PluginResource:
    """A resource, and what its plugin has said of it."""

    name: str
    walk: Walk[DevicePluginState, DevicePluginEvent, None]
    listed: DeviceList = field(factory=DeviceList)
    endpoint: Endpoint | None = None
    pre_start: bool = False
    """The plugin that registered last, which may have gone, gets devices ready for each start."""
    registered_at: float = -math.inf
    away_since: float = 0.0
    has_expiry: bool = False
    """A task waits for the time at which it is not awaited any longer."""
    healthy: frozenset[str] = frozenset()
    """The devices that pods may have; none unless the plugin serves."""

    @property
    def state(self) -> DevicePluginState:
        """The state in its machine."""
        return self.walk.state

    @property
    def devices(self) -> Devices:
        """All devices, healthy or not; those of the last list, also of a plugin that is away."""
        return self.listed.devices

    @property
    def is_awaited(self) -> bool:
        """True if its plugin may come, so that pods that need devices wait."""
        return self.state in UNKNOWN_DEVICES or self.state is DevicePluginState.LOST


class DevicePlugins:
    """The resources by name. `running` is set when those of an earlier agent are known.

    `on_change` is called when the node has more or fewer devices, `on_devices(resource, ids)` when
    devices became healthy or unhealthy or a plugin came or went, `on_registered(resource)` after
    each registration, `on_gone(resource)` when a plugin did not come back. One that did not come
    back is forgotten when its place is needed.
    """

    def __init__(self, journal: Journal) -> None:
        self.on_change: Callbacks[[]] = Callbacks()
        self.on_devices: Callbacks[[str, frozenset[str]]] = Callbacks()
        self.on_registered: Callbacks[[str]] = Callbacks()
        self.on_gone: Callbacks[[str]] = Callbacks()
        self._journal = journal
        self._resources: dict[str, PluginResource] = {}
        self._nursery: trio.Nursery | None = None
        self.running = trio.Event()

    def __contains__(self, name: str) -> bool:
        known = self._resources.get(name)
        return known is not None and known.state is not DevicePluginState.GONE

    def get(self, name: str) -> PluginResource | None:
        """A resource that a plugin offers, has offered, or is expected to offer."""
        return self._resources.get(name) if name in self else None

    def served(self) -> Iterable[PluginResource]:
        """The resources whose plugins serve."""
        return [r for r in self._resources.values() if r.state is DevicePluginState.SERVING]

    def amounts(self) -> Mapping[str, tuple[int, int]]:
        """The numbers of all devices and of the healthy ones, by resource.

        A resource that is gone has none, so that the Node object says so.
        """
        return {
            name: (
                0 if each.state is DevicePluginState.GONE else len(each.devices),
                len(each.healthy),
            )
            for name, each in self._resources.items()
        }

    async def run(self, expected: Iterable[str]) -> None:
        """Follow the plugins until cancelled; `expected` are resources that had devices before."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for name in expected:
                self._await(self._begin(name, DevicePluginState.EXPECTED))
            self.running.set()
            await trio.sleep_forever()

    async def connect(self, name: str, path: str) -> Endpoint:
        """Register the plugin at a socket for a resource, in the place of an earlier one.

        Raises DevicePluginError, and ValueError for a path that is none.
        """
        await self.running.wait()
        self._check_place(name)
        if (known := self._resources.get(name)) is not None:
            await trio.sleep_until(known.registered_at + PACE_SECONDS)
        channel = Channel(
            path, max_answer_bytes=MAX_ANSWER_BYTES, max_answer_fields=MAX_ANSWER_FIELDS
        )
        client = DevicePluginClient(resource=name, transport=channel)
        try:
            options = await client.options()
            socket = await run_in_thread(SocketIdentity.of, path)
            # A thread ends its work though the agent ends meanwhile, and nobody is followed then.
            await trio.lowlevel.checkpoint_if_cancelled()
            self._check_place(name)
        except BaseException:
            channel.close()
            raise
        endpoint = Endpoint(client, options, channel, socket)
        known = self._resources.get(name)
        resource = known or self._begin(name, DevicePluginState.REGISTERED)
        if known is not None:
            resource.walk.step(DevicePluginEvent.REGISTER)
        if resource.endpoint is not None:
            resource.endpoint.scope.cancel()
        resource.endpoint, resource.registered_at = endpoint, trio.current_time()
        resource.pre_start = options.pre_start
        assert self._nursery is not None
        log.info("device plugin registered", resource=name, endpoint=path)
        self._nursery.start_soon(self._follow, resource, endpoint, name=f"device plugin {name}")
        self.on_registered.call(name)
        return endpoint

    def _check_place(self, name: str) -> None:
        """Raise DevicePluginError if the node has no place for one more resource."""
        resources = self._resources
        if name in resources or len(resources) < MAX_RESOURCES:
            return
        gone = [each for each in resources.values() if each.state is DevicePluginState.GONE]
        if not gone:
            raise DevicePluginError(f"the node has {MAX_RESOURCES} resources of device plugins")
        oldest = min(gone, key=lambda each: each.away_since)
        del resources[oldest.name]
        if oldest.endpoint is not None:
            oldest.endpoint.scope.cancel()

    async def get_ready(self, name: str, ids: Collection[str]) -> None:
        """Have a resource's devices made ready for a container that starts, if the plugin does so.

        Raises DevicePluginError, also for such a plugin that has gone.
        """
        known = self._resources.get(name)
        if known is None or not known.pre_start:
            return
        if known.endpoint is None:
            why = f"the device plugin of {name} has gone, and is to get the devices ready"
            raise DevicePluginError(why, is_gone=True)
        await known.endpoint.client.pre_start(ids)

    def disconnect(self, endpoint: Endpoint) -> None:
        """A plugin deregisters; what it offered is lost unless another one has its place."""
        endpoint.scope.cancel()

    def _begin(self, name: str, state: DevicePluginState) -> PluginResource:
        walk = Walk(DEVICE_PLUGIN, state, self._journal, name, entered_at=trio.current_time())
        walk.begin("Known")
        resource = self._resources[name] = PluginResource(name, walk)
        return resource

    async def _follow(self, resource: PluginResource, endpoint: Endpoint) -> None:
        """Follow the lists of one plugin until it is replaced or has gone."""
        retries = Retries(RETRY)
        try:
            with endpoint.scope:
                while True:
                    problem = await self._read_lists(resource, endpoint, retries)
                    self._lose(resource, endpoint, problem)
                    await retries.wait()
                    socket = endpoint.socket
                    if socket is None or not await run_in_thread(socket.is_there):
                        break
            self._lose(resource, endpoint, "it deregistered")
            if resource.endpoint is endpoint:
                resource.endpoint = None
        finally:
            endpoint.channel.close()

    async def _read_lists(
        self, resource: PluginResource, endpoint: Endpoint, retries: Retries
    ) -> str:
        """Take the plugin's lists until they end; returns why they did."""

        async def take(listed: DeviceList) -> None:
            self._take(resource, endpoint, listed)
            retries.reset()
            await trio.sleep(PACE_SECONDS + PACE_SECONDS_OF_DEVICE * len(listed.devices))

        try:
            await endpoint.client.follow(take)
        except DevicePluginError as error:
            return str(error)
        except Exception:
            log.exception("device plugin list failed", resource=resource.name)
            return "its list could not be taken"
        return "it ended its list"

    def _take(self, resource: PluginResource, endpoint: Endpoint, listed: DeviceList) -> None:
        if resource.endpoint is not endpoint:
            return
        is_news = resource.state is not DevicePluginState.SERVING
        resource.walk.step(DevicePluginEvent.LIST)
        self._set(resource, listed, listed.healthy, is_news=is_news)

    def _lose(self, resource: PluginResource, endpoint: Endpoint, problem: str) -> None:
        if resource.endpoint is not endpoint:
            return
        was_there = resource.state in (DevicePluginState.SERVING, DevicePluginState.REGISTERED)
        resource.walk.step(DevicePluginEvent.DISCONNECT, cause=problem)
        if was_there:
            log.warning("device plugin lost", resource=resource.name, problem=problem)
            self._await(resource)
            self._set(resource, resource.listed, frozenset(), is_news=True)

    def _set(
        self,
        resource: PluginResource,
        listed: DeviceList,
        healthy: frozenset[str],
        *,
        is_news: bool,
    ) -> None:
        """Take over a list; a plugin that repeats itself wakes nobody."""
        is_same = listed.devices.keys() == resource.devices.keys()
        changed = resource.healthy ^ healthy
        resource.listed, resource.healthy = listed, healthy
        if is_news or changed:
            self._tell(self.on_devices.call, resource.name, changed)
        if changed or not is_same:
            self._tell(self.on_change.call)

    def _await(self, resource: PluginResource) -> None:
        """Give a plugin that is away its time to come back."""
        resource.away_since = trio.current_time()
        if not resource.has_expiry:
            resource.has_expiry = True
            assert self._nursery is not None
            self._nursery.start_soon(self._expire, resource)

    async def _expire(self, resource: PluginResource) -> None:
        """Wait until a plugin is away for long, or is back."""
        while resource.state in (DevicePluginState.EXPECTED, DevicePluginState.LOST):
            left = resource.away_since + GRACE_SECONDS - trio.current_time()
            if left <= 0:
                self._give_up(resource)
                break
            await trio.sleep(left)
        resource.has_expiry = False

    def _give_up(self, resource: PluginResource) -> None:
        resource.walk.step(DevicePluginEvent.EXPIRE)
        log.warning("device plugin did not come back", resource=resource.name)
        resource.listed = DeviceList()
        self._tell(self.on_gone.call, resource.name)
        self._tell(self.on_devices.call, resource.name, frozenset())
        self._tell(self.on_change.call)

    def _tell(self, tell: Callable[..., None], *facts: object) -> None:
        """Call who wants to know; whose bug is no problem of the plugin."""
        try:
            tell(*facts)
        except Exception:
            log.exception("device change handler failed")


def device_amounts(plugins: DevicePlugins) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Return what the node has of each resource, and what of it pods may have."""
    amounts = plugins.amounts()
    return (
        {name: total for name, (total, _) in amounts.items()},
        {name: healthy for name, (_, healthy) in amounts.items()},
    )
