"""The health of a pod's devices of plugins in its status (KEP-4680)."""

from collections.abc import Iterable, Mapping
from heapq import nsmallest

from state_machines.device_plugin import UNKNOWN_DEVICES
from trio_kubelet.devices.checkpoint import DeviceRecord
from trio_kubelet.devices.plugins import DevicePlugins
from trio_kubelet.k8s import ResourceHealth, ResourceStatus

MAX_SHOWN_DEVICES = 256
"""Of a container's devices of one resource."""


def device_statuses(
    records: Iterable[DeviceRecord], plugins: DevicePlugins
) -> Mapping[str, tuple[ResourceStatus, ...]]:
    """Return the health of the devices of a pod's records, by container."""
    found: dict[str, list[ResourceStatus]] = {}
    for record in sorted(records, key=lambda each: each.resource):
        if record.is_reserved:
            continue
        health = [
            ResourceHealth(resource_id=each, health=_health(plugins, record.resource, each))
            for each in nsmallest(MAX_SHOWN_DEVICES, record.ids)
        ]
        status = ResourceStatus(name=record.resource, resources=tuple(health))
        found.setdefault(record.container, []).append(status)
    return {name: tuple(statuses) for name, statuses in found.items()}


def _health(plugins: DevicePlugins, resource: str, device: str) -> str:
    """Return the health of a device; nobody knows it before its plugin has listed it."""
    known = plugins.get(resource)
    if known is None or known.state in UNKNOWN_DEVICES or device not in known.devices:
        return "Unknown"
    return "Healthy" if device in known.healthy else "Unhealthy"
