"""Claims on persistent storage: objects of a namespace, and templates that a pod carries."""

from collections.abc import Mapping
from enum import StrEnum

from attrs import field, frozen

from trio_kubelet.k8s.base import ApiType, Mandatory
from trio_kubelet.k8s.meta import (
    LabelSelector,
    ObjectMeta,
    TypedLocalObjectReference,
    TypedObjectReference,
)
from trio_kubelet.k8s.quantity import Quantity
from trio_kubelet.k8s.resources import VolumeResourceRequirements
from trio_kubelet.k8s.time import Time


class PersistentVolumeMode(StrEnum):
    """True if a volume is a folder or a device."""

    BLOCK = "Block"
    FILESYSTEM = "Filesystem"


class PersistentVolumeClaimPhase(StrEnum):
    """The state of a claim."""

    PENDING = "Pending"
    BOUND = "Bound"
    LOST = "Lost"


class PersistentVolumeAccessMode(StrEnum):
    """The nodes and pods that may mount a volume at the same time."""

    READ_WRITE_ONCE = "ReadWriteOnce"
    READ_ONLY_MANY = "ReadOnlyMany"
    READ_WRITE_MANY = "ReadWriteMany"
    READ_WRITE_ONCE_POD = "ReadWriteOncePod"


@frozen(kw_only=True, repr=False, eq=False)
class PersistentVolumeClaimSpec(ApiType):
    """The demands of a claim.

    `storage_class_name` None asks for the default class, an empty one for no class at all.
    """

    access_modes: tuple[str, ...] = ()
    data_source: TypedLocalObjectReference | None = None
    data_source_ref: TypedObjectReference | None = None
    resources: VolumeResourceRequirements | None = None
    selector: LabelSelector | None = None
    storage_class_name: str | None = None
    volume_attributes_class_name: str | None = None
    volume_mode: str = ""
    volume_name: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class PersistentVolumeClaimTemplate(ApiType):
    """The claim that is made for the pod and goes with it."""

    metadata: ObjectMeta | None = None
    spec: Mandatory[PersistentVolumeClaimSpec] = field(factory=PersistentVolumeClaimSpec)


@frozen(kw_only=True, repr=False, eq=False)
class ModifyVolumeStatus(ApiType):
    """The change of a volume to other attributes."""

    status: Mandatory[str] = ""
    target_volume_attributes_class_name: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class PersistentVolumeClaimCondition(ApiType):
    """One fact about a claim."""

    last_probe_time: Time | None = None
    last_transition_time: Time | None = None
    message: str = ""
    reason: str = ""
    status: Mandatory[str] = ""
    type: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class PersistentVolumeClaimStatus(ApiType):
    """The capacity and access modes that a claim was given, and how a change of them stands."""

    access_modes: tuple[str, ...] = ()
    allocated_resource_statuses: Mapping[str, str] = field(factory=dict)
    allocated_resources: Mapping[str, Quantity] = field(factory=dict)
    capacity: Mapping[str, Quantity] = field(factory=dict)
    conditions: tuple[PersistentVolumeClaimCondition, ...] = ()
    current_volume_attributes_class_name: str | None = None
    modify_volume_status: ModifyVolumeStatus | None = None
    phase: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class PersistentVolumeClaim(ApiType):
    """The claim of a namespace on a volume."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(factory=ObjectMeta)
    spec: PersistentVolumeClaimSpec = field(factory=PersistentVolumeClaimSpec)
    status: PersistentVolumeClaimStatus = field(factory=PersistentVolumeClaimStatus)
