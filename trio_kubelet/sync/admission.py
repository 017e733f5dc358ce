"""Whether a pod may run on this node beside those that do: a list of pure checks.

The first check that has something against a pod rejects it; the reason and the message are the
Go kubelet's, as users see them in `kubectl get pods`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from attrs import frozen

from trio_kubelet.k8s import Pod, Quantity
from trio_kubelet.resources import pod_requests

ZERO = Quantity("0")

SAFE_SYSCTLS = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ping_group_range",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.tcp_wmem",
    }
)
"""Sysctls that belong to the pod's own namespaces and disturb nobody else."""


@frozen(kw_only=True)
class Rejection:
    """Why a pod is not admitted, in the words of its event."""

    reason: str
    message: str


@frozen(kw_only=True)
class Admission:
    """Decides with the node's limits. Call it with the pod and all others that hold resources.

    `max_pods` is maxPods, `allowed_sysctls` are the names and patterns of allowedUnsafeSysctls,
    `allocatable` what pods may ask for in all (API: Node.status.allocatable).
    """

    max_pods: int
    allowed_sysctls: tuple[str, ...] = ()
    allocatable: Callable[[], Mapping[str, Quantity]]

    def __call__(self, pod: Pod, active: Iterable[Pod]) -> Rejection | None:
        """None admits the pod."""
        others = tuple(active)
        return (
            _forbidden_sysctl(pod, self.allowed_sysctls)
            or _unknown_runtime_class(pod)
            or _ports_taken(pod, others)
            or _too_many(others, self.max_pods)
            or _does_not_fit(pod, others, self.allocatable())
        )


def _forbidden_sysctl(pod: Pod, allowed: Sequence[str]) -> Rejection | None:
    context = pod.spec.security_context
    for sysctl in context.sysctls if context else ():
        name = sysctl.name.replace("/", ".")
        if pod.spec.host_network and name.startswith("net."):
            return _sysctl(f'sysctl "{name}" not allowed with host net enabled')
        if pod.spec.host_ipc and name.startswith(("kernel.shm", "kernel.msg", "fs.mqueue.")):
            return _sysctl(f'sysctl "{name}" not allowed with host ipc enabled')
        if name not in SAFE_SYSCTLS and not any(_covers(pattern, name) for pattern in allowed):
            return _sysctl(f'forbidden sysctl: "{name}" not allowlisted')
    return None


def _sysctl(message: str) -> Rejection:
    return Rejection(reason="SysctlForbidden", message=message)


def _covers(pattern: str, name: str) -> bool:
    pattern = pattern.replace("/", ".")
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _unknown_runtime_class(pod: Pod) -> Rejection | None:
    """Without an API server there are no RuntimeClasses; another runtime is never the answer."""
    name = pod.spec.runtime_class_name
    if not name:
        return None
    return Rejection(reason="RuntimeClass", message=f'RuntimeClass "{name}" not found')


def _ports_taken(pod: Pod, others: Iterable[Pod]) -> Rejection | None:
    taken = [port for other in others for port in _host_ports(other)]
    if not any(_collide(wanted, held) for wanted in _host_ports(pod) for held in taken):
        return None
    return Rejection(
        reason="NodePorts",
        message="Predicate NodePorts failed: node(s) didn't have free ports for the requested "
        "pod ports",
    )


HostPort = tuple[str, str, int]
ANY_ADDRESS = ("", "0.0.0.0", "::")


def _host_ports(pod: Pod) -> Iterable[HostPort]:
    for container in pod.spec.containers:
        for port in container.ports:
            if port.host_port:
                yield port.protocol or "TCP", port.host_ip, port.host_port


def _collide(one: HostPort, other: HostPort) -> bool:
    same_port = one[0] == other[0] and one[2] == other[2]
    return same_port and (one[1] == other[1] or one[1] in ANY_ADDRESS or other[1] in ANY_ADDRESS)


def _too_many(others: Sequence[Pod], max_pods: int) -> Rejection | None:
    if len(others) < max_pods:
        return None
    return _out_of("pods", 1, len(others), max_pods)


def _does_not_fit(
    pod: Pod, others: Iterable[Pod], allocatable: Mapping[str, Quantity]
) -> Rejection | None:
    wanted = {
        name: amount
        for name, amount in pod_requests(pod).items()
        if name in allocatable and amount > ZERO
    }
    if not wanted:
        return None
    used = dict.fromkeys(wanted, ZERO)
    for other in others:
        for name, amount in pod_requests(other).items():
            if name in used:
                used[name] += amount
    for name, amount in wanted.items():
        if used[name] + amount > allocatable[name]:
            numbers = (_number(name, q) for q in (amount, used[name], allocatable[name]))
            return _out_of(name, *numbers)
    return None


def _number(resource: str, amount: Quantity) -> int:
    return amount.milli_value if resource == "cpu" else amount.value


def _out_of(resource: str, requested: int, used: int, capacity: int) -> Rejection:
    return Rejection(
        reason=f"OutOf{resource}",
        message=f"Node didn't have enough resource: {resource}, requested: {requested}, "
        f"used: {used}, capacity: {capacity}",
    )
