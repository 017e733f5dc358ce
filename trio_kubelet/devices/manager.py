"""The devices of pods: whether a pod can have what it needs, which ones it gets, until when.

Admission counts (`refusal`, synchronous): of the healthy devices so many must be left by the other
pods. So each admitted pod finds enough when its task gets them ready (`prepare`): it chooses, asks
the plugin what it prefers, has the devices allocated, and writes them down before a container is
made. The containers' configs take what the plugin answered from the records (`allocation`), as long
as the pod lives; `release` gives the devices back.

A resource whose plugin is not there (yet) is neither unhealthy nor without devices: pods wait for
it, for a time that the agent's settings bound. A pod that runs is never asked for again.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NoReturn

import structlog
import trio
from attrs import define, evolve, frozen

from trio_kubelet.devices.allocation import NOTHING_ALLOCATED, ContainerAllocation
from trio_kubelet.devices.checkpoint import DeviceRecord
from trio_kubelet.devices.choice import (
    Demand,
    IsDevice,
    by_numa_node,
    chosen_devices,
    container_demands,
    needed_devices,
    pod_demands,
    reusable_devices,
)
from trio_kubelet.devices.client import DevicePluginError, allocation_of
from trio_kubelet.devices.health import device_statuses
from trio_kubelet.devices.holders import DeviceHolders, RunningContainer, holding
from trio_kubelet.devices.plugins import DevicePlugins, Endpoint, PluginResource
from trio_kubelet.devices.records import DeviceRecords
from trio_kubelet.errors import ConfigError, unexpected
from trio_kubelet.k8s import Container, Pod, ResourceStatus
from trio_kubelet.tasks.callbacks import Callbacks

log = structlog.get_logger("devices")

RETRY_SECONDS = 10.0
"""Between two attempts to write the checkpoint, where the disk refuses it, or to ask a plugin that
says it is not available."""
WAITING = "WaitingForDevices"
"""Why a pod waits whose plugin has not come yet; none of the Go kubelet's reasons."""


class AllocationError(Exception):
    """A pod cannot have its devices and is rejected; the text is the Go kubelet's."""

    @property
    def message(self) -> str:
        """The message of the rejection."""
        return unexpected(str(self))


class DevicesAwaitedError(Exception):
    """Devices are not there yet. `containers` need them; they are waited for `seconds` more."""

    def __init__(self, why: str, containers: Collection[str], seconds: float) -> None:
        super().__init__(why)
        self.containers = containers
        self.seconds = seconds


@frozen
class _Awaited:
    """An obstacle to a demand, and the words for it when nobody waits any longer."""

    demand: Demand
    why: str
    refusal: str


@define
class _PodWait:
    since: float
    resources: frozenset[str] = frozenset()
    is_told: bool = False


class DeviceManager:
    """Owner of the pods' devices.

    `wait_seconds` is how long a pod waits for a plugin. `on_pods(uids)` is called when something
    changed of devices that pods wait for, `on_health(uids)` when the health of their own did.
    `on_allocated(resource, seconds)` is called after each call of Allocate.
    """

    def __init__(
        self, plugins: DevicePlugins, records: DeviceRecords, *, wait_seconds: float
    ) -> None:
        self.on_pods: Callbacks[[Collection[str]]] = Callbacks()
        self.on_health: Callbacks[[Collection[str]]] = Callbacks()
        self.on_allocated: Callbacks[[str, float]] = Callbacks()
        self.plugins = plugins
        self.records = records
        self._wait_seconds = wait_seconds
        self._waits: dict[str, _PodWait] = {}
        self._started: set[str] = set()
        self._needed: dict[str, frozenset[str]] = {}
        self._nodes: dict[str, Mapping[str, Collection[int]]] = {}
        self._holders = DeviceHolders(records)
        plugins.on_devices.add(self._devices_changed)
        plugins.on_registered.add(self._resource_came)
        plugins.on_gone.add(self._resource_went)
        self._resources_changed = trio.Event()

    async def run(self) -> None:
        """Read the checkpoint, then follow the plugins, until cancelled."""
        await self.records.load()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.plugins.run, tuple(sorted(self.records.resources)))
            while True:
                await self._resources_changed.wait()
                self._resources_changed = trio.Event()
                await self.records.keep()

    def recover(self, running: Iterable[RunningContainer]) -> None:
        """Take up the devices of containers that run. Once, before the first pod."""
        self._holders.recover(running)

    def is_device(self, name: str) -> bool:
        """True if devices of a plugin are counted under this name, or were."""
        return name in self.plugins or bool(self.records.held(name))

    def remember(self, pod: Pod) -> None:
        """Remember of a pod that is admitted which of its resources are devices.

        They stay devices until it is released, though their plugin does not come back meanwhile:
        the pod does not start without them.
        """
        uid = pod.metadata.uid
        if demands := pod_demands(pod, self._counts(uid)):
            self._needed[uid] = frozenset(demand.resource for demand in demands)

    def _counts(self, uid: str) -> IsDevice:
        needed = self._needed.get(uid, frozenset())
        return lambda name: name in needed or self.is_device(name)

    def refusal(self, pod: Pod, others: Sequence[Pod]) -> str:
        """Return why a pod cannot have its devices beside others; "" if it can, or may wait."""
        wanted: dict[str, int] = {}
        for resource, count in needed_devices(pod, self.is_device).items():
            known = self.plugins.get(resource)
            if known is None or (known.is_awaited and self._wait_seconds > 0):
                continue
            if self._holders.in_doubt(resource):
                continue  # The pod's task waits, and says why.
            more = count - len(self.records.held_by(pod.metadata.uid, resource))
            if more > 0 and not known.healthy:
                return unexpected(_no_healthy(resource))
            if more > 0:
                wanted[resource] = more
        left = self._left(wanted.keys(), others) if wanted else {}
        for resource, more in wanted.items():
            if more > left[resource]:
                return unexpected(_too_few(resource, more, max(0, left[resource])))
        return ""

    def _left(self, resources: Collection[str], others: Iterable[Pod]) -> Mapping[str, int]:
        """The numbers of healthy devices that others neither have nor were admitted for."""
        held: dict[str, set[str]] = {resource: set() for resource in resources}
        promised = dict.fromkeys(resources, 0)
        for other in others:
            if other.spec.total_limits.keys().isdisjoint(resources):
                continue
            for resource, needed in needed_devices(other, held.__contains__).items():
                theirs = self.records.held_by(other.metadata.uid, resource)
                held[resource] |= theirs
                promised[resource] += max(0, needed - len(theirs))
        return {
            resource: len(known.healthy - held[resource]) - promised[resource]
            for resource in resources
            if (known := self.plugins.get(resource)) is not None
        }

    def reserve(
        self,
        uid: str,
        chosen: Mapping[Demand, Collection[str]],
        nodes: Mapping[str, Collection[int]],
    ) -> None:
        """Keep devices for a pod that is admitted, and the NUMA nodes for each of its containers.

        It gets them, or others of the same nodes if the plugin prefers these.
        """
        for demand, ids in chosen.items():
            known = self.plugins.get(demand.resource)
            devices = by_numa_node(ids, known.devices if known is not None else {})
            self.records.put(_pending(uid, demand, devices))
        if nodes:
            self._nodes[uid] = nodes

    def unreserve(self, uid: str) -> None:
        """Let go of devices that are kept for a pod and have not been allocated."""
        for record in self.records.of_pod(uid):
            if record.is_reserved:
                self.records.drop(record)
        self._nodes.pop(uid, None)

    async def prepare(self, pod: Pod, running: Collection[str]) -> None:
        """Get ready what the containers of a pod need; `running` are those that have it.

        Raises DevicesAwaitedError, and AllocationError where waiting is no use. Cancelled, it may
        be called again.
        """
        uid = pod.metadata.uid
        self.remember(pod)
        if self._holders.look(pod, running, self._counts(uid)):
            self._tell(self._waits.keys())
        demands = pod_demands(pod, self._counts(uid))
        if not demands:
            return
        for demand in await self._open(pod, demands, running):
            await self._allocate(pod, demand)
        if not await self.records.keep():
            names = tuple(dict.fromkeys(demand.container for demand in demands))
            raise DevicesAwaitedError(
                "the device checkpoint cannot be written", names, RETRY_SECONDS
            )
        self._waits.pop(uid, None)
        self._started.add(uid)

    def is_new_wait(self, uid: str) -> bool:
        """True once for each wait of a pod: it is to be told of."""
        wait = self._waits.get(uid)
        if wait is None or wait.is_told:
            return False
        wait.is_told = True
        return True

    async def allocation(self, pod: Pod, container: Container) -> ContainerAllocation:
        """Return what a container that is to start was allocated.

        Has its plugins get the devices ready first, where they ask for that. Raises ConfigError.
        """
        uid, records = pod.metadata.uid, list[DeviceRecord]()
        for demand in container_demands(pod, container, self._counts(uid)):
            record = self.records.get(uid, demand.container, demand.resource)
            if uid not in self._started and (obstacle := self._obstacle(pod, demand, record)):
                raise ConfigError(obstacle.why, WAITING)
            if record is None or record.is_pending:
                raise ConfigError(
                    f"no devices found allocated in local cache for pod {uid}, "
                    f"container {demand.container}, resource {demand.resource}",
                    WAITING,
                )
            try:
                await self.plugins.get_ready(demand.resource, record.ids)
            except DevicePluginError as error:
                if error.is_gone:
                    raise ConfigError(str(error), WAITING) from error
                raise ConfigError(str(error)) from error
            records.append(record)
        allocation = allocation_of([each.response for each in records])
        return holding(allocation, records) if records else NOTHING_ALLOCATED

    def resource_statuses(self, uid: str) -> Mapping[str, tuple[ResourceStatus, ...]]:
        """Return the health of a pod's devices, by container (KEP-4680)."""
        return device_statuses(self.records.of_pod(uid), self.plugins)

    async def release(self, uid: str) -> None:
        """Give back the devices of a pod whose containers have ended."""
        self._waits.pop(uid, None)
        self._started.discard(uid)
        self._needed.pop(uid, None)
        self._nodes.pop(uid, None)
        if self._holders.forget(uid):
            self._tell(self._waits.keys())
        mine = self.records.of_pod(uid)
        for record in mine:
            self.records.drop(record)
        if mine:
            await self.records.keep()
            self._tell(self._waiting_for({record.resource for record in mine}))

    async def _open(
        self, pod: Pod, demands: Sequence[Demand], running: Collection[str]
    ) -> Sequence[Demand]:
        """Return the demands that are still to be met. Raises as `prepare`.

        Others have their turn after each: a pod may have a thousand, of thousands of devices.
        """
        uid = pod.metadata.uid
        awaited, still_open = [], []
        for demand in demands:
            record = self.records.get(uid, demand.container, demand.resource)
            if record is not None and len(record.ids) != demand.count:
                raise AllocationError(
                    f'pod "{uid}" container "{demand.container}" changed request for resource '
                    f'"{demand.resource}" from {len(record.ids)} to {demand.count}'
                )
            if record is not None and record.is_pending:
                record = None
            if demand.container in running or (record is not None and uid in self._started):
                continue
            if (problem := self._obstacle(pod, demand, record)) is not None:
                awaited.append(problem)
            elif record is None:
                still_open.append(demand)
            await trio.lowlevel.checkpoint()
        if awaited:
            self._wait(uid, awaited)
        return still_open

    def _check(self, pod: Pod, demand: Demand) -> None:
        """Raise as `prepare` if a demand cannot be met now."""
        if (problem := self._obstacle(pod, demand, None)) is not None:
            self._wait(pod.metadata.uid, [problem])

    def _obstacle(self, pod: Pod, demand: Demand, record: DeviceRecord | None) -> _Awaited | None:
        """Return why a demand cannot be met now; None if it can."""
        name, known = demand.resource, self.plugins.get(demand.resource)
        if known is None:
            refusal = f"cannot allocate unregistered device {name}"
            return _Awaited(demand, f"no plugin offers {name}", refusal)
        if known.is_awaited:
            return _Awaited(
                demand, f"the device plugin of {name} has not registered", _no_healthy(name)
            )
        if record is not None:
            if record.ids <= known.healthy:
                return None
            why = "previously allocated devices are no longer healthy"
            return _Awaited(demand, why, f"{why}; cannot allocate unhealthy devices {name}")
        if not known.healthy:
            raise AllocationError(_no_healthy(name))
        if doubtful := self._holders.in_doubt(name):
            why = (
                f"nobody knows which devices {name} pods have that ran when the record of devices "
                f"was damaged: {', '.join(sorted(doubtful))}"
            )
            return _Awaited(demand, why, _too_few(name, demand.count, 0))
        free = self._free(pod, demand, known)
        if len(free) >= demand.count:
            return None
        refusal = _too_few(name, demand.count, len(free))
        if len(known.healthy) < demand.count:
            raise AllocationError(refusal)
        # Admission counted them as free: they are with pods that are ending.
        return _Awaited(demand, f"other pods that are ending have devices {name}", refusal)

    def _free(self, pod: Pod, demand: Demand, known: PluginResource) -> frozenset[str]:
        """The healthy devices that a container can have: those of its pod, and nobody's."""
        mine = self._reusable(pod, demand) | self._reserved(pod, demand)
        return known.healthy - (self.records.held(demand.resource) - mine)

    def _reserved(self, pod: Pod, demand: Demand) -> frozenset[str]:
        record = self.records.get(pod.metadata.uid, demand.container, demand.resource)
        return record.ids if record is not None and record.is_pending else frozenset()

    def _reusable(self, pod: Pod, demand: Demand) -> frozenset[str]:
        mine = self.records.of_resource(pod.metadata.uid, demand.resource)
        return reusable_devices(pod, mine, demand.container)

    def _wait(
        self, uid: str, awaited: Sequence[_Awaited], retry_seconds: float = math.inf
    ) -> NoReturn:
        """Raise that a pod waits; or that it is rejected, after the time for that."""
        wait = self._waits.setdefault(uid, _PodWait(trio.current_time()))
        wait.resources = frozenset(each.demand.resource for each in awaited)
        left = wait.since + self._wait_seconds - trio.current_time()
        if left <= 0:
            raise AllocationError(awaited[0].refusal)
        containers = tuple(dict.fromkeys(each.demand.container for each in awaited))
        raise DevicesAwaitedError(awaited[0].why, containers, min(max(left, 1.0), retry_seconds))

    async def _allocate(self, pod: Pod, demand: Demand) -> None:
        """Choose devices for one demand and have them allocated. Raises as `prepare`."""
        self._check(pod, demand)
        known = self.plugins.get(demand.resource)
        endpoint = known.endpoint if known is not None else None
        if known is None or endpoint is None:
            self._wait_for_plugin(pod.metadata.uid, demand)
        preferred = await self._preferred(pod, demand, known, endpoint)
        # What others have chosen meanwhile is not free any more.
        self._check(pod, demand)
        free = self._free(pod, demand, known)
        reusable = self._reusable(pod, demand) & known.healthy
        preferred = preferred or self._reserved(pod, demand) & free
        if len(preferred) < demand.count:
            preferred |= self._near(pod, demand, known, free)
        chosen = chosen_devices(demand.count, reusable, preferred, free)
        record = _pending(pod.metadata.uid, demand, by_numa_node(chosen, known.devices))
        if lack := self.records.lack_of_room(record):
            raise AllocationError(lack)
        self.records.put(record)
        try:
            answered = await self._ask(endpoint, demand, record)
        except BaseException:
            self.records.drop(record)
            raise
        self.records.put(answered)

    async def _ask(self, endpoint: Endpoint, demand: Demand, record: DeviceRecord) -> DeviceRecord:
        began_at = trio.current_time()
        try:
            response = await endpoint.client.allocate(record.ids)
        except DevicePluginError as error:
            if error.is_gone:
                self._wait_for_plugin(record.pod_uid, demand, str(error))
            raise AllocationError(str(error)) from error
        finally:
            self.on_allocated.call(demand.resource, trio.current_time() - began_at)
        answered = evolve(record, response=response, is_pending=False)
        if lack := self.records.lack_of_room(answered):
            raise AllocationError(lack)
        return answered

    def _wait_for_plugin(self, uid: str, demand: Demand, refusal: str = "") -> NoReturn:
        """Raise as `_wait`: the plugin has gone, or says of itself that it is not available."""
        why = f"the device plugin of {demand.resource} has gone"
        awaited = _Awaited(demand, why, refusal or _no_healthy(demand.resource))
        self._wait(uid, [awaited], RETRY_SECONDS)

    async def _preferred(
        self, pod: Pod, demand: Demand, known: PluginResource, endpoint: Endpoint
    ) -> frozenset[str]:
        """Ask the plugin which of the free devices are the best, if it has a say.

        Not where the pod has as many to use again. Raises as `prepare`.
        """
        reusable = self._reusable(pod, demand) & known.healthy
        if not endpoint.options.preferences or len(reusable) >= demand.count:
            return frozenset()
        free = self._free(pod, demand, known)
        near = self._near(pod, demand, known, free)
        free = near | reusable if len(near | reusable) >= demand.count else free
        try:
            return await endpoint.client.preferred(free, reusable, demand.count) & free
        except DevicePluginError as error:
            if error.is_gone:
                self._wait_for_plugin(pod.metadata.uid, demand, str(error))
            raise AllocationError(str(error)) from error

    def _near(
        self, pod: Pod, demand: Demand, known: PluginResource, free: Collection[str]
    ) -> frozenset[str]:
        """The free devices of the nodes from which the container was to be served."""
        nodes = set(self._nodes.get(pod.metadata.uid, {}).get(demand.container, ()))
        return frozenset(e for e in free if not nodes.isdisjoint(known.devices[e].numa_nodes))

    def _resource_came(self, resource: str) -> None:
        self.records.know(resource)
        self._resources_changed.set()

    def _resource_went(self, resource: str) -> None:
        if holders := self.records.pods_with(resource):
            self.on_health.call(holders)  # Nobody knows any longer how their devices are.
        waiting = (names for uid, names in self._needed.items() if uid not in self._started)
        if any(resource in names for names in waiting):
            return  # The next agent is to know that it is a device.
        self.records.forget_resource(resource)
        self._resources_changed.set()

    def _devices_changed(self, resource: str, changed: frozenset[str]) -> None:
        """Tell the pods that wait, and those whose devices became healthy or unhealthy."""
        if resource in self.plugins and resource not in self.records.resources:
            self._resource_came(resource)  # It was given up, and lists devices after all.
        holders = self.records.pods_with(resource) if changed else ()
        theirs = {uid for uid in holders if self.records.held_by(uid, resource) & changed}
        if theirs:
            self.on_health.call(theirs)
        self._tell(self._waiting_for({resource}))

    def _waiting_for(self, resources: AbstractSet[str]) -> AbstractSet[str]:
        """The UIDs of pods that wait for devices of one of these resources."""
        return {uid for uid, wait in self._waits.items() if wait.resources & resources}

    def _tell(self, uids: Collection[str]) -> None:
        if uids:
            self.on_pods.call(uids)


def _pending(uid: str, demand: Demand, devices: Mapping[int, tuple[str, ...]]) -> DeviceRecord:
    """The record of devices that the plugin has not allocated yet."""
    return DeviceRecord(
        pod_uid=uid,
        container=demand.container,
        resource=demand.resource,
        devices=devices,
        is_pending=True,
    )


def _no_healthy(resource: str) -> str:
    return f"no healthy devices present; cannot allocate unhealthy devices {resource}"


def _too_few(resource: str, requested: int, available: int) -> str:
    return (
        f"requested number of devices unavailable for {resource}. "
        f"Requested: {requested}, Available: {available}"
    )
