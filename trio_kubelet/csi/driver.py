"""A CSI driver as this node calls it: the calls of the service Node, each with a deadline.

What a driver answers is judged here: names, numbers and paths of others go into objects of the API
and into paths. A call that fails raises RpcError; after one without an answer nobody knows whether
it was done, and CSI lets it be made again.
"""

import re
from collections.abc import Mapping, Sequence

import betterproto
from attrs import evolve, field, frozen

from trio_kubelet.k8s.validation.formats import label_value, qualified_name
from trio_kubelet.rpc import Code, RpcError, Transport, present
from trio_kubelet.rpc.stubs.csi import v1 as csi

CALL_SECONDS = 120.0
"""The deadline of every call, as in the Go kubelet."""
MAX_NODE_ID = 256
"""Bytes of a node's id in CSI since version 1.4."""
MAX_TOPOLOGY_KEYS = 64
MAX_INT32 = 2**31 - 1

MEASURES = csi.NodeServiceCapabilityRpcType.GET_VOLUME_STATS
"""The driver tells the space of volumes."""

EXPANDS = csi.NodeServiceCapabilityRpcType.EXPAND_VOLUME
"""The driver has a part in it when a volume grows."""

_VERSION = re.compile(r"v?(\d{1,9}(?:\.\d{1,9}){0,3})\b.*", re.DOTALL)
_DRIVER_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
MAX_DRIVER_NAME = 63

Version = tuple[int, ...]


@frozen(kw_only=True)
class NodeInfo:
    """The node as a driver knows it.

    `max_volumes` is 0 where the driver sets no limit. `topology` are the segments by which the
    node's place is named, such as {"topology.example.com/zone": "a"}.
    """

    node_id: str
    max_volumes: int = 0
    topology: Mapping[str, str] = field(factory=dict)


@frozen(kw_only=True)
class VolumeAccess:
    """The use that is to be made of a volume; CSI calls it a capability.

    `mode` is one of CSI's numbers of access modes, `group` the id of the group that the driver is
    to give the files to, empty for none. A block device has no other fields.
    """

    mode: int
    is_block: bool = False
    fs_type: str = ""
    mount_flags: tuple[str, ...] = ()
    group: str = ""


@frozen(kw_only=True)
class Staging:
    """A volume as it is to be brought to the node. `secrets` show in no `repr`.

    `publish_context` is what attaching it has told.
    """

    volume_id: str
    path: str
    access: VolumeAccess
    publish_context: Mapping[str, str] = field(factory=dict)
    context: Mapping[str, str] = field(factory=dict)
    secrets: Mapping[str, str] = field(factory=dict, repr=False)


@frozen(kw_only=True)
class Publication:
    """A volume as it is to be put into a pod's folder. `secrets` show in no `repr`.

    `target` is the path there, `staging_path` where it was staged, empty if it was not.
    """

    volume_id: str
    target: str
    access: VolumeAccess
    staging_path: str = ""
    read_only: bool = False
    publish_context: Mapping[str, str] = field(factory=dict)
    context: Mapping[str, str] = field(factory=dict)
    secrets: Mapping[str, str] = field(factory=dict, repr=False)


@frozen(kw_only=True)
class Expansion:
    """A volume at the node that is to use more space. `secrets` show in no `repr`.

    `path` is where it is published for a pod, `staging_path` as in Publication.
    """

    volume_id: str
    path: str
    size_bytes: int
    access: VolumeAccess
    staging_path: str = ""
    secrets: Mapping[str, str] = field(factory=dict, repr=False)


@frozen(kw_only=True)
class VolumeUsage:
    """The space of a volume in bytes, and its inodes; None for what its driver does not tell."""

    capacity: int | None = None
    available: int | None = None
    used: int | None = None
    inodes: int | None = None
    inodes_free: int | None = None
    inodes_used: int | None = None


@frozen(kw_only=True)
class DriverClient:
    """The way to a driver: its name, the newest version of CSI it speaks, and its calls."""

    name: str
    version: Version
    transport: Transport

    async def node_info(self) -> NodeInfo:
        """Ask what the driver calls this node. Raises RpcError, also for an answer of no use."""
        answer = await self.transport.unary(
            csi.NodeStub.node_get_info, csi.NodeGetInfoRequest(), deadline_seconds=CALL_SECONDS
        )
        if problem := _node_info_problem(answer):
            raise RpcError(Code.INTERNAL, f"NodeGetInfo of CSI driver {self.name}: {problem}")
        return NodeInfo(
            node_id=answer.node_id,
            max_volumes=min(answer.max_volumes_per_node, MAX_INT32),
            topology=dict(answer.accessible_topology.segments),
        )

    async def capabilities(self) -> frozenset[int]:
        """Ask what the driver can do beside publishing. Raises RpcError."""
        answer = await self.transport.unary(
            csi.NodeStub.node_get_capabilities,
            csi.NodeGetCapabilitiesRequest(),
            deadline_seconds=CALL_SECONDS,
        )
        told = (betterproto.which_one_of(each, "type")[1] for each in answer.capabilities)
        return frozenset(int(each.type) for each in told if each is not None)

    async def stage(self, staging: Staging) -> None:
        """Have a volume brought to the node. Raises RpcError."""
        request = csi.NodeStageVolumeRequest(
            volume_id=staging.volume_id,
            publish_context=dict(staging.publish_context),
            staging_target_path=staging.path,
            volume_capability=_capability(staging.access),
            secrets=dict(staging.secrets),
            volume_context=dict(staging.context),
        )
        await self.transport.unary(
            csi.NodeStub.node_stage_volume, request, deadline_seconds=CALL_SECONDS
        )

    async def unstage(self, volume_id: str, path: str) -> None:
        """Have that undone; a volume that is not there is fine. Raises RpcError."""
        request = csi.NodeUnstageVolumeRequest(volume_id=volume_id, staging_target_path=path)
        await self.transport.unary(
            csi.NodeStub.node_unstage_volume, request, deadline_seconds=CALL_SECONDS
        )

    async def publish(self, publication: Publication) -> None:
        """Have a volume mounted at its target. Raises RpcError."""
        request = csi.NodePublishVolumeRequest(
            volume_id=publication.volume_id,
            publish_context=dict(publication.publish_context),
            staging_target_path=publication.staging_path,
            target_path=publication.target,
            volume_capability=_capability(publication.access),
            readonly=publication.read_only,
            secrets=dict(publication.secrets),
            volume_context=dict(publication.context),
        )
        await self.transport.unary(
            csi.NodeStub.node_publish_volume, request, deadline_seconds=CALL_SECONDS
        )

    async def unpublish(self, volume_id: str, target: str) -> None:
        """Have a volume taken away; one that is not there is fine. Raises RpcError."""
        request = csi.NodeUnpublishVolumeRequest(volume_id=volume_id, target_path=target)
        await self.transport.unary(
            csi.NodeStub.node_unpublish_volume, request, deadline_seconds=CALL_SECONDS
        )

    async def expand(self, expansion: Expansion) -> None:
        """Have a volume grow to a size. Raises RpcError.

        The size that the driver answers with is left aside, as the Go kubelet does: drivers tell
        that of the file system there, or of the device, or none.
        """
        request = csi.NodeExpandVolumeRequest(
            volume_id=expansion.volume_id,
            volume_path=expansion.path,
            capacity_range=csi.CapacityRange(required_bytes=expansion.size_bytes),
            staging_target_path=expansion.staging_path,
            volume_capability=_capability(expansion.access),
            secrets=dict(expansion.secrets),
        )
        await self.transport.unary(
            csi.NodeStub.node_expand_volume, request, deadline_seconds=CALL_SECONDS
        )

    async def volume_usage(self, volume_id: str, path: str, staging_path: str) -> VolumeUsage:
        """Ask for the space of a volume that is published at a path.

        Raises RpcError, also for an answer of no use.
        """
        request = csi.NodeGetVolumeStatsRequest(
            volume_id=volume_id, volume_path=path, staging_target_path=staging_path
        )
        answer = await self.transport.unary(
            csi.NodeStub.node_get_volume_stats, request, deadline_seconds=CALL_SECONDS
        )
        if problem := _usage_problem(answer):
            raise RpcError(
                Code.INTERNAL, f"NodeGetVolumeStats of CSI driver {self.name}: {problem}"
            )
        usage = VolumeUsage()
        for told in answer.usage:
            if told.unit == csi.VolumeUsageUnit.BYTES:
                usage = evolve(usage, capacity=told.total, available=told.available, used=told.used)
            elif told.unit == csi.VolumeUsageUnit.INODES:
                usage = evolve(
                    usage, inodes=told.total, inodes_free=told.available, inodes_used=told.used
                )
        return usage


def _capability(access: VolumeAccess) -> csi.VolumeCapability:
    mode = csi.VolumeCapabilityAccessMode(mode=csi.VolumeCapabilityAccessModeMode(access.mode))
    if access.is_block:
        block = present(csi.VolumeCapabilityBlockVolume())
        return csi.VolumeCapability(block=block, access_mode=mode)
    mount = csi.VolumeCapabilityMountVolume(
        fs_type=access.fs_type,
        mount_flags=list(access.mount_flags),
        volume_mount_group=access.group,
    )
    return csi.VolumeCapability(mount=present(mount), access_mode=mode)


def is_driver_name(name: str) -> bool:
    """True if a driver may have the name: a domain of at most 63 characters."""
    return len(name) <= MAX_DRIVER_NAME and _DRIVER_NAME.fullmatch(name.lower()) is not None


def newest_version(versions: Sequence[str]) -> Version:
    """Return the newest of a driver's versions that this node speaks: 1.x.

    Raises ValueError if there is none; its text names them.
    """
    known = [version for text in versions if (version := _parsed_version(text)) is not None]
    spoken = [version for version in known if version[0] <= 1]
    if not spoken:
        raise ValueError("could not find a highest supported version from versions")
    newest = max(spoken)
    if newest[0] != 1:
        raise ValueError(
            f"highest supported version reported by driver is {shown_version(newest)}, must be v1.x"
        )
    return newest


def shown_version(version: Version) -> str:
    """Return a version as text: "1.9.0"."""
    return ".".join(map(str, version))


def _parsed_version(text: str) -> Version | None:
    match = _VERSION.fullmatch(text.strip())
    return tuple(int(part) for part in match[1].split(".")) if match is not None else None


def _usage_problem(answer: csi.NodeGetVolumeStatsResponse) -> str:
    """Return why figures cannot be used; "" if they can."""
    if not answer.usage:
        return "usage is missing"
    numbers = [(each.total, each.available, each.used) for each in answer.usage]
    if any(number < 0 for figures in numbers for number in figures):
        return "usage has a negative number"
    return ""


def _node_info_problem(answer: csi.NodeGetInfoResponse) -> str:
    """Return why an answer cannot be used; "" if it can."""
    segments = answer.accessible_topology.segments
    if not answer.node_id:
        return "node_id is empty"
    if len(answer.node_id.encode()) > MAX_NODE_ID:
        return f"node_id has more than {MAX_NODE_ID} bytes"
    if answer.max_volumes_per_node < 0:
        return f"max_volumes_per_node is {answer.max_volumes_per_node}, must not be negative"
    if len(segments) > MAX_TOPOLOGY_KEYS:
        return f"accessible_topology has more than {MAX_TOPOLOGY_KEYS} segments"
    for key, value in segments.items():
        for problem in (*qualified_name(key), *label_value(value)):
            return f"segment {key!r}={value!r} of accessible_topology cannot be a label: {problem}"
    return ""
