"""The downward API: fields of the pod and amounts of its resources, as text.

Pure: what only the node knows (addresses, what is allocatable) comes in as a value. The same
rules serve environment variables and downward API volumes.
"""

import re
from collections.abc import Mapping, Sequence
from math import ceil

from attrs import frozen

from trio_kubelet.errors import ConfigError
from trio_kubelet.k8s import (
    HUGEPAGES_PREFIX,
    Container,
    Pod,
    Quantity,
    ResourceFieldSelector,
)

_SUBSCRIPT = re.compile(r"(.+?)\['(.*)'\]")
_DEFAULTED_LIMITS = frozenset({"cpu", "memory", "ephemeral-storage"})
_ONE = Quantity("1")


@frozen(kw_only=True)
class PodAddresses:
    """The addresses of a pod and of its node, of the preferred IP family first."""

    pod_ips: tuple[str, ...] = ()
    host_ips: tuple[str, ...] = ()


def pod_field(pod: Pod, path: str, addresses: PodAddresses) -> str:
    """The value of a `fieldRef`; a label or annotation that is not there is empty.

    Raises ConfigError for a path that is none of the downward API's.
    """
    subscripted = _SUBSCRIPT.fullmatch(path)
    if subscripted is not None:
        return _map_entry(pod, subscripted[1], subscripted[2])
    values = {
        "metadata.name": pod.metadata.name,
        "metadata.namespace": pod.metadata.namespace,
        "metadata.uid": pod.metadata.uid,
        "spec.nodeName": pod.spec.node_name,
        "spec.host": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name,
        "status.hostIP": _first(addresses.host_ips),
        "status.hostIPs": ",".join(addresses.host_ips),
        "status.podIP": _first(addresses.pod_ips),
        "status.podIPs": ",".join(addresses.pod_ips),
    }
    if path not in values:
        raise ConfigError(f"unsupported fieldPath: {path}")
    return values[path]


def resource_field(
    pod: Pod,
    container: Container,
    selector: ResourceFieldSelector,
    allocatable: Mapping[str, Quantity],
) -> str:
    """The value of a `resourceFieldRef`, in units of its divisor, rounded up.

    A container without a limit for CPU, memory or ephemeral storage can use what its pod may as
    a whole (KEP-2837), else what the node has (`allocatable`), so that is its limit here.
    """
    if selector.container_name:
        container = _container(pod, selector.container_name)
    kind, _, resource = selector.resource.partition(".")
    if kind not in ("limits", "requests") or not _is_exposed(resource):
        raise ConfigError(f"unsupported container resource : {selector.resource}")
    quantity = _amount(container, kind, resource)
    if not quantity and kind == "limits" and resource in _DEFAULTED_LIMITS:
        quantity = _pod_limit(pod, resource) or allocatable.get(resource, quantity)
    divisor = selector.divisor or _ONE
    return str(ceil(quantity.fraction / divisor.fraction))


def _is_exposed(resource: str) -> bool:
    return resource in _DEFAULTED_LIMITS or resource.startswith(HUGEPAGES_PREFIX)


def _amount(container: Container, kind: str, resource: str) -> Quantity:
    if container.resources is None:
        return Quantity(0)
    amounts = container.resources.limits if kind == "limits" else container.resources.requests
    return amounts.get(resource, Quantity(0))


def _pod_limit(pod: Pod, resource: str) -> Quantity | None:
    limits = pod.spec.resources.limits if pod.spec.resources is not None else {}
    return limits.get(resource)


def _container(pod: Pod, name: str) -> Container:
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        if container.name == name:
            return container
    raise ConfigError(f"container {name} not found")


def _map_entry(pod: Pod, path: str, key: str) -> str:
    maps = {
        "metadata.labels": pod.metadata.labels,
        "metadata.annotations": pod.metadata.annotations,
    }
    if path not in maps:
        raise ConfigError(f"fieldPath \"{path}['{key}']\" does not support subscript")
    return maps[path].get(key, "")


def _first(addresses: Sequence[str]) -> str:
    return addresses[0] if addresses else ""
