"""Amounts of resources: which names there are, what requests and limits must be to each other."""

from collections.abc import Callable, Iterator, Mapping

from state_machines.container import RestartPolicy
from trio_kubelet.k8s.container import Container
from trio_kubelet.k8s.errors import (
    FieldError,
    all_invalid,
    duplicate,
    forbidden,
    invalid,
    not_found,
    required,
    unsupported,
)
from trio_kubelet.k8s.pod import PodSpec
from trio_kubelet.k8s.quantity import NANO, Quantity
from trio_kubelet.k8s.resources import (
    HUGEPAGES_PREFIX,
    PodResourceClaim,
    ResourceClaim,
    ResourceRequirements,
    ResourceResizeRestartPolicy,
)
from trio_kubelet.k8s.totals import container_limits, total_requests
from trio_kubelet.k8s.validation import formats

_COMPUTE = {"cpu", "memory"}
_OF_CONTAINERS = {"cpu", "memory", "ephemeral-storage"}
_OF_PODS = {"cpu", "memory", HUGEPAGES_PREFIX}
_ZERO = Quantity(0)
_MOST_SHOWN_NAMES = 20

NameCheck = Callable[[str, str], Iterator[FieldError]]


def is_native(name: str) -> bool:
    """True if Kubernetes itself defines the resource."""
    return "/" not in name or "kubernetes.io/" in name


def is_extended(name: str) -> bool:
    """True if it is a resource of a device plugin or the like, counted in whole units."""
    if is_native(name) or name.startswith("requests."):
        return False
    return not formats.qualified_name(f"requests.{name}")


def may_overcommit(name: str) -> bool:
    """True if a limit may be above the request."""
    return is_native(name) and not name.startswith(HUGEPAGES_PREFIX)


def check_container_resources(
    resources: ResourceRequirements | None, claim_names: frozenset[str], path: str
) -> Iterator[FieldError]:
    """Check what a container asks for."""
    if resources is None:
        return
    yield from _check_requirements(resources, path, _check_container_resource)
    yield from _check_claims(resources.claims, claim_names, f"{path}.claims")


def check_overhead(overhead: Mapping[str, Quantity], path: str) -> Iterator[FieldError]:
    """Check what the sandbox itself takes."""
    for name, amount in overhead.items():
        yield from _check_amount(name, amount, f"{path}[{name}]", _check_container_resource)


def check_pod_resources(spec: PodSpec, path: str) -> Iterator[FieldError]:
    """Check the resources of the pod as a whole against those of its containers (KEP-2837)."""
    resources = spec.resources
    if resources is None:
        return
    if resources.claims:
        yield forbidden(f"{path}.claims", "claims cannot be set for Resources at pod-level")
    yield from _check_requirements(resources, path, _check_pod_resource)
    for name, total in total_requests(spec).items():
        of_pod = resources.requests.get(name, _ZERO)
        if (name in _OF_PODS or name.startswith(HUGEPAGES_PREFIX)) and total > of_pod:
            detail = f"must be greater than or equal to aggregate container requests of {total}"
            yield invalid(f"{path}.requests[{name}]", str(of_pod), detail)
    for index, container in enumerate(spec.containers):
        for name, limit in container_limits(container).items():
            most = resources.limits.get(name)
            if most is not None and limit > most:
                where = f"spec.containers[{index}].resources.limits[{name}]"
                yield invalid(
                    where, str(limit), f"must be less than or equal to pod limits of {most}"
                )


def _check_requirements(
    resources: ResourceRequirements, path: str, check_name: NameCheck
) -> Iterator[FieldError]:
    for name, amount in resources.limits.items():
        yield from _check_amount(name, amount, f"{path}.limits[{name}]", check_name)
    for name, amount in resources.requests.items():
        yield from _check_amount(name, amount, f"{path}.requests[{name}]", check_name)
        yield from _check_request(name, amount, resources.limits.get(name), path)
    names = {*resources.limits, *resources.requests}
    if any(name.startswith(HUGEPAGES_PREFIX) for name in names) and not names & _COMPUTE:
        yield forbidden(path, "HugePages require cpu or memory")


def _check_request(
    name: str, request: Quantity, limit: Quantity | None, path: str
) -> Iterator[FieldError]:
    where = f"{path}.requests"
    if limit is None:
        if not may_overcommit(name):
            detail = "Limit must be set for non overcommitable resources"
            yield required(f"{path}.limits", detail)
    elif request != limit and not may_overcommit(name):
        yield invalid(where, str(request), f"must be equal to {name} limit of {limit}")
    elif request > limit:
        yield invalid(where, str(request), f"must be less than or equal to {name} limit of {limit}")


def _check_amount(
    name: str, amount: Quantity, path: str, check_name: NameCheck
) -> Iterator[FieldError]:
    yield from check_name(name, path)
    if amount < _ZERO:
        yield invalid(path, str(amount), "must be greater than or equal to 0")
    if is_extended(name) and amount.nano % NANO:
        yield invalid(path, str(amount), "must be an integer")
    if name.startswith(HUGEPAGES_PREFIX) and not _is_multiple(
        amount, name.removeprefix(HUGEPAGES_PREFIX)
    ):
        yield invalid(path, str(amount), f"{amount} is not positive integer multiple of {name}")


def _is_multiple(amount: Quantity, page_size: str) -> bool:
    try:
        size = Quantity(page_size)
    except ValueError:
        return False
    return size > _ZERO and amount.nano % size.nano == 0


def _check_container_resource(name: str, path: str) -> Iterator[FieldError]:
    problems = formats.qualified_name(name)
    yield from all_invalid(path, name, problems)
    if problems:
        return
    if "/" not in name:
        if name not in _OF_CONTAINERS and not name.startswith(HUGEPAGES_PREFIX):
            yield invalid(path, name, "must be a standard resource for containers")
    elif not is_native(name) and not is_extended(name):
        yield invalid(path, name, "doesn't follow extended resource name standard")


def _check_pod_resource(name: str, path: str) -> Iterator[FieldError]:
    if name not in _COMPUTE and not name.startswith(HUGEPAGES_PREFIX):
        yield unsupported(path, name, _OF_PODS)


def _check_claims(
    claims: tuple[ResourceClaim, ...], known: frozenset[str], path: str
) -> Iterator[FieldError]:
    """Check that a container names claims of its pod, each claim or request of it once."""
    whole: set[str] = set()
    parts: set[tuple[str, str]] = set()
    named = ", ".join(sorted(known)[:_MOST_SHOWN_NAMES])
    known_names = f": {named}" if known else " which is empty"
    in_parts: set[str] = set()
    for index, claim in enumerate(claims):
        where = f"{path}[{index}]"
        if not claim.name:
            yield required(where)
            continue
        overlaps = claim.name in whole or (claim.name, claim.request) in parts
        if overlaps or (not claim.request and claim.name in in_parts):
            yield duplicate(where, f"{claim.name}/{claim.request}".removesuffix("/"))
        if claim.request:
            problems = formats.dns_label(claim.request)
            yield from all_invalid(f"{where}.request", claim.request, problems)
            parts.add((claim.name, claim.request))
            in_parts.add(claim.name)
        else:
            whole.add(claim.name)
        if claim.name not in known:
            detail = f"must be one of the names in pod.spec.resourceClaims{known_names}"
            yield not_found(where, claim.name, detail)


def check_pod_claims(claims: tuple[PodResourceClaim, ...], path: str) -> Iterator[FieldError]:
    """Check the claims of the pod."""
    seen: set[str] = set()
    for index, claim in enumerate(claims):
        where = f"{path}[{index}]"
        if not claim.name:
            yield required(f"{where}.name")
        elif claim.name in seen:
            yield duplicate(f"{where}.name", claim.name)
        else:
            yield from all_invalid(f"{where}.name", claim.name, formats.dns_label(claim.name))
        seen.add(claim.name)
        given = {
            "resourceClaimName": claim.resource_claim_name,
            "resourceClaimTemplateName": claim.resource_claim_template_name,
        }
        names = {field: name for field, name in given.items() if name is not None}
        if len(names) > 1:
            detail = (
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            )
            yield invalid(where, claim.name, detail)
        if not names:
            detail = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            yield invalid(where, claim.name, detail)
        for field, name in names.items():
            yield from all_invalid(f"{where}.{field}", name, formats.dns_subdomain(name))


def check_resize_policies(
    container: Container, pod_restart_policy: str, path: str
) -> Iterator[FieldError]:
    """Check what a change of resources in place does to a container (KEP-1287)."""
    seen: set[str] = set()
    for index, policy in enumerate(container.resize_policy):
        where = f"{path}[{index}]"
        if policy.resource_name in seen:
            yield duplicate(where, policy.resource_name)
        seen.add(policy.resource_name)
        if not policy.resource_name:
            yield required(f"{where}.resourceName")
        elif policy.resource_name not in _COMPUTE:
            yield unsupported(f"{where}.resourceName", policy.resource_name, _COMPUTE)
        if not policy.restart_policy:
            yield required(f"{where}.restartPolicy")
        elif policy.restart_policy not in list(ResourceResizeRestartPolicy):
            yield unsupported(
                f"{where}.restartPolicy", policy.restart_policy, ResourceResizeRestartPolicy
            )
        elif (
            pod_restart_policy == RestartPolicy.NEVER
            and policy.restart_policy != ResourceResizeRestartPolicy.NOT_REQUIRED
        ):
            detail = "must be 'NotRequired' when `restartPolicy` is 'Never'"
            yield invalid(f"{where}.restartPolicy", policy.restart_policy, detail)
