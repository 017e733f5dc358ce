"""ResourceClaims: devices that the scheduler allocated, of any driver, as far as a node reads them.

The API calls the object ResourceClaim, as it does the reference of a container to one
(`trio_kubelet.k8s.resources`).
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
