"""Devices that pods are given through resource claims (KEP-4381): none can be prepared so far.

A container that runs without a device that it claims fails in ways that nobody can explain. So
admission rejects such a pod, and of one that another kubelet admitted no container is made anew.
"""

from trio_kubelet.k8s import Container, Pod

NO_RESOURCE_CLAIMS = (
    "Failed to prepare dynamic resources: this kubelet does not support resource claims"
)


def has_resource_claims(pod: Pod) -> bool:
    """True if claims belong to the pod, its own or one that backs its extended resources."""
    return bool(pod.spec.resource_claims) or pod.status.extended_resource_claim_status is not None


def uses_resource_claims(pod: Pod, container: Container) -> bool:
    """True if a container is to get something of a claim."""
    extended = pod.status.extended_resource_claim_status
    backed = extended.request_mappings if extended is not None else ()
    own = container.resources.claims if container.resources is not None else ()
    return bool(own) or any(request.container_name == container.name for request in backed)
