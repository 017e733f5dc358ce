"""The mounts of a container: volumes, the hosts file, the termination message file.

The volumes part has mounted the volumes on the node and says where; sub-paths are expanded
here, resolved there (a link inside a volume must not lead out of it), and put in here.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath

from attrs import frozen

from trio_kubelet.errors import ConfigError
from trio_kubelet.k8s import (
    Container,
    MountPropagationMode,
    Pod,
    RecursiveReadOnlyMode,
    VolumeMount,
)
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.config.expansion import (
    PATH_MAX_BYTES,
    TooLargeError,
    expand_strictly,
)
from trio_kubelet.runtime.config.names import etc_hosts_path
from trio_kubelet.runtime.node_facts import NodeFacts

ETC_HOSTS = "/etc/hosts"

_PRIVATE, _HOST_TO_CONTAINER, _BIDIRECTIONAL = (
    cri.MountPropagation.from_string(f"PROPAGATION_{name}")
    for name in ("PRIVATE", "HOST_TO_CONTAINER", "BIDIRECTIONAL")
)
_PROPAGATION: Mapping[str, cri.MountPropagation] = {
    "": _PRIVATE,
    MountPropagationMode.NONE: _PRIVATE,
    MountPropagationMode.HOST_TO_CONTAINER: _HOST_TO_CONTAINER,
    MountPropagationMode.BIDIRECTIONAL: _BIDIRECTIONAL,
}


@frozen(kw_only=True)
class PreparedVolume:
    """A volume as it stands on the node.

    `read_only`: nothing may be written to it, whatever the container asks for. `relabel`: it is
    the node's to give an SELinux label to, and has none yet. `image`: the volume is an image
    (KEP-4639), which the runtime mounts, and there is no `host_path`. `device`: it is one, at this
    path on the node, which may be a link.
    """

    host_path: str = ""
    device: str = ""
    read_only: bool = False
    relabel: bool = False
    image: cri.ImageSpec | None = None


def mounted_sub_paths(container: Container, environment: Mapping[str, str]) -> Mapping[int, str]:
    """The sub-paths of a container's mounts, by the mount's position, relative to their volume.

    Raises ConfigError for one that is absolute, goes up, or refers to an unset variable.
    """
    sub_paths = {
        position: _sub_path(mount, environment)
        for position, mount in enumerate(container.volume_mounts)
    }
    return {position: sub_path for position, sub_path in sub_paths.items() if sub_path}


def mounts_etc_hosts(pod: Pod, container: Container, pod_ips: tuple[str, ...]) -> bool:
    """True if the node's hosts file for the pod goes into the container.

    Not where the container mounts one of its own, nor before the pod has an address.
    """
    own = any(mount.mount_path == ETC_HOSTS for mount in container.volume_mounts)
    return not own and bool(pod_ips or pod.spec.host_network)


def path_in_container(mount: VolumeMount) -> str:
    """The mount of a volume in its container, as the runtime is told."""
    return str(PurePosixPath("/", mount.mount_path))


@frozen(kw_only=True)
class MountSources:
    """The sources of a container's mounts.

    `volumes` are the pod's, by name; `sub_paths` maps the positions that `mounted_sub_paths`
    names to the resolved paths on the node (for image volumes, to the sub-path itself);
    `termination_message_file` is the file made for this incarnation, if any;
    `recursive_read_only` says whether the pod's runtime handler makes such mounts.
    """

    volumes: Mapping[str, PreparedVolume]
    sub_paths: Mapping[int, str]
    pod_ips: tuple[str, ...]
    termination_message_file: str = ""
    recursive_read_only: bool = False


def container_mounts(
    pod: Pod, container: Container, node: NodeFacts, sources: MountSources
) -> tuple[cri.Mount, ...]:
    """All mounts of a container, in the order in which they are made.

    Raises ConfigError for a volume that is not mounted and for modes that contradict each other.
    """
    mounts = [
        _volume_mount(
            container,
            mount,
            sources.volumes.get(mount.name),
            sources.sub_paths.get(position),
            selinux=node.selinux,
            recursive_read_only=sources.recursive_read_only,
        )
        for position, mount in enumerate(container.volume_mounts)
    ]
    if mounts_etc_hosts(pod, container, sources.pod_ips):
        host_path = etc_hosts_path(node.settings.options.root_dir, pod.metadata.uid)
        mounts.append(_file_mount(ETC_HOSTS, host_path, node))
    if container.termination_message_path and sources.termination_message_file:
        container_path = str(PurePosixPath("/", container.termination_message_path))
        mounts.append(_file_mount(container_path, sources.termination_message_file, node))
    return tuple(mounts)


def container_devices(
    container: Container, volumes: Mapping[str, PreparedVolume]
) -> tuple[cri.Device, ...]:
    """The devices that a container gets of volumes. Raises ConfigError for one that is none."""
    devices = []
    for wanted in container.volume_devices:
        volume = volumes.get(wanted.name)
        if volume is None or not volume.device:
            raise ConfigError(
                f'cannot find volume "{wanted.name}" to pass into container "{container.name}"'
            )
        devices.append(
            cri.Device(
                container_path=wanted.device_path,
                host_path=volume.device,
                permissions="r" if volume.read_only else "mrw",
            )
        )
    return tuple(devices)


def _sub_path(mount: VolumeMount, environment: Mapping[str, str]) -> str:
    sub_path = mount.sub_path
    if mount.sub_path_expr:
        try:
            sub_path, missing = expand_strictly(mount.sub_path_expr, environment)
        except TooLargeError:
            raise ConfigError(
                f'subPathExpr of volumeMount "{mount.name}" is too large: expanded it would have '
                f"more than {PATH_MAX_BYTES} bytes"
            ) from None
        if missing:
            raise ConfigError(f"missing value for {', '.join(missing)}")
    if sub_path.startswith("/"):
        raise ConfigError(f"error SubPath `{sub_path}` must not be an absolute path")
    if ".." in sub_path.split("/"):
        raise ConfigError(f"unable to provision SubPath `{sub_path}`: must not contain '..'")
    return sub_path


def _volume_mount(
    container: Container,
    mount: VolumeMount,
    volume: PreparedVolume | None,
    sub_path: str | None,
    *,
    selinux: bool,
    recursive_read_only: bool,
) -> cri.Mount:
    if volume is None:
        raise ConfigError(
            f'cannot find volume "{mount.name}" to mount into container "{container.name}"'
        )
    if mount.mount_propagation not in _PROPAGATION:
        raise ConfigError(f'invalid MountPropagation mode: "{mount.mount_propagation}"')
    built = cri.Mount(
        container_path=path_in_container(mount),
        readonly=bool(mount.read_only) or volume.read_only,
        recursive_read_only=_is_recursively_read_only(mount, recursive_read_only),
        selinux_relabel=volume.relabel and selinux,
        propagation=_PROPAGATION[mount.mount_propagation],
    )
    if volume.image is not None:
        built.image = volume.image
        built.image_sub_path = sub_path or ""
    else:
        built.host_path = sub_path or volume.host_path
    return built


def _is_recursively_read_only(mount: VolumeMount, supported: bool) -> bool:
    """KEP-3857: mounts below a read-only mount stay writable unless this is asked for."""
    mode = mount.recursive_read_only or RecursiveReadOnlyMode.DISABLED
    if mode == RecursiveReadOnlyMode.DISABLED:
        return False
    wanted = f'volume "{mount.name}" requested recursive read-only mode, but it is not'
    if not mount.read_only:
        raise _contradiction(f"{wanted} read-only")
    if mount.mount_propagation not in ("", MountPropagationMode.NONE):
        raise _contradiction(f'{wanted} compatible with propagation "{mount.mount_propagation}"')
    if mode == RecursiveReadOnlyMode.IF_POSSIBLE:
        return supported
    if mode != RecursiveReadOnlyMode.ENABLED:
        raise _contradiction(f'unknown recursive read-only mode "{mode}"')
    if not supported:
        raise _contradiction(f"{wanted} supported by the runtime")
    return True


def _contradiction(message: str) -> ConfigError:
    return ConfigError(f"failed to resolve recursive read-only mode: {message}")


def _file_mount(container_path: str, host_path: str, node: NodeFacts) -> cri.Mount:
    return cri.Mount(
        container_path=container_path, host_path=host_path, selinux_relabel=node.selinux
    )
