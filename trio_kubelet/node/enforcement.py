"""Limits of the cgroups above the pods and of those beside them (`enforceNodeAllocatable`).

The cgroup of all pods gets allocatable without the eviction thresholds, so that eviction has room
to act before the kernel does. Without that enforcement (`pods`) it gets the whole machine: the CPU
shares are needed all the same, the kernel's default would starve pods. The cgroups of the system
and of Kubernetes' own processes are the administrator's: they are not made here, and one that is
missing or refuses its limits is an error at the start. The pods' cgroup may refuse its limits
because pods use more already; it is tried again until they have ended or were evicted.
"""

from collections.abc import Awaitable, Callable, Collection, Iterator

import structlog
import trio
from attrs import define, field, frozen

from trio_kubelet.config.gates import FeatureGates
from trio_kubelet.config.model import KubeletConfiguration
from trio_kubelet.config.qos_reserve import percentage
from trio_kubelet.errors import StartError
from trio_kubelet.k8s import Quantity
from trio_kubelet.kernel.system_bus import BusError
from trio_kubelet.node.allocatable import (
    CPU,
    MEMORY,
    Reservations,
    Resources,
    allocatable,
    reserved,
)
from trio_kubelet.node.resources import NodeResources
from trio_kubelet.resources import CgroupConfig, Cgroups
from trio_kubelet.resources.cgroup_config import hugepage_limits, milli_cpu_to_shares
from trio_kubelet.resources.cgroup_names import kubepods_name
from trio_kubelet.resources.cgroups import MissingCgroup
from trio_kubelet.resources.qos_memory import MemoryReserve
from trio_kubelet.telemetry import EventRecorder, EventType

log = structlog.get_logger("cgroups")

PODS = "pods"
SYSTEM_RESERVED = "system-reserved"
KUBE_RESERVED = "kube-reserved"
_COMPRESSIBLE = "-compressible"
PIDS = "pid"
"""A resource that can be reserved but is in no node's capacity."""

ENFORCED_REASON = "NodeAllocatableEnforced"
FAILED_REASON = "FailedNodeAllocatableEnforcement"
RETRY_SECONDS = 60.0


@frozen(kw_only=True)
class ReservedCgroup:
    """A cgroup whose processes are held to what is reserved for them.

    `level` is the value of enforceNodeAllocatable, `cgroup` its name in the configuration.
    `config` is None if nothing is reserved.
    """

    level: str
    cgroup: str
    config: CgroupConfig | None

    def failed_message(self, why: object) -> str:
        """Return the event's message when the limits could not be written."""
        title = self.level.replace("-", " ").title()
        return f'Failed to enforce {title} Cgroup Limits on "{self.cgroup}": {why}'

    @property
    def updated_message(self) -> str:
        """The event's message when the limits are written."""
        whose = self.level.removesuffix(_COMPRESSIBLE).replace("-", " ")
        return f"Updated limits on {whose} cgroup {self.cgroup}"


def pods_cgroup_config(
    capacity: Resources,
    reservations: Reservations,
    enforced: Collection[str],
    max_pids: int | None = None,
) -> CgroupConfig:
    """The values of the cgroup of all pods.

    `enforced` is enforceNodeAllocatable; `max_pids` is how many processes the kernel allows in
    all, None if unknown.
    """
    whole = {**capacity, **({PIDS: Quantity(max_pids)} if max_pids is not None else {})}
    kept = Reservations(system=reservations.system, kube=reservations.kube)
    taken = reserved(whole, kept) if PODS in enforced else {}
    nothing = Quantity(0)
    left = {name: max(nothing, amount - taken.get(name, nothing)) for name, amount in whole.items()}
    return CgroupConfig(
        cpu_shares=milli_cpu_to_shares(left[CPU].milli_value),
        memory_limit_bytes=left[MEMORY].value,
        pids_limit=left[PIDS].value if PIDS in left else None,
        hugepage_limits=hugepage_limits(left, ()),
    )


def reserved_cgroup_config(
    amounts: Resources, *, compressible_only: bool = False, keeps_reserved: bool = False
) -> CgroupConfig | None:
    """The values of a cgroup for which these amounts are reserved; None if there are none.

    CPU is what can be compressed: who gets less of it is slower. `keeps_reserved` (gate
    MemoryQoS): what is reserved is not taken back either.
    """
    if not amounts:
        return None
    shares = milli_cpu_to_shares(amounts[CPU].milli_value) if CPU in amounts else None
    if compressible_only:
        return CgroupConfig(cpu_shares=shares)
    memory = amounts[MEMORY].value if MEMORY in amounts else None
    return CgroupConfig(
        cpu_shares=shares,
        memory_limit_bytes=memory,
        memory_min_bytes=memory if keeps_reserved else None,
        pids_limit=amounts[PIDS].value if PIDS in amounts else None,
    )


def reserved_cgroups(
    configuration: KubeletConfiguration, reservations: Reservations, *, keeps_reserved: bool
) -> Iterator[ReservedCgroup]:
    """Yield the cgroups that enforceNodeAllocatable holds to their reservations."""
    for compressible in ("", _COMPRESSIBLE):
        for level, cgroup, amounts in (
            (SYSTEM_RESERVED, configuration.system_reserved_cgroup, reservations.system),
            (KUBE_RESERVED, configuration.kube_reserved_cgroup, reservations.kube),
        ):
            if level + compressible in configuration.enforce_node_allocatable:
                config = reserved_cgroup_config(
                    amounts,
                    compressible_only=bool(compressible),
                    keeps_reserved=keeps_reserved,
                )
                yield ReservedCgroup(level=level + compressible, cgroup=cgroup, config=config)


def memory_reserve(
    configuration: KubeletConfiguration, gates: FeatureGates, resources: NodeResources
) -> MemoryReserve | None:
    """The memory that lower QoS classes may not use; None if they may use all."""
    percent = percentage(configuration.qos_reserved.get(MEMORY, ""))
    if percent is None:
        return None
    if not gates["QOSReserved"]:
        log.warning("qosReserved has no effect without the feature gate QOSReserved")
        return None
    kept = resources.reservations
    left = allocatable(resources.machine, Reservations(system=kept.system, kube=kept.kube))
    return MemoryReserve(percent=percent, allocatable_bytes=left[MEMORY].value)


@frozen(kw_only=True)
class Enforcement:
    """The limits to hold: those of all pods, whose cgroup is `pods_cgroup`, and of the others."""

    pods_cgroup: str
    pods: CgroupConfig
    reserved: tuple[ReservedCgroup, ...] = ()


def enforcement(
    configuration: KubeletConfiguration,
    resources: NodeResources,
    *,
    max_pids: int | None,
    keeps_reserved: bool,
) -> Enforcement:
    """The limits that a configuration asks for on a node with these resources."""
    found = reserved_cgroups(configuration, resources.reservations, keeps_reserved=keeps_reserved)
    return Enforcement(
        pods_cgroup=kubepods_name(configuration.cgroup_root).cgroupfs_path,
        pods=pods_cgroup_config(
            resources.machine,
            resources.reservations,
            configuration.enforce_node_allocatable,
            max_pids,
        ),
        reserved=tuple(found),
    )


@define(eq=False)
class Enforcer:
    """Writes the limits, and tells of it with events of the node."""

    _cgroups: Cgroups
    _recorder: EventRecorder
    _enforcement: Enforcement
    _pods_limited: bool = field(init=False, default=False)

    async def start(self) -> None:
        """Make the cgroups above the pods and limit those beside them. Raises StartError.

        Where the pods' cgroup refuses its limits it is made without them, for `run` to try again.
        Raises OSError or BusError if it cannot be made at all.
        """
        if not await self._limit_pods(self._cgroups.start):
            await self._cgroups.start()
        for each in self._enforcement.reserved:
            await self._limit_reserved(each)

    async def run(self) -> None:
        """Try again once a minute until the pods' cgroup has its limits."""
        while not self._pods_limited:
            await trio.sleep(RETRY_SECONDS)
            await self._limit_pods(self._cgroups.limit_pods)

    async def _limit_pods(self, write: Callable[[CgroupConfig], Awaitable[None]]) -> bool:
        wanted = self._enforcement
        try:
            await write(wanted.pods)
        except (OSError, BusError) as error:
            message = f'Failed to update Node Allocatable Limits "{wanted.pods_cgroup}": {error}'
            self._recorder.node(EventType.WARNING, FAILED_REASON, message)
            return False
        self._pods_limited = True
        message = "Updated Node Allocatable limit across pods"
        self._recorder.node(EventType.NORMAL, ENFORCED_REASON, message)
        return True

    async def _limit_reserved(self, wanted: ReservedCgroup) -> None:
        if wanted.config is None:
            why = f'"{wanted.cgroup}" cgroup is not configured properly'
            raise self._failure(wanted, why, "reserve something for it")
        try:
            await self._cgroups.limit_existing(wanted.cgroup, wanted.config)
        except MissingCgroup as error:
            raise self._failure(wanted, error, "make it before the agent starts") from error
        except (OSError, BusError) as error:
            raise self._failure(wanted, error, "reserve more than it uses") from error
        self._recorder.node(EventType.NORMAL, ENFORCED_REASON, wanted.updated_message)

    def _failure(self, wanted: ReservedCgroup, why: object, remedy: str) -> StartError:
        message = wanted.failed_message(why)
        self._recorder.node(EventType.WARNING, FAILED_REASON, message)
        return StartError(
            f'{message}; {remedy}, or take "{wanted.level}" out of enforceNodeAllocatable'
        )
