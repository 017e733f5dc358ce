"""The lease: a small object that says, cheaply and often, that the node is alive."""

from attrs import field, frozen

from trio_kubelet.k8s.base import ApiType, Int32
from trio_kubelet.k8s.meta import ObjectMeta
from trio_kubelet.k8s.time import MicroTime


@frozen(kw_only=True, repr=False, eq=False)
class LeaseSpec(ApiType):
    """The lease's holder, its begin, and its duration after each renewal."""

    holder_identity: str = ""
    lease_duration_seconds: Int32 | None = None
    acquire_time: MicroTime | None = None
    renew_time: MicroTime | None = None
    lease_transitions: Int32 | None = None
    preferred_holder: str = ""
    strategy: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class Lease(ApiType):
    """A lease; a node's has its name and lives in `kube-node-lease`."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(factory=ObjectMeta)
    spec: LeaseSpec = field(factory=LeaseSpec)
