"""Amounts of CPU, memory and other resources that containers ask for."""

from collections.abc import Mapping
from enum import StrEnum

from attrs import field, frozen

from trio_kubelet.k8s.base import ApiType, Mandatory, wire
from trio_kubelet.k8s.quantity import Quantity

HUGEPAGES_PREFIX = "hugepages-"
"""The beginning of the names of huge page resources; the size of a page follows."""


class ResourceName(StrEnum):
    """Resources with a meaning of their own; others are extended resources or huge pages."""

    CPU = "cpu"
    MEMORY = "memory"
    EPHEMERAL_STORAGE = "ephemeral-storage"
    STORAGE = "storage"
    PODS = "pods"


@frozen(kw_only=True, repr=False, eq=False)
class ResourceClaim(ApiType):
    """A claim of the pod (`spec.resourceClaims`) that a container uses."""

    name: Mandatory[str] = ""
    request: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class ResourceRequirements(ApiType):
    """The most that a container may use, and the amounts that are set aside for it."""

    limits: Mapping[str, Quantity] = field(factory=dict)
    requests: Mapping[str, Quantity] = field(factory=dict)
    claims: tuple[ResourceClaim, ...] = ()


@frozen(kw_only=True, repr=False, eq=False)
class VolumeResourceRequirements(ApiType):
    """The size a claim asks for."""

    limits: Mapping[str, Quantity] = field(factory=dict)
    requests: Mapping[str, Quantity] = field(factory=dict)


@frozen(kw_only=True, repr=False, eq=False)
class PodResourceClaim(ApiType):
    """A claim the pod uses: one that exists, or a template to make one from."""

    name: Mandatory[str] = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class ResourceResizeRestartPolicy(StrEnum):
    """The effect of a resource's change on the container."""

    NOT_REQUIRED = "NotRequired"
    RESTART_CONTAINER = "RestartContainer"


@frozen(kw_only=True, repr=False, eq=False)
class ContainerResizePolicy(ApiType):
    """True if the container restarts when this resource is changed in place."""

    resource_name: Mandatory[str] = ""
    restart_policy: Mandatory[str] = ""


class ResourceHealthStatus(StrEnum):
    """The health of a device."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


@frozen(kw_only=True, repr=False, eq=False)
class ResourceHealth(ApiType):
    """The health of one device given to a container."""

    message: str = ""
    health: str = ""
    resource_id: Mandatory[str] = field(default="", metadata=wire("resourceID"))


@frozen(kw_only=True, repr=False, eq=False)
class ResourceStatus(ApiType):
    """The health of the devices behind one resource name."""

    name: Mandatory[str] = ""
    resources: tuple[ResourceHealth, ...] = ()
