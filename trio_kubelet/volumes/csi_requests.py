"""Requests to CSI drivers: what a driver is told of a volume that it stages or publishes.

All of it follows from the volume, its pod, the CSIDriver object and the driver's capabilities;
secrets, tokens and attachments are asked for.
"""

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import orjson
import trio
from attrs import field, frozen

from trio_kubelet.csi import (
    CSIDrivers,
    DriverClient,
    DriverSettings,
    Expansion,
    NoDriverSettings,
    NoSettingsError,
    Publication,
    Staging,
    UnknownSettingsError,
    VolumeAccess,
    VolumeLimits,
    VolumeUsages,
)
from trio_kubelet.k8s import (
    CSIDriverSpec,
    CSIPersistentVolumeSource,
    CSITokenRequest,
    CSIVolumeSource,
    Node,
    PersistentVolumeAccessMode,
    Pod,
    Secret,
    SecretReference,
    Time,
    VolumeAttachment,
)
from trio_kubelet.references import NoReferences, ObjectError, References
from trio_kubelet.rpc import Code
from trio_kubelet.rpc.stubs.csi import v1 as csi
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.telemetry import EventRecorder, Journal
from trio_kubelet.volumes.csi_records import (
    EPHEMERAL,
    PERSISTENT,
    PLUGIN,
    VolumeKey,
    attachment_name,
)
from trio_kubelet.volumes.operations import VolumeOperations
from trio_kubelet.volumes.payload import fs_group
from trio_kubelet.volumes.plugin import VolumeError
from trio_kubelet.volumes.resolved import ResolvedVolume

Capabilities = frozenset[int]
"""The numbers of what a driver can do, as it tells itself."""

STAGES = csi.NodeServiceCapabilityRpcType.STAGE_UNSTAGE_VOLUME

_Capability = csi.NodeServiceCapabilityRpcType
_Mode = csi.VolumeCapabilityAccessModeMode
_PREFIX = "csi.storage.k8s.io/"
TOKENS = f"{_PREFIX}serviceAccount.tokens"

WITH_FS_TYPE, FILE, NONE = "ReadWriteOnceWithFSType", "File", "None"
"""Policies for the files of a pod's group."""

USUAL_SETTINGS = CSIDriverSpec(
    attach_required=True, fs_group_policy=WITH_FS_TYPE, volume_lifecycle_modes=(PERSISTENT,)
)
"""Of a driver without a CSIDriver object."""


DRIVER_SECONDS = 5.0
"""A driver is waited for so long in one try; the pod tries again."""


class NoDriverError(Exception):
    """A driver is not registered on the node."""


@frozen(kw_only=True)
class CSIParts:
    """The parts that volumes of CSI drivers stand on."""

    drivers: CSIDrivers
    usages: VolumeUsages
    settings: DriverSettings | NoDriverSettings
    node: str
    """The node's name."""
    node_object: Callable[[], Node | None]
    """Returns the Node object, None while there is none."""
    journal: Journal
    recorder: EventRecorder
    clock: Clock
    privileged: bool
    """Files can be given away."""
    look_seconds: float
    """How often volumes in use are looked after."""
    limits: VolumeLimits | None = None
    """The numbers of volumes that the node can have; None if the cluster does not want to know."""
    selinux: bool = False
    """The node labels files for containers."""
    operations: VolumeOperations = field(factory=VolumeOperations)

    def shown_plugin(self, driver: str) -> str:
        """Return the plugin's name in metrics; with the driver's, if there is one of that name."""
        return PLUGIN if self.drivers.get(driver) is None else f"{PLUGIN}:{driver}"

    async def driver(self, name: str) -> DriverClient:
        """Return a driver, for which it waits a little. Raises NoDriverError."""
        with trio.move_on_after(DRIVER_SECONDS):
            return await self.drivers.wait(name)
        raise NoDriverError(f"driver name {name} not found in the list of registered CSI drivers")


@frozen
class CSIRequests:
    """Gathers what drivers are told of volumes. `objects` has their secrets and tokens."""

    _parts: CSIParts
    _objects: References | NoReferences

    async def driver_settings(self, volume: ResolvedVolume) -> CSIDriverSpec:
        """Return the settings of a volume's driver. Raises VolumeError if it has none of its kind.

        A driver without settings has persistent volumes, and no others.
        """
        driver = volume_key(volume, "").driver
        mode = EPHEMERAL if volume.persistent is None else PERSISTENT
        words = "kubernetes.io/csi: mounter.SetUpAt failed to check volume lifecycle mode: "
        words += f'volume mode "{mode}" not supported by driver {driver}'
        try:
            spec = await self._parts.settings.get(driver)
        except UnknownSettingsError as error:
            if isinstance(error, NoSettingsError) and volume.persistent is not None:
                return USUAL_SETTINGS
            raise VolumeError(volume.spec_name, f"{words} ({error})") from error
        if mode not in (spec.volume_lifecycle_modes or (PERSISTENT,)):
            only = ", ".join(f'"{each}"' for each in spec.volume_lifecycle_modes)
            raise VolumeError(volume.spec_name, f"{words} (only supports [{only}])")
        return spec

    async def publish_context(self, key: VolumeKey) -> Mapping[str, str]:
        """Return what attaching a volume to the node has told. Raises ObjectError."""
        name = attachment_name(key, self._parts.node)
        try:
            attachment = await self._objects.attachment(name)
        except ObjectError as error:
            words = f"volume {key.handle} has GET error for volume attachment {name}: {error}"
            raise ObjectError(words) from error
        if problem := _attachment_problem(attachment, key):
            raise ObjectError(problem)
        return attachment.status.attachment_metadata

    async def why_node_is_full(self, key: VolumeKey) -> str:
        """Return why a volume cannot be attached as the node has too many; "" if it may be yet.

        Where the cluster does not want to be told of a driver's limit, nobody is asked.
        """
        limits = self._parts.limits
        if limits is None or not limits.may_change(key.driver):
            return ""
        try:
            attachment = await self._objects.attachment(attachment_name(key, self._parts.node))
        except ObjectError:  # The controller has not begun, or the API server is away.
            return ""
        error = attachment.status.attach_error
        if attachment.status.attached or error is None:
            return ""
        if error.error_code != Code.RESOURCE_EXHAUSTED:
            return ""
        limits.ask(key.driver)
        return error.message or "volume attachment limit exceeded"

    async def staging(
        self,
        pod: Pod,
        volume: ResolvedVolume,
        capabilities: Capabilities,
        publish_context: Mapping[str, str],
        path: Path,
    ) -> Staging:
        """Return what a driver is told when it stages a volume at a path. Raises ObjectError."""
        source = volume.source_as(CSIPersistentVolumeSource)
        return Staging(
            volume_id=source.volume_handle,
            path=str(path),
            access=volume_access(pod, volume, capabilities),
            publish_context=publish_context,
            context=source.volume_attributes,
            secrets=await self._secret_of_volume(source.node_stage_secret_ref, "NodeStage"),
        )

    async def publication(
        self,
        pod: Pod,
        volume: ResolvedVolume,
        spec: CSIDriverSpec,
        capabilities: Capabilities,
        target: Path,
    ) -> Publication:
        """Return what a driver is told when it publishes a volume. Raises ObjectError.

        Of a persistent volume attachment and stage are missing.
        """
        source = csi_source(volume)
        context, secrets = dict(source.volume_attributes), await self._publish_secrets(pod, volume)
        if spec.pod_info_on_mount:
            context |= pod_context(pod, is_ephemeral=volume.persistent is None)
        if spec.token_requests:
            tokens = await service_account_tokens(self._objects, pod, spec.token_requests)
            (secrets if spec.service_account_token_in_secrets else context).update(tokens)
        return Publication(
            volume_id=volume_key(volume, pod.metadata.uid).handle,
            target=str(target),
            access=volume_access(pod, volume, capabilities),
            read_only=volume.read_only,
            context=context,
            secrets=secrets,
        )

    async def expansion(
        self,
        pod: Pod,
        volume: ResolvedVolume,
        capabilities: Capabilities,
        *,
        size_bytes: int,
        path: str,
        staging_path: str,
    ) -> Expansion:
        """Return what a driver is told of a persistent volume that grows. Raises ObjectError."""
        source = volume.source_as(CSIPersistentVolumeSource)
        return Expansion(
            volume_id=source.volume_handle,
            path=path,
            size_bytes=size_bytes,
            access=volume_access(pod, volume, capabilities),
            staging_path=staging_path,
            secrets=await self._secret_of_volume(source.node_expand_secret_ref, "NodeExpand"),
        )

    async def _publish_secrets(self, pod: Pod, volume: ResolvedVolume) -> dict[str, str]:
        reference = csi_source(volume).node_publish_secret_ref
        if isinstance(reference, SecretReference):
            return await self._secret_of_volume(reference, "NodePublish")
        if reference is None:
            return {}
        return secret_texts(await self._objects.secret(pod.metadata.namespace, reference.name))

    async def _secret_of_volume(
        self, reference: SecretReference | None, call: str
    ) -> dict[str, str]:
        if reference is None:
            return {}
        namespace, name = reference.namespace, reference.name
        try:
            return secret_texts(await self._objects.volume_secret(namespace, name))
        except ObjectError as error:
            words = f"fetching {call}SecretRef {namespace}/{name} failed: {error}"
            raise ObjectError(words) from error


def csi_source(volume: ResolvedVolume) -> CSIVolumeSource | CSIPersistentVolumeSource:
    """Return the source of a volume of a driver, of either kind."""
    if volume.persistent is None:
        return volume.source_as(CSIVolumeSource)
    return volume.source_as(CSIPersistentVolumeSource)


def volume_key(volume: ResolvedVolume, pod_uid: str) -> VolumeKey:
    """Return what the driver calls a volume; the pod counts where the volume is made for it."""
    source = csi_source(volume)
    if isinstance(source, CSIPersistentVolumeSource):
        return VolumeKey(source.driver, source.volume_handle)
    return VolumeKey(source.driver, volume_handle(pod_uid, volume.name))


def volume_handle(pod_uid: str, volume: str) -> str:
    """Return what a driver calls a volume that is made for a pod; the Go kubelet's is the same."""
    return f"csi-{hashlib.sha256(f'{pod_uid}{volume}'.encode()).hexdigest()}"


def volume_access(pod: Pod, volume: ResolvedVolume, capabilities: Capabilities) -> VolumeAccess:
    """Return the use that a pod makes of a volume, in the words of the driver."""
    mode = access_mode(volume, capabilities)
    if volume.is_block:
        return VolumeAccess(mode=mode, is_block=True)
    group = fs_group(pod) if _Capability.VOLUME_MOUNT_GROUP in capabilities else None
    return VolumeAccess(
        mode=mode,
        fs_type=csi_source(volume).fs_type,
        mount_flags=volume.mount_options,
        group="" if group is None else str(group),
    )


def access_mode(volume: ResolvedVolume, capabilities: Capabilities) -> int:
    """Return CSI's number for the first access mode of a volume."""
    modes = () if volume.persistent is None else volume.persistent.spec.access_modes
    told = _Capability.SINGLE_NODE_MULTI_WRITER in capabilities
    match modes[:1]:
        case (PersistentVolumeAccessMode.READ_ONLY_MANY,):
            return _Mode.MULTI_NODE_READER_ONLY
        case (PersistentVolumeAccessMode.READ_WRITE_MANY,):
            return _Mode.MULTI_NODE_MULTI_WRITER
        case (PersistentVolumeAccessMode.READ_WRITE_ONCE_POD,) if told:
            return _Mode.SINGLE_NODE_SINGLE_WRITER
        case (PersistentVolumeAccessMode.READ_WRITE_ONCE_POD,):
            return _Mode.SINGLE_NODE_WRITER
    return _Mode.SINGLE_NODE_MULTI_WRITER if told else _Mode.SINGLE_NODE_WRITER


def is_owned_by_node(
    volume: ResolvedVolume, spec: CSIDriverSpec, capabilities: Capabilities
) -> bool:
    """True if the node, and not the driver, gives the files to the pod's group."""
    policy = spec.fs_group_policy or WITH_FS_TYPE
    if _Capability.VOLUME_MOUNT_GROUP in capabilities or policy == NONE:
        return False
    if policy == FILE:
        return True
    if not csi_source(volume).fs_type:
        return False
    once = {
        PersistentVolumeAccessMode.READ_WRITE_ONCE,
        PersistentVolumeAccessMode.READ_WRITE_ONCE_POD,
    }
    return volume.persistent is None or not once.isdisjoint(volume.persistent.spec.access_modes)


def pod_context(pod: Pod, *, is_ephemeral: bool) -> Mapping[str, str]:
    """Return the attributes that a driver with `podInfoOnMount` gets of a volume."""
    return {
        f"{_PREFIX}pod.name": pod.metadata.name,
        f"{_PREFIX}pod.namespace": pod.metadata.namespace,
        f"{_PREFIX}pod.uid": pod.metadata.uid,
        f"{_PREFIX}serviceAccount.name": pod.spec.service_account_name,
        f"{_PREFIX}ephemeral": "true" if is_ephemeral else "false",
    }


def secret_texts(secret: Secret) -> dict[str, str]:
    """Return a secret's values as CSI has them: texts. Raises ObjectError for other bytes."""
    try:
        return {name: value.decode() for name, value in secret.data.items()}
    except UnicodeDecodeError as error:
        raise ObjectError(
            f'secret "{secret.metadata.name}": CSI drivers get texts, and a value is no UTF-8'
        ) from error


async def service_account_tokens(
    objects: References | NoReferences, pod: Pod, requests: Iterable[CSITokenRequest]
) -> Mapping[str, str]:
    """Return the attribute with the tokens that a driver asks for. Raises ObjectError."""
    tokens = {}
    for request in requests:
        token = await objects.token(pod, request.audience, request.expiration_seconds)
        tokens[request.audience] = {
            "token": token,
            "expirationTimestamp": str(Time.from_ns(_expiration_seconds(token) * 10**9)),
        }
    return {TOKENS: orjson.dumps(tokens, option=orjson.OPT_SORT_KEYS).decode()}


def _attachment_problem(attachment: VolumeAttachment, key: VolumeKey) -> str:
    """Return why a volume cannot be used though the Node says that it is attached, or ""."""
    if attachment.metadata.deletion_timestamp is not None:
        return "volume attachment is being deleted"
    if attachment.status.attached:
        return ""
    if attachment.status.attach_error is not None:
        return attachment.status.attach_error.message
    return (
        f"timed out waiting for external-attacher of {key.driver} CSI driver to attach "
        f"volume {key.handle}"
    )


def _expiration_seconds(token: str) -> int:
    """Return when a token ends, as it says itself. Raises ObjectError for one that does not."""
    try:
        _, claims, _ = token.split(".")
        padded = claims + "=" * (-len(claims) % 4)
        return int(orjson.loads(base64.urlsafe_b64decode(padded))["exp"])
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise ObjectError("the token of the service account does not tell when it ends") from error
