"""The words that tell why a pod was evicted, as the Go kubelet has them. Pure."""

from collections.abc import Iterator, Mapping

from attrs import frozen

from trio_kubelet.config.eviction import Resource
from trio_kubelet.eviction.ranking import Candidate
from trio_kubelet.eviction.thresholds import Threshold
from trio_kubelet.k8s import Quantity
from trio_kubelet.stats.values import ContainerStats

EVICTED = "Evicted"
"""The reason of the pod's event and status."""

THRESHOLD_MET = "EvictionThresholdMet"
"""The reason of the node's event."""

STARVED_RESOURCE = "starved_resource"
OFFENDING_CONTAINERS = "offending_containers"
OFFENDING_CONTAINERS_USAGE = "offending_containers_usage"

_NONE = Quantity(0)


@frozen(kw_only=True)
class Starvation:
    """A threshold that is acted on: of what there is too little, and the amounts as texts."""

    threshold: Threshold
    resource: Resource
    quantity: str
    available: str

    @property
    def event_message(self) -> str:
        """The message of the node's event."""
        return f"Attempting to reclaim {self.resource}"


@frozen(kw_only=True)
class _Offender:
    """A container that uses more than it asked for."""

    name: str
    usage: str
    request: str


def eviction_message(starved: Starvation, victim: Candidate) -> str:
    """The message of the pod's event, status and condition."""
    resource = starved.resource
    parts = [
        f"The node was low on resource: {resource}. ",
        f"Threshold quantity: {starved.quantity}, available: {starved.available}. ",
    ]
    parts += (
        f"Container {each.name} was using {each.usage}, request is {each.request}, "
        f"has larger consumption of {resource}. "
        for each in _offenders(resource, victim)
    )
    return "".join(parts)


def eviction_annotations(starved: Starvation, victim: Candidate) -> Mapping[str, str]:
    """The annotations of the pod's event, for programs."""
    offenders = tuple(_offenders(starved.resource, victim))
    if victim.stats is None:
        return {}
    return {
        OFFENDING_CONTAINERS: ",".join(each.name for each in offenders),
        OFFENDING_CONTAINERS_USAGE: ",".join(each.usage for each in offenders),
        STARVED_RESOURCE: str(starved.resource),
    }


def _offenders(resource: Resource, victim: Candidate) -> Iterator[_Offender]:
    spec = victim.pod.spec
    known = {each.name: each for each in (*spec.containers, *spec.init_containers)}
    for stats in victim.stats.containers if victim.stats is not None else ():
        container = known.get(stats.name)
        used = _used(resource, stats)
        if container is None or used is None:
            continue
        asked = container.resources.requests.get(resource) if container.resources else None
        request = asked or _NONE
        usage = Quantity.from_bytes(used)
        if usage > request:
            yield _Offender(name=container.name, usage=usage.canonical, request=request.canonical)


def _used(resource: Resource, stats: ContainerStats) -> int | None:
    """The bytes that a container uses; None where they are not known, or are not what is short."""
    match resource:
        case Resource.MEMORY:
            memory = stats.usage.memory
            return memory.working_set if memory is not None else None
        case Resource.STORAGE:
            parts = [each.used if each is not None else None for each in (stats.root, stats.logs)]
            known = [each for each in parts if each is not None]
            return sum(known) if len(known) == len(parts) else None
    return None
