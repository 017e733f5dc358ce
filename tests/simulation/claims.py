"""The cluster's side of the days' volumes: claims, volumes, and the controller that attaches them.

The controller believes the Node: a volume that no pod needs is detached as soon as the Node does
not name it as in use.
"""

import random

import trio
from attrs import evolve

from tests.apiserver.server import ApiServer
from tests.apiserver.storage import Change, Data
from tests.simulation.node import NODE
from tests.simulation.shapes import CLAIMS, CSI_DRIVER, NAMESPACE, persistent_name
from tests.simulation.volumes import VolumeRules
from trio_kubelet.k8s import (
    CSI_DRIVERS,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    TERMINAL_PHASES,
    VOLUME_ATTACHMENTS,
    AttachedVolume,
    CSIDriver,
    CSIDriverSpec,
    CSIPersistentVolumeSource,
    ObjectMeta,
    ObjectReference,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimStatus,
    PersistentVolumeSpec,
    VolumeAttachment,
    VolumeAttachmentSource,
    VolumeAttachmentSpec,
    VolumeAttachmentStatus,
)
from trio_kubelet.volumes.csi_records import VolumeKey, attachment_name

LONGEST_LAG_SECONDS = 5.0
SETTINGS = CSIDriverSpec(
    attach_required=True, volume_lifecycle_modes=("Persistent", "Ephemeral"), fs_group_policy="None"
)
KEYS = {claim: VolumeKey(CSI_DRIVER, f"handle-of-{claim}") for claim in CLAIMS}
"""The volumes behind the claims."""


class AttachController:
    """Attaches the volumes that pods of the node need, and detaches those that nobody uses."""

    def __init__(self, api: ApiServer, chance: random.Random, rules: VolumeRules) -> None:
        self._api = api
        self._chance = chance
        self._rules = rules
        self._changed = trio.Event()
        api.storage.observers.append(self._on_write)

    def create_all(self) -> None:
        """Create the driver's settings, the claims, and a volume for each."""
        driver = CSIDriver(metadata=ObjectMeta(name=CSI_DRIVER), spec=SETTINGS)
        self._api.create(CSI_DRIVERS, driver)
        for claim, key in KEYS.items():
            name = persistent_name(claim)
            made = self._api.create(
                PERSISTENT_VOLUME_CLAIMS,
                PersistentVolumeClaim(
                    metadata=ObjectMeta(name=claim, namespace=NAMESPACE),
                    spec=PersistentVolumeClaimSpec(volume_name=name),
                    status=PersistentVolumeClaimStatus(phase="Bound"),
                ),
            )
            spec = PersistentVolumeSpec(
                csi=CSIPersistentVolumeSource(driver=CSI_DRIVER, volume_handle=key.handle),
                claim_ref=ObjectReference(uid=made.metadata.uid),
                access_modes=("ReadWriteMany",),
            )
            volume = PersistentVolume(metadata=ObjectMeta(name=name), spec=spec)
            self._api.create(PERSISTENT_VOLUMES, volume)

    async def run(self) -> None:
        """Bring the attachments into line after each change of a pod or the Node."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            await trio.sleep(self._chance.uniform(0, LONGEST_LAG_SECONDS))
            self._reconcile()

    def _on_write(self, change: Change) -> None:
        what = {(PODS.group, PODS.resource): "phase", (NODES.group, NODES.resource): "volumesInUse"}
        name = what.get(change.resource)
        if name is not None and _status(change.before, name) != _status(change.after, name):
            self._changed.set()

    def _reconcile(self) -> None:
        node = self._api.find(NODES, NODE)
        if node is None:
            return
        needed = {
            volume.persistent_volume_claim.claim_name
            for pod in self._api.all(PODS)
            if pod.status.phase not in TERMINAL_PHASES
            for volume in pod.spec.volumes
            if volume.persistent_volume_claim is not None
        }
        attached = [each.name for each in node.status.volumes_attached]
        kept = [
            key.unique_name
            for claim, key in KEYS.items()
            if claim in needed
            or (key.unique_name in attached and key.unique_name in node.status.volumes_in_use)
        ]
        for key in KEYS.values():
            if key.unique_name in kept:
                self._attach(key)
            elif key.unique_name in attached:
                self._detach(key)
        if kept != attached:
            volumes = tuple(AttachedVolume(name=name) for name in kept)
            status = evolve(node.status, volumes_attached=volumes)
            self._api.update(NODES, evolve(node, status=status), subresource="status")

    def _attach(self, key: VolumeKey) -> None:
        name = attachment_name(key, NODE)
        if self._api.find(VOLUME_ATTACHMENTS, name) is None:
            source = VolumeAttachmentSource(persistent_volume_name=key.handle)
            spec = VolumeAttachmentSpec(attacher=CSI_DRIVER, node_name=NODE, source=source)
            attachment = VolumeAttachment(
                metadata=ObjectMeta(name=name),
                spec=spec,
                status=VolumeAttachmentStatus(attached=True),
            )
            self._api.create(VOLUME_ATTACHMENTS, attachment)

    def _detach(self, key: VolumeKey) -> None:
        self._rules.detached(key.handle)
        name = attachment_name(key, NODE)
        if self._api.find(VOLUME_ATTACHMENTS, name) is not None:
            self._api.delete(VOLUME_ATTACHMENTS, name)


def _status(data: Data | None, name: str) -> object:
    """A field of an object's status; () while there is no object, which no field is."""
    return () if data is None else data.get("status", {}).get(name)
