"""Claims, persistent volumes and pods that use them, for the tests of this part."""

from trio_kubelet.k8s import (
    Container,
    EphemeralVolumeSource,
    HostPathVolumeSource,
    LocalVolumeSource,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    ObjectMeta,
    ObjectReference,
    OwnerReference,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimStatus,
    PersistentVolumeClaimVolumeSource,
    PersistentVolumeSpec,
    Pod,
    PodSpec,
    Volume,
    VolumeDevice,
    VolumeMount,
    VolumeNodeAffinity,
)

NAMESPACE = "shop"


def claim(name: str = "data", *, owner: str = "", phase: str = "Bound") -> PersistentVolumeClaim:
    """A claim bound to the volume `pv-<name>`, controlled by the pod of the UID `owner`."""
    owners = (OwnerReference(kind="Pod", name="p", uid=owner, controller=True),) if owner else ()
    return PersistentVolumeClaim(
        metadata=ObjectMeta(
            name=name, namespace=NAMESPACE, uid=f"claim-{name}", owner_references=owners
        ),
        spec=PersistentVolumeClaimSpec(volume_name=f"pv-{name}"),
        status=PersistentVolumeClaimStatus(phase=phase),
    )


def persistent(
    name: str = "data",
    *,
    path: str = "/",
    mode: str = "Filesystem",
    access: tuple[str, ...] = ("ReadWriteOnce",),
    zone: str = "",
    bound_to: str | None = None,
    local: str = "",
    mount_options: tuple[str, ...] = (),
) -> PersistentVolume:
    """The volume `pv-<name>`, bound to the claim of that name; with `zone` only on nodes there.

    It is a `hostPath`, or with `local` the folder of that path.
    """
    requirement = NodeSelectorRequirement(key="zone", operator="In", values=(zone,))
    term = NodeSelectorTerm(match_expressions=(requirement,))
    return PersistentVolume(
        metadata=ObjectMeta(name=f"pv-{name}"),
        spec=PersistentVolumeSpec(
            access_modes=access,
            claim_ref=ObjectReference(uid=f"claim-{name}" if bound_to is None else bound_to),
            host_path=None if local else HostPathVolumeSource(path=path),
            local=LocalVolumeSource(path=local) if local else None,
            mount_options=mount_options,
            volume_mode=mode,
            node_affinity=VolumeNodeAffinity(required=NodeSelector(node_selector_terms=(term,)))
            if zone
            else None,
        ),
    )


def claiming_pod(
    uid: str = "u1", *, read_only: bool = False, as_device: bool = False, ephemeral: bool = False
) -> Pod:
    """A pod that mounts the claim `data` as its volume `files`; or `p-files`, if ephemeral."""
    source = PersistentVolumeClaimVolumeSource(claim_name="data", read_only=read_only or None)
    volume = Volume(name="files", persistent_volume_claim=source)
    if ephemeral:
        volume = Volume(name="files", ephemeral=EphemeralVolumeSource())
    mounts = (VolumeMount(name="files", mount_path="/files"),)
    devices = (VolumeDevice(name="files", device_path="/dev/files"),)
    container = (
        Container(name="c", volume_devices=devices)
        if as_device
        else Container(name="c", volume_mounts=mounts)
    )
    return Pod(
        metadata=ObjectMeta(name="p", namespace=NAMESPACE, uid=uid),
        spec=PodSpec(containers=(container,), volumes=(volume,)),
    )
