"""Which claims a pod has, whether it may use one, and what a container gets of them. Pure.

A claim is one that the pod names, one that the control plane made for it by a template and named in
the pod's status, or the one by which the scheduler gave it extended resources.
"""

from collections.abc import Iterable, Iterator, Mapping

from attrs import frozen

from trio_kubelet.dra.checkpoint import ClaimRecord, PreparedDevice
from trio_kubelet.k8s import AllocatedClaim, Container, Pod

EXTENDED = ""
"""The place of the claim behind a pod's extended resources, among those named in its spec."""


class ClaimProblem(Exception):  # noqa: N818 - the state that the claim is in
    """A pod cannot use a claim so far; the text says why."""


@frozen
class ClaimUse:
    """The part of a claim that a container uses: one of its requests, or all of it (empty).

    `resource` is the extended resource that the container has by it, if that is so.
    """

    place: str
    request: str
    resource: str = ""


def has_claims(pod: Pod) -> bool:
    """True if claims belong to the pod, its own or one that backs its extended resources."""
    return bool(pod.spec.resource_claims) or pod.status.extended_resource_claim_status is not None


def claim_names(pod: Pod) -> Mapping[str, str]:
    """Return the names of a pod's claims, by their places in the spec, or EXTENDED.

    Those for which the control plane found that none is needed are left out. Raises ClaimProblem
    while one is not made yet.
    """
    made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
    found: dict[str, str] = {}
    for claim in pod.spec.resource_claims:
        if claim.resource_claim_name is not None:
            found[claim.name] = claim.resource_claim_name
        elif claim.name not in made:
            raise ClaimProblem(
                f'pod "{pod.metadata.namespace}/{pod.metadata.name}": resource claim '
                f"{claim.name}: the claim has not been created yet"
            )
        elif (name := made[claim.name]) is not None:
            found[claim.name] = name
    extended = pod.status.extended_resource_claim_status
    if extended is not None:
        found[EXTENDED] = extended.resource_claim_name
    return found


def container_uses(pod: Pod, container: Container) -> Iterator[ClaimUse]:
    """The claims, or requests of claims, whose devices a container is to have."""
    if container.resources is not None:
        for claim in container.resources.claims:
            yield ClaimUse(claim.name, claim.request)
    extended = pod.status.extended_resource_claim_status
    for mapping in extended.request_mappings if extended is not None else ():
        if mapping.container_name == container.name:
            yield ClaimUse(EXTENDED, mapping.request_name, mapping.resource_name)


def drivers_of(pod: Pod, place: str, claim: AllocatedClaim) -> frozenset[str]:
    """Return the drivers that have to prepare a claim for a pod.

    Raises ClaimProblem for a claim that is not allocated, or that the pod may not use.
    """
    metadata, status = claim.metadata, claim.status
    shown = f"{metadata.namespace}/{metadata.name}"
    uid = pod.metadata.uid
    is_generated = any(
        each.name == place and each.resource_claim_name is None for each in pod.spec.resource_claims
    )
    owners = {each.uid for each in metadata.owner_references if each.controller}
    if is_generated and uid not in owners:
        raise ClaimProblem(
            f"ResourceClaim {shown} was not created for pod "
            f"{pod.metadata.namespace}/{pod.metadata.name} (pod is not owner)"
        )
    if status.allocation is None:
        raise ClaimProblem(f"ResourceClaim {shown} is not allocated")
    reserved = status.reserved_for
    if not any(
        not each.api_group and each.resource == "pods" and each.uid == uid for each in reserved
    ):
        raise ClaimProblem(
            f"pod {pod.metadata.name} ({uid}) is not allowed to use ResourceClaim "
            f"{metadata.name} ({metadata.uid})"
        )
    return frozenset(each.driver for each in status.allocation.devices.results)


def devices_for(
    record: ClaimRecord, requests: Iterable[str]
) -> Iterator[tuple[str, PreparedDevice]]:
    """Drivers and devices of some requests of a claim; of all if one of them is empty.

    An alternative of a request (`request/alternative`) is what the scheduler chose for it.
    """
    wanted = {each.partition("/")[0] for each in requests}
    for driver, devices in record.drivers.items():
        for device in devices or ():
            names = {each.partition("/")[0] for each in device.requests}
            if "" in wanted or not names or wanted & names:
                yield driver, device
