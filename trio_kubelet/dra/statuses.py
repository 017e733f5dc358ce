"""The health of a pod's claimed devices in its status (KEP-4680). Pure."""

from collections.abc import Callable, Mapping
from itertools import islice

from trio_kubelet.dra.checkpoint import ClaimRecord
from trio_kubelet.dra.claims import (
    ClaimProblem,
    ClaimUse,
    claim_names,
    container_uses,
    devices_for,
    has_claims,
)
from trio_kubelet.dra.health import DeviceHealth
from trio_kubelet.k8s import Pod, ResourceHealth, ResourceStatus

MAX_SHOWN_DEVICES = 256
"""Of a claim, in the status of a container."""

HealthOf = Callable[[str, str, str], DeviceHealth]
"""The health of a device by the names of its driver, its pool and itself."""


def claim_resource_statuses(
    pod: Pod, claims: Callable[[str, str], ClaimRecord | None], health_of: HealthOf
) -> Mapping[str, tuple[ResourceStatus, ...]]:
    """Return the health of the devices of a pod's claims, by container.

    `claims` finds what is recorded of one by namespace and name.
    """
    if not has_claims(pod):
        return {}
    try:
        names = claim_names(pod)
    except ClaimProblem:
        return {}
    shown: dict[ClaimUse, ResourceStatus | None] = {}

    def status_of(use: ClaimUse) -> ResourceStatus | None:
        name = names.get(use.place)
        record = claims(pod.metadata.namespace, name) if name is not None else None
        if record is None or pod.metadata.uid not in record.pods:
            return None
        healths = tuple(_healths(record, use.request, health_of))
        return ResourceStatus(name=_shown_name(use), resources=healths)

    found: dict[str, tuple[ResourceStatus, ...]] = {}
    for container in pod.spec.containers:
        uses = dict.fromkeys(container_uses(pod, container))
        for use in uses:
            if use not in shown:
                shown[use] = status_of(use)
        statuses = [status for use in uses if (status := shown[use]) is not None]
        if statuses:
            found[container.name] = tuple(statuses)
    return found


def _shown_name(use: ClaimUse) -> str:
    """The name of a claim as the API server takes it: as the container's spec has it."""
    if use.resource:
        return use.resource
    return f"claim:{use.place}/{use.request}" if use.request else f"claim:{use.place}"


def _healths(record: ClaimRecord, request: str, health_of: HealthOf) -> list[ResourceHealth]:
    """The health of the devices for a request, each once."""
    found: dict[str, ResourceHealth] = {}
    for driver, device in islice(devices_for(record, [request]), MAX_SHOWN_DEVICES):
        health = health_of(driver, device.pool, device.device)
        name = device.cdi_ids[0] if device.cdi_ids else f"{driver}/{device.pool}/{device.device}"
        found.setdefault(
            name, ResourceHealth(resource_id=name, health=health.status, message=health.message)
        )
    return list(found.values())
