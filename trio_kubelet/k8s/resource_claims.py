"""ResourceClaims and ResourceSlices: devices that pods were given, and that drivers have.

No more of them is here than a node reads. The API calls the one object ResourceClaim, as it does
the reference of a container to one (`trio_kubelet.k8s.resources`).
"""

from attrs import field, frozen

from trio_kubelet.k8s.base import ApiType, Mandatory
from trio_kubelet.k8s.meta import ObjectMeta


@frozen(kw_only=True, repr=False, eq=False)
class AllocatedDevice(ApiType):
    """A device that was allocated for a request of a claim; `driver` has to prepare it."""

    driver: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class AllocatedDevices(ApiType):
    """The devices that were allocated for a claim."""

    results: tuple[AllocatedDevice, ...] = ()


@frozen(kw_only=True, repr=False, eq=False)
class ClaimAllocation(ApiType):
    """The result of a claim's allocation."""

    devices: AllocatedDevices = field(factory=AllocatedDevices)


@frozen(kw_only=True, repr=False, eq=False)
class ClaimConsumer(ApiType):
    """An object that may use a claim; one without `apiGroup` and of resource `pods` is a pod."""

    api_group: str = ""
    resource: Mandatory[str] = ""
    uid: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class AllocatedClaimStatus(ApiType):
    """The devices of a claim, and who may use them. `allocation` is None before there is one."""

    allocation: ClaimAllocation | None = None
    reserved_for: tuple[ClaimConsumer, ...] = ()


@frozen(kw_only=True, repr=False, eq=False)
class AllocatedClaim(ApiType):
    """A claim on devices (`resource.k8s.io`), with its allocation."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(factory=ObjectMeta)
    status: AllocatedClaimStatus = field(factory=AllocatedClaimStatus)


@frozen(kw_only=True, repr=False, eq=False)
class ResourceSliceSpec(ApiType):
    """Whose devices a slice has: of which driver, and of which node if of one alone."""

    driver: Mandatory[str] = ""
    node_name: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class ResourceSlice(ApiType):
    """Devices of a driver, which the scheduler allocates."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(factory=ObjectMeta)
    spec: ResourceSliceSpec = field(factory=ResourceSliceSpec)
