"""The places of volumes in a container, as folders or as devices."""

from collections.abc import Iterator, Mapping

from trio_kubelet.k8s.container import (
    Container,
    MountPropagationMode,
    RecursiveReadOnlyMode,
    VolumeMount,
)
from trio_kubelet.k8s.errors import (
    FieldError,
    all_invalid,
    forbidden,
    invalid,
    not_found,
    required,
    unsupported,
)
from trio_kubelet.k8s.validation import formats
from trio_kubelet.k8s.volumes import Volume


def check_mounts(
    container: Container, volumes: Mapping[str, Volume], path: str
) -> Iterator[FieldError]:
    """Check the mounts of a container against the pod's volumes."""
    devices = {device.name: device.device_path for device in container.volume_devices}
    seen: set[str] = set()
    for index, mount in enumerate(container.volume_mounts):
        where = f"{path}[{index}]"
        if not mount.name:
            yield required(f"{where}.name")
        elif mount.name not in volumes:
            yield not_found(f"{where}.name", mount.name)
        yield from _check_mount_path(mount.mount_path, seen, f"{where}.mountPath")
        if mount.name in devices:
            yield invalid(f"{where}.name", mount.name, "must not already exist in volumeDevices")
        if mount.mount_path and mount.mount_path in devices.values():
            detail = "must not already exist as a path in volumeDevices"
            yield invalid(f"{where}.mountPath", mount.mount_path, detail)
        yield from _check_sub_path(mount, volumes.get(mount.name), where)
        yield from _check_propagation(mount, container, where)
        yield from _check_recursive_read_only(mount, where)


def _check_mount_path(mount_path: str, seen: set[str], path: str) -> Iterator[FieldError]:
    if not mount_path:
        yield required(path)
        return
    if mount_path in seen:
        yield invalid(path, mount_path, "must be unique")
    seen.add(mount_path)
    if ":" in mount_path:
        yield invalid(path, mount_path, "must not contain ':'")


def _check_sub_path(mount: VolumeMount, volume: Volume | None, path: str) -> Iterator[FieldError]:
    given = {"subPath": mount.sub_path, "subPathExpr": mount.sub_path_expr}
    for name, value in given.items():
        if not value:
            continue
        if volume is not None and volume.image is not None:
            yield invalid(f"{path}.{name}", value, "not allowed in image volume sources")
        yield from all_invalid(f"{path}.{name}", value, formats.relative_path(value))
    if all(given.values()):
        detail = "subPathExpr and subPath are mutually exclusive"
        yield invalid(f"{path}.subPathExpr", mount.sub_path_expr, detail)


def _check_propagation(mount: VolumeMount, container: Container, path: str) -> Iterator[FieldError]:
    mode, where = mount.mount_propagation, f"{path}.mountPropagation"
    if mode and mode not in list(MountPropagationMode):
        yield unsupported(where, mode, MountPropagationMode)
    security = container.security_context
    privileged = security is not None and security.privileged is True
    if mode == MountPropagationMode.BIDIRECTIONAL and not privileged:
        detail = "Bidirectional mount propagation is available only to privileged containers"
        yield forbidden(where, detail)


def _check_recursive_read_only(mount: VolumeMount, path: str) -> Iterator[FieldError]:
    mode, where = mount.recursive_read_only, f"{path}.recursiveReadOnly"
    if not mode or mode == RecursiveReadOnlyMode.DISABLED:
        return
    if mode not in list(RecursiveReadOnlyMode):
        yield unsupported(where, mode, RecursiveReadOnlyMode)
        return
    if not mount.read_only:
        yield forbidden(where, "may only be specified when readOnly is true")
    if mount.mount_propagation not in ("", MountPropagationMode.NONE):
        yield forbidden(
            where, "may only be specified when mountPropagation is None or not specified"
        )


def check_devices(
    container: Container, volumes: Mapping[str, Volume], path: str
) -> Iterator[FieldError]:
    """Check the raw block devices of a container."""
    mounts = {mount.name: mount.mount_path for mount in container.volume_mounts}
    names: set[str] = set()
    paths: set[str] = set()
    for index, device in enumerate(container.volume_devices):
        where = f"{path}[{index}]"
        name, device_path = device.name, device.device_path
        if not name:
            yield required(f"{where}.name")
        else:
            yield from _check_device_volume(name, volumes, f"{where}.name")
        if name in names:
            yield invalid(f"{where}.name", name, "must be unique")
        if name in mounts:
            yield invalid(f"{where}.name", name, "must not already exist in volumeMounts")
        if not device_path:
            yield required(f"{where}.devicePath")
        if device_path in paths:
            yield invalid(f"{where}.devicePath", device_path, "must be unique")
        if formats.path_without_backsteps(device_path):
            detail = "can not contain backsteps ('..')"
            yield invalid(f"{where}.devicePath", device_path, detail)
        if device_path and device_path in mounts.values():
            detail = "must not already exist as a path in volumeMounts"
            yield invalid(f"{where}.devicePath", device_path, detail)
        names.add(name)
        paths.add(device_path)


def _check_device_volume(
    name: str, volumes: Mapping[str, Volume], path: str
) -> Iterator[FieldError]:
    volume = volumes.get(name)
    if volume is None:
        yield not_found(path, name)
    elif volume.persistent_volume_claim is None and volume.ephemeral is None:
        detail = (
            "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
        )
        yield invalid(path, name, detail)
