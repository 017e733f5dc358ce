"""The resources that all containers of a pod ask for together.

Containers run at the same time, so theirs add up. Init containers run one after the other
before them, each beside the restartable ones that were started earlier; the pod needs the
larger of the two. Pod-level resources and overhead are not looked at here.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from trio_kubelet.k8s.container import Container, ContainerRestartPolicy
from trio_kubelet.k8s.quantity import Quantity

if TYPE_CHECKING:  # A spec keeps its own totals, so its module imports this one.
    from trio_kubelet.k8s.pod import PodSpec

Amounts = Mapping[str, Quantity]


def container_requests(container: Container) -> Amounts:
    """Return what is set aside for a container."""
    return container.resources.requests if container.resources is not None else {}


def container_limits(container: Container) -> Amounts:
    """Return what a container may use at most; what is absent is not limited."""
    return container.resources.limits if container.resources is not None else {}


def total_requests(spec: "PodSpec") -> dict[str, Quantity]:
    """Return what the containers of a pod need together at any one time."""
    return _total(spec, container_requests)


def total_limits(spec: "PodSpec") -> dict[str, Quantity]:
    """Return the sum of the limits that are set; a container without one adds nothing."""
    return _total(spec, container_limits)


def is_sidecar(container: Container) -> bool:
    """True if an init container is restartable and goes on running beside the others (KEP-753)."""
    return container.restart_policy == ContainerRestartPolicy.ALWAYS


def passing_containers(spec: "PodSpec") -> frozenset[str]:
    """The names of containers that end before the next one starts."""
    return frozenset(each.name for each in spec.init_containers if not is_sidecar(each))


def most_at_once(spec: "PodSpec", amounts: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """The most of each resource that a pod has at any one time, by the amounts of its containers.

    `amounts` are by the names of containers and of resources.
    """
    peak: dict[str, int] = {}
    beside: dict[str, int] = {}
    for container in spec.init_containers:
        for name, amount in amounts.get(container.name, {}).items():
            together = beside.get(name, 0) + amount
            peak[name] = max(peak.get(name, 0), together)
            if is_sidecar(container):
                beside[name] = together
    for container in spec.containers:
        for name, amount in amounts.get(container.name, {}).items():
            beside[name] = beside.get(name, 0) + amount
    return {name: max(peak.get(name, 0), beside.get(name, 0)) for name in {**peak, **beside}}


def _total(spec: "PodSpec", amounts_of: Callable[[Container], Amounts]) -> dict[str, Quantity]:
    beside: dict[str, Quantity] = {}
    peak: dict[str, Quantity] = {}
    for container in spec.init_containers:
        # What the container does not ask for is as large as before: only its own names are looked
        # at, or many sidecars with many names would cost the product of both.
        together = {name: _plus(beside.get(name), q) for name, q in amounts_of(container).items()}
        peak.update({name: max(peak.get(name, _ZERO), q) for name, q in together.items()})
        if is_sidecar(container):
            beside.update(together)
    return _larger(peak, _sum((beside, *(amounts_of(one) for one in spec.containers))))


def _sum(parts: Iterable[Amounts]) -> dict[str, Quantity]:
    total: dict[str, Quantity] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = _plus(total.get(name), amount)
    return total


def _plus(sum_so_far: Quantity | None, amount: Quantity) -> Quantity:
    return amount if sum_so_far is None else sum_so_far + amount


def _larger(one: Amounts, other: Amounts) -> dict[str, Quantity]:
    names = {**one, **other}
    return {name: max(one.get(name, _ZERO), other.get(name, _ZERO)) for name in names}


_ZERO = Quantity(0)
