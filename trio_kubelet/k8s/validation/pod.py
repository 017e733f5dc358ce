"""The pod as a whole."""

from collections.abc import Iterator

from state_machines.container import RestartPolicy
from trio_kubelet.k8s.errors import (
    FieldError,
    all_invalid,
    forbidden,
    required,
    unsupported,
)
from trio_kubelet.k8s.pod import Pod, PodSpec, PreemptionPolicy
from trio_kubelet.k8s.validation import formats
from trio_kubelet.k8s.validation.containers import check_containers, containers_with_paths
from trio_kubelet.k8s.validation.metadata import check_metadata
from trio_kubelet.k8s.validation.network import (
    check_dns,
    check_host_network_ports,
    check_names,
)
from trio_kubelet.k8s.validation.resources import (
    check_overhead,
    check_pod_claims,
    check_pod_resources,
)
from trio_kubelet.k8s.validation.scheduling import check_scheduling
from trio_kubelet.k8s.validation.security import check_pod_security
from trio_kubelet.k8s.validation.volumes import check_volumes
from trio_kubelet.k8s.validation.windows import check_os

LONGEST_DEADLINE_SECONDS = 2**31 - 1


def validate_pod(pod: Pod, *, is_new: bool = True) -> tuple[FieldError, ...]:
    """Return everything that is wrong with a pod, as the API server would refuse it.

    Defaults must be filled in before (`defaults.with_defaults`): a policy that is still empty is
    an error. `is_new` adds what may only come later in a pod's life, as ephemeral containers do.
    """
    return tuple(_check_pod(pod, is_new))


def _check_pod(pod: Pod, is_new: bool) -> Iterator[FieldError]:
    spec = pod.spec
    yield from check_metadata(pod.metadata, "metadata")
    yield from _check_policies(spec)
    yield from check_volumes(pod, "spec.volumes")
    yield from check_pod_claims(spec.resource_claims, "spec.resourceClaims")
    yield from check_containers(spec)
    yield from check_pod_resources(spec, "spec.resources")
    yield from check_overhead(spec.overhead, "spec.overhead")
    yield from check_host_network_ports(spec)
    yield from check_pod_security(spec, "spec.securityContext")
    yield from check_names(spec)
    yield from check_dns(spec)
    yield from check_scheduling(spec)
    yield from check_os(spec, containers_with_paths(spec))
    yield from _check_references(spec)
    if is_new and spec.ephemeral_containers:
        yield forbidden("spec.ephemeralContainers", "cannot be set on create")
    if is_new and spec.node_name and spec.scheduling_gates:
        detail = "cannot be set until all schedulingGates have been cleared"
        yield forbidden("spec.nodeName", detail)


def _check_policies(spec: PodSpec) -> Iterator[FieldError]:
    if not spec.restart_policy:
        yield required("spec.restartPolicy")
    elif spec.restart_policy not in list(RestartPolicy):
        yield unsupported("spec.restartPolicy", spec.restart_policy, RestartPolicy)
    if spec.preemption_policy and spec.preemption_policy not in list(PreemptionPolicy):
        yield unsupported("spec.preemptionPolicy", spec.preemption_policy, PreemptionPolicy)
    grace, deadline = spec.termination_grace_period_seconds, spec.active_deadline_seconds
    if grace is None:
        yield required("spec.terminationGracePeriodSeconds")
    else:
        problems = formats.not_negative(grace)
        yield from all_invalid("spec.terminationGracePeriodSeconds", grace, problems)
    if deadline is not None:
        problems = formats.in_range(deadline, 1, LONGEST_DEADLINE_SECONDS)
        yield from all_invalid("spec.activeDeadlineSeconds", deadline, problems)


def _check_references(spec: PodSpec) -> Iterator[FieldError]:
    """Check the names of other objects."""
    names = {
        "serviceAccountName": spec.service_account_name,
        "nodeName": spec.node_name,
        "priorityClassName": spec.priority_class_name,
        "runtimeClassName": spec.runtime_class_name,
    }
    for field, name in names.items():
        if name:
            yield from all_invalid(f"spec.{field}", name, formats.dns_subdomain(name))
    if spec.service_account_name:
        return
    for index, volume in enumerate(spec.volumes):
        if volume.projected is None:
            continue
        for place, source in enumerate(volume.projected.sources):
            if source.service_account_token is not None:
                where = f"spec.volumes[{index}].projected.sources[{place}].serviceAccountToken"
                yield forbidden(where, "must not be specified when serviceAccountName is not set")
