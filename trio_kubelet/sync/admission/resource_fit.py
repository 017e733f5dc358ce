"""The fit of a pod: requests against what is allocatable, and host ports."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from trio_kubelet.k8s import (
    HUGEPAGES_PREFIX,
    Pod,
    Quantity,
)
from trio_kubelet.k8s.totals import is_sidecar
from trio_kubelet.resources import pod_requests
from trio_kubelet.sync.admission.admission_result import Rejection, Shortage, predicate_failed

ZERO = Quantity(0)
PODS = "pods"

_FIRST = (PODS, "cpu", "memory", "ephemeral-storage")
"""The order in which shortages are told; all others follow by name."""

HostPort = tuple[str, str, int]
ANY_ADDRESS = frozenset({"", "0.0.0.0", "::"})


def shortages(
    pod: Pod,
    others: Sequence[Pod],
    limits: Mapping[str, Quantity],
    *,
    limits_are_complete: bool,
) -> tuple[Shortage, ...]:
    """The shortages, of which the pod is told the first.

    `limits` is what all pods may ask for together, `pods` among it. An extended resource that
    is not in it is somebody else's to count (an extender of the scheduler, or a claim). Of huge
    pages that are not in it there are none: the machine is known from the start. Of others there
    is none if `limits_are_complete`; else they are not checked.
    """
    known = {*limits, *(_FIRST if limits_are_complete else ())}
    asked = {
        name: amount
        for name, amount in pod_requests(pod).items()
        if amount > ZERO and (name in known or name.startswith(HUGEPAGES_PREFIX))
    }
    wanted = {PODS: Quantity(1), **asked}
    used = {PODS: Quantity(len(others)), **_sums(others, asked)}
    return tuple(
        Shortage(
            resource=name,
            requested=number(name, wanted[name]),
            used=number(name, used[name]),
            capacity=number(name, limits.get(name, ZERO)),
        )
        for name in sorted(wanted, key=_rank)
        if used[name] + wanted[name] > limits.get(name, ZERO)
    )


def _sums(pods: Iterable[Pod], names: Iterable[str]) -> dict[str, Quantity]:
    """The amounts that pods ask for together, of the resources of these names."""
    sums = dict.fromkeys(names, ZERO)
    for pod in pods if sums else ():
        requests = pod_requests(pod)
        for name in sums:
            if name in requests:
                sums[name] += requests[name]
    return sums


def ports_taken(pod: Pod, others: Iterable[Pod]) -> Rejection | None:
    """Reject a pod that wants a port of the host which another one has."""
    wanted = _addresses_by_port(_host_ports(pod))
    held = _addresses_by_port(
        port for other in others if wanted for port in _host_ports(other) if port[::2] in wanted
    )
    if not any(_collide(wanted[port], addresses) for port, addresses in held.items()):
        return None
    return predicate_failed(
        "NodePorts", "node(s) didn't have free ports for the requested pod ports"
    )


def request(pod: Pod, resource: str) -> int:
    """The amount that a pod takes of a resource, as shortages count it."""
    if resource == PODS:
        return 1
    return number(resource, pod_requests(pod).get(resource, ZERO))


def number(resource: str, amount: Quantity) -> int:
    """An amount as messages have it: millicores of cpu, whole units of all else."""
    return amount.milli_value if resource == "cpu" else amount.value


def _rank(name: str) -> tuple[int, str]:
    return (_FIRST.index(name) if name in _FIRST else len(_FIRST), name)


def _host_ports(pod: Pod) -> Iterable[HostPort]:
    """The ports of the host that a pod holds all its life; a sidecar's too."""
    sidecars = (container for container in pod.spec.init_containers if is_sidecar(container))
    for container in (*pod.spec.containers, *sidecars):
        for port in container.ports:
            if port.host_port:
                yield port.protocol or "TCP", port.host_ip, port.host_port


def _addresses_by_port(ports: Iterable[HostPort]) -> Mapping[tuple[str, int], set[str]]:
    """The addresses of each protocol and port, so that many ports cost as much as there are."""
    addresses: dict[tuple[str, int], set[str]] = {}
    for protocol, address, port in ports:
        addresses.setdefault((protocol, port), set()).add(address)
    return addresses


def _collide(some: AbstractSet[str], others: AbstractSet[str]) -> bool:
    return not (some.isdisjoint(others) and ANY_ADDRESS.isdisjoint(some | others))
