"""The hollow runtime's knowledge of each sandbox and container, and its answers made of that.

A record is mutable and has one owner: `sandboxes.py` or `containers.py`. A container's state is
read off its times, as containerd does it: finished means EXITED, started RUNNING, else CREATED;
one that was `lost` is UNKNOWN until it ends.
`encodings` are kept for `lists.py`: list entries as bytes, by state, which is all that changes.
`encoded_status` is the last one for an event, behind what it was made of: each event of a pod tells
of all its containers, and one has changed.
The functions below turn records into fresh CRI messages; who gets one may keep it.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Generic, TypeVar

import betterproto
import trio
from attrs import define, field, frozen

from trio_kubelet.hollow.behaviour import Behaviour
from trio_kubelet.hollow.images import ImageStore, StoredImage
from trio_kubelet.hollow.process import Process
from trio_kubelet.rpc import is_present
from trio_kubelet.rpc.stubs.runtime import v1 as cri

_Response = TypeVar("_Response", bound=betterproto.Message)

_CREATED = cri.ContainerState(cri.ContainerState.CONTAINER_CREATED)
_RUNNING = cri.ContainerState(cri.ContainerState.CONTAINER_RUNNING)
_EXITED = cri.ContainerState(cri.ContainerState.CONTAINER_EXITED)
_UNKNOWN = cri.ContainerState(cri.ContainerState.CONTAINER_UNKNOWN)
_READY = cri.PodSandboxState(cri.PodSandboxState.SANDBOX_READY)
_NOT_READY = cri.PodSandboxState(cri.PodSandboxState.SANDBOX_NOTREADY)


@frozen
class EncodedResponse(Generic[_Response]):
    """A response that is encoded already, and decoded only when somebody looks into it."""

    data: bytes
    type: type[_Response]

    def __bytes__(self) -> bytes:
        return self.data

    def __getattr__(self, name: str) -> Any:
        return getattr(self.type().parse(self.data), name)


@frozen(kw_only=True)
class ContainerUse:
    """The use of the node by a container.

    It has memory and tasks while it runs, its layer as long as it is there. Memory of None is half
    of its limit, or 8 MiB.
    """

    memory_bytes: int | None = None
    tasks: int = 1
    layer_bytes: int = 64 << 10
    layer_inodes: int = 16


@define(eq=False, kw_only=True)
class HollowContainer:
    """One container. Times are nanoseconds since the epoch, 0: not yet.

    `use` may be replaced at any time.
    """

    id: str
    name: str
    sandbox: "HollowSandbox"
    config: cri.ContainerConfig
    image: StoredImage
    log_path: str
    created_at: int
    behaviour: Behaviour
    resources: cri.LinuxContainerResources
    use: ContainerUse = ContainerUse()
    started_at: int = 0
    finished_at: int = 0
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    starting: bool = False
    lost: bool = False
    stop_signal_sent: bool = False
    process: Process | None = None
    encodings: dict[int, list[bytes]] = field(factory=dict)
    encoded_status: tuple[object, bytes] = (None, b"")
    stopped: trio.Event = field(factory=trio.Event)

    @property
    def state(self) -> cri.ContainerState:
        """The state in CRI's words."""
        if self.finished_at:
            return _EXITED
        if self.lost:
            return _UNKNOWN
        return _RUNNING if self.started_at else _CREATED


@define(eq=False, kw_only=True)
class HollowSandbox:
    """One sandbox with its containers by id, in the order of their creation."""

    id: str
    name: str
    config: cri.PodSandboxConfig
    handler: str
    created_at: int
    ip: str
    ready: bool = True
    containers: dict[str, HollowContainer] = field(factory=dict)
    encodings: dict[int, list[bytes]] = field(factory=dict)

    @property
    def state(self) -> cri.PodSandboxState:
        """The state in CRI's words."""
        return _READY if self.ready else _NOT_READY


def uses_host_network(config: cri.PodSandboxConfig) -> bool:
    """True if the pod shares the node's network, so that it gets no IP of its own."""
    options = config.linux.security_context.namespace_options
    return options.network == cri.NamespaceMode.NODE


def has_labels(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """True if all pairs of the selector are among the labels."""
    return selector.items() <= labels.items()


def sandbox_entry(sandbox: HollowSandbox) -> cri.PodSandbox:
    """The sandbox as ListPodSandbox shows it."""
    return cri.PodSandbox(
        id=sandbox.id,
        metadata=sandbox.config.metadata,
        state=sandbox.state,
        created_at=sandbox.created_at,
        labels=dict(sandbox.config.labels),
        annotations=dict(sandbox.config.annotations),
        runtime_handler=sandbox.handler,
    )


def sandbox_status(sandbox: HollowSandbox) -> cri.PodSandboxStatus:
    """The sandbox as PodSandboxStatus and the events show it."""
    options = sandbox.config.linux.security_context.namespace_options
    return cri.PodSandboxStatus(
        id=sandbox.id,
        metadata=sandbox.config.metadata,
        state=sandbox.state,
        created_at=sandbox.created_at,
        network=cri.PodSandboxNetworkStatus(ip=sandbox.ip),
        linux=cri.LinuxPodSandboxStatus(namespaces=cri.Namespace(options=options)),
        labels=dict(sandbox.config.labels),
        annotations=dict(sandbox.config.annotations),
        runtime_handler=sandbox.handler,
    )


def container_entry(container: HollowContainer) -> cri.Container:
    """The container as ListContainers shows it."""
    return cri.Container(
        id=container.id,
        pod_sandbox_id=container.sandbox.id,
        metadata=container.config.metadata,
        image=container.config.image,
        image_ref=container.image.id,
        state=container.state,
        created_at=container.created_at,
        labels=dict(container.config.labels),
        annotations=dict(container.config.annotations),
    )


def container_status(container: HollowContainer, images: ImageStore) -> cri.ContainerStatus:
    """The container as ContainerStatus and the events show it.

    `image` is the image's first tag and `image_ref` its first digest, as long as the image is
    in the store; afterwards what the container was created with, and the image's id. `image_id`
    and `stop_signal` are left out, as they are in containerd 2.1.
    """
    image = images.by_id(container.image.id)
    tags, digests = (image.tags, image.digests) if image else ((), ())
    return cri.ContainerStatus(
        id=container.id,
        metadata=container.config.metadata,
        state=container.state,
        created_at=container.created_at,
        started_at=container.started_at,
        finished_at=container.finished_at,
        exit_code=container.exit_code,
        image=cri.ImageSpec(image=tags[0]) if tags else container.config.image,
        image_ref=digests[0] if digests else container.image.id,
        reason=_reason(container),
        message=container.message,
        labels=dict(container.config.labels),
        annotations=dict(container.config.annotations),
        mounts=[_mount(each, images) for each in container.config.mounts],
        log_path=container.log_path,
        resources=cri.ContainerResources(linux=container.resources),
        user=_user(container),
    )


def _mount(mount: cri.Mount, images: ImageStore) -> cri.Mount:
    """A mount as it was asked for; that of an image says which one it is."""
    image = images.resolve(mount.image.image) if mount.image.image else None
    if image is None or not image.digests:
        return mount
    found = cri.Mount.FromString(bytes(mount))
    found.image.image_ref = image.digests[0]
    return found


def encoded_status(container: HollowContainer, images: ImageStore) -> bytes:
    """The container's status as a part of an event."""
    made_of = (
        *(container.state, container.started_at, container.finished_at, container.exit_code),
        *(container.reason, container.message),
        # Those two are replaced whole: to compare the same one with itself costs nothing.
        *(container.resources, images.by_id(container.image.id)),
    )
    if container.encoded_status[0] != made_of:
        status = container_status(container, images)
        encoded = bytes(cri.ContainerEventResponse(containers_statuses=[status]))
        container.encoded_status = made_of, encoded
    return container.encoded_status[1]


def log_path(sandbox_config: cri.PodSandboxConfig, config: cri.ContainerConfig) -> str:
    """The path of the container's log; empty when either part of it was not given."""
    if not sandbox_config.log_directory or not config.log_path:
        return ""
    return str(PurePosixPath(sandbox_config.log_directory) / config.log_path)


def _reason(container: HollowContainer) -> str:
    if container.state is not cri.ContainerState.CONTAINER_EXITED or container.reason:
        return container.reason
    return "Completed" if container.exit_code == 0 else "Error"


def _user(container: HollowContainer) -> cri.ContainerUser:
    """Return the user that the container asks for, else the image's."""
    context, image = container.config.linux.security_context, container.image
    asks_for_user = is_present(context.run_as_user)
    asks_for_group = is_present(context.run_as_group)
    uid = context.run_as_user.value if asks_for_user else image.uid or 0
    gid = image.gid if not asks_for_user else 0
    gid = context.run_as_group.value if asks_for_group else gid
    groups = dict.fromkeys((gid, *context.supplemental_groups, *image.groups))
    return cri.ContainerUser(
        linux=cri.LinuxContainerUser(uid=uid, gid=gid, supplemental_groups=list(groups))
    )
