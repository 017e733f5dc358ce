"""The volume behind a name in a pod: its source, whether it stands in the pod or in a claim. Pure.

A pod names a claim, the claim is bound to a persistent volume, and the volume points back to the
claim. A generic ephemeral volume is a claim, too, made for this pod alone: one of its name that
somebody else made is not used.
"""

from typing import TypeVar

from attrs import fields, frozen

from trio_kubelet.k8s import (
    Node,
    PersistentVolume,
    PersistentVolumeAccessMode,
    PersistentVolumeClaim,
    PersistentVolumeClaimPhase,
    PersistentVolumeMode,
    PersistentVolumeSpec,
    Pod,
    Volume,
)
from trio_kubelet.k8s.base import ApiType, wire_name_of
from trio_kubelet.k8s.node_selector import selects_node
from trio_kubelet.references import ObjectError

S = TypeVar("S", bound=ApiType)

_NO_SOURCES = frozenset({"claim_ref", "node_affinity"})
"""Parts of a persistent volume that are messages of the API, and no sources."""


class UnresolvedVolumeError(Exception):
    """A volume of a pod of which it is not known what is to be mounted."""

    def __init__(self, volume: str, why: str) -> None:
        self.volume = volume
        self.why = why
        super().__init__(why)


class UnattachedVolumeError(UnresolvedVolumeError):
    """A volume that is known, and not at the node yet."""


class NodeFullError(UnattachedVolumeError):
    """A volume that was not attached, as its driver has all the volumes here that it can."""


@frozen(kw_only=True)
class ResolvedVolume:
    """A volume of a pod with the source that it is made of.

    `volume` is what the pod says, `persistent` the volume that its claim is bound to. `kind` is
    the field that the source stands in, the same in both: `host_path`. `read_only`: nobody may
    write to it.
    """

    volume: Volume
    kind: str
    source: ApiType
    read_only: bool = False
    persistent: PersistentVolume | None = None

    @property
    def name(self) -> str:
        """The name by which the pod's containers mount it."""
        return self.volume.name

    @property
    def spec_name(self) -> str:
        """The name in folders and events: that of the persistent volume, if it is one."""
        return self.volume.name if self.persistent is None else self.persistent.metadata.name

    @property
    def wire_kind(self) -> str:
        """The field of the source as the API names it: `hostPath`."""
        holder = self.volume if self.persistent is None else self.persistent.spec
        return wire_name_of(type(holder), self.kind)

    @property
    def is_block(self) -> bool:
        """True if containers get a device, and no folder."""
        return volume_mode(self.persistent) == PersistentVolumeMode.BLOCK

    @property
    def is_for_one_pod(self) -> bool:
        """True if no other pod may use it at the same time (KEP-2485)."""
        modes = () if self.persistent is None else self.persistent.spec.access_modes
        return modes == (PersistentVolumeAccessMode.READ_WRITE_ONCE_POD,)

    @property
    def mount_options(self) -> tuple[str, ...]:
        """The options that a persistent volume is mounted with."""
        return () if self.persistent is None else self.persistent.spec.mount_options

    def source_as(self, cls: type[S]) -> S:
        """Return the source, which the table of plugins says is of this class."""
        if not isinstance(self.source, cls):
            raise TypeError(f"{self.kind} of volume {self.name}: {type(self.source).__name__}")
        return self.source


def claim_name(pod: Pod, volume: Volume) -> str:
    """Return the name of the claim that a volume stands for; empty if it is no claim."""
    if volume.persistent_volume_claim is not None:
        return volume.persistent_volume_claim.claim_name
    return f"{pod.metadata.name}-{volume.name}" if volume.ephemeral is not None else ""


def resolve_own(volume: Volume) -> ResolvedVolume:
    """Return a volume whose source stands in the pod. Raises UnresolvedVolumeError."""
    kind = _source_kind(volume)
    if not kind:
        raise UnresolvedVolumeError(volume.name, f'volume "{volume.name}" has no source')
    source: ApiType = getattr(volume, kind)
    return ResolvedVolume(
        volume=volume,
        kind=kind,
        source=source,
        read_only=bool(getattr(source, "read_only", None)),
    )


def check_claim(claim: PersistentVolumeClaim) -> None:
    """Raise ObjectError if no pod may be started with a claim, in the Go kubelet's words."""
    if claim.metadata.deletion_timestamp is not None:
        raise ObjectError("PVC is being deleted")
    if claim.status.phase != PersistentVolumeClaimPhase.BOUND:
        raise ObjectError("PVC is not bound")
    if not claim.spec.volume_name:
        raise ObjectError("PVC has empty pvc.Spec.VolumeName")


def check_owner(pod: Pod, volume: Volume, claim: PersistentVolumeClaim) -> None:
    """Raise UnresolvedVolumeError for a generic ephemeral volume whose claim is not the pod's."""
    owners = claim.metadata.owner_references
    is_own = any(owner.controller and owner.uid == pod.metadata.uid for owner in owners)
    if volume.ephemeral is not None and not is_own:
        raise UnresolvedVolumeError(
            volume.name,
            f"PVC {claim.metadata.namespace}/{claim.metadata.name} was not created for pod "
            f"{pod.metadata.namespace}/{pod.metadata.name} (pod is not owner)",
        )


def check_bound_to(persistent: PersistentVolume, claim: PersistentVolumeClaim) -> None:
    """Raise ObjectError if a volume is bound to another claim than the one that names it."""
    name, reference = persistent.metadata.name, persistent.spec.claim_ref
    if reference is None:
        raise ObjectError(
            f"found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet "
            "bound to the claim"
        )
    if reference.uid != claim.metadata.uid:
        raise ObjectError(
            f"found PV object {name} but its pv.Spec.ClaimRef.UID {reference.uid} does not point "
            f"to claim.UID {claim.metadata.uid}"
        )


def resolve_claimed(pod: Pod, volume: Volume, persistent: PersistentVolume) -> ResolvedVolume:
    """Return the volume that a claim is bound to, as the pod uses it.

    Raises UnresolvedVolumeError where containers mount a device, or want a device of a folder.
    """
    mode = volume_mode(persistent)
    containers = pod.spec.all_containers
    if mode != PersistentVolumeMode.FILESYSTEM and any(
        mount.name == volume.name for each in containers for mount in each.volume_mounts
    ):
        why = f"volume {volume.name} has volumeMode {mode}, but is specified in volumeMounts"
        raise UnresolvedVolumeError(volume.name, why)
    if mode != PersistentVolumeMode.BLOCK and any(
        device.name == volume.name for each in containers for device in each.volume_devices
    ):
        why = f"volume {volume.name} has volumeMode {mode}, but is specified in volumeDevices"
        raise UnresolvedVolumeError(volume.name, why)
    kind = _source_kind(persistent.spec)
    if not kind:
        why = f'persistent volume "{persistent.metadata.name}" has no source'
        raise UnresolvedVolumeError(volume.name, why)
    claim = volume.persistent_volume_claim
    return ResolvedVolume(
        volume=volume,
        kind=kind,
        source=getattr(persistent.spec, kind),
        read_only=claim is not None and bool(claim.read_only),
        persistent=persistent,
    )


def volume_mode(persistent: PersistentVolume | None) -> str:
    """Return the mode of a volume; the API server has filled it in."""
    if persistent is None or not persistent.spec.volume_mode:
        return str(PersistentVolumeMode.FILESYSTEM)
    return persistent.spec.volume_mode


def affinity_problem(persistent: PersistentVolume, node: Node | None) -> str:
    """Return why a volume cannot be used on this node, "" if it can."""
    affinity = persistent.spec.node_affinity
    if affinity is None or affinity.required is None:
        return ""
    if node is None:
        return "the Node object, with the labels to compare, is not known yet"
    return "" if selects_node(affinity.required, node) else "no matching NodeSelectorTerms"


def _source_kind(spec: Volume | PersistentVolumeSpec) -> str:
    """Return the field that holds the source; empty if none does."""
    for attribute in fields(type(spec)):
        value = getattr(spec, attribute.name)
        if isinstance(value, ApiType) and attribute.name not in _NO_SOURCES:
            kind: str = attribute.name
            return kind
    return ""
