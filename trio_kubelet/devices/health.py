"""The health of devices in the status of their pod (KEP-4680), and how much of it is shown."""

from collections.abc import Iterable, Mapping
from heapq import nsmallest

from attrs import evolve

from state_machines.device_plugin import UNKNOWN_DEVICES
from trio_kubelet.devices.checkpoint import DeviceRecord
from trio_kubelet.devices.plugins import DevicePlugins
from trio_kubelet.k8s import ResourceHealth, ResourceStatus

MAX_SHOWN_DEVICES = 256
"""Of a container's devices of one resource."""
MAX_SHOWN_DEVICES_OF_POD = 2048
MAX_SHOWN_WORDS_OF_POD = 64 * 1024
"""Characters that drivers say of the devices. A claim's devices are in the status of each container
that uses it, and the API server takes no object of more than 1.5 MiB."""


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


def within_limits(
    statuses: Mapping[str, tuple[ResourceStatus, ...]],
) -> Mapping[str, tuple[ResourceStatus, ...]]:
    """Leave out what is more than the status of a pod shows of devices, by container.

    Containers have their room in the order of their names. Where there is none for what drivers
    say of a resource's devices, only their health is shown.
    """
    devices, words = MAX_SHOWN_DEVICES_OF_POD, MAX_SHOWN_WORDS_OF_POD
    shown: dict[str, tuple[ResourceStatus, ...]] = {}
    for container in sorted(statuses):
        kept = []
        for status in statuses[container]:
            resources = status.resources[:devices]
            devices -= len(resources)
            said = sum(len(each.message) for each in resources)
            if said > words:
                resources = tuple(evolve(each, message="") for each in resources)
            else:
                words -= said
            if resources or not status.resources:
                kept.append(evolve(status, resources=resources))
        if kept:
            shown[container] = tuple(kept)
    return shown


def _health(plugins: DevicePlugins, resource: str, device: str) -> str:
    """Return the health of a device; nobody knows it before its plugin has listed it."""
    known = plugins.get(resource)
    if known is None or known.state in UNKNOWN_DEVICES or device not in known.devices:
        return "Unknown"
    return "Healthy" if device in known.healthy else "Unhealthy"
