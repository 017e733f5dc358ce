"""Claims on persistent storage, as far as a pod can carry them."""

from enum import StrEnum

from attrs import field, frozen

from trio_kubelet.k8s.base import ApiType, Mandatory
from trio_kubelet.k8s.meta import (
    LabelSelector,
    ObjectMeta,
    TypedLocalObjectReference,
    TypedObjectReference,
)
from trio_kubelet.k8s.resources import VolumeResourceRequirements


class PersistentVolumeMode(StrEnum):
    """True if a volume is a folder or a device."""

    BLOCK = "Block"
    FILESYSTEM = "Filesystem"


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
