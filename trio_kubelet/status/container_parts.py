"""Parts of a container that its status shows as they really are: resources, mounts, user.

Of resources the runtime tells of shares, quota and memory limit; of the rest the record of what the
container was made with does. A value that says the same as the allocation keeps the allocation's
notation.
"""

from functools import lru_cache

from attrs import evolve

from trio_kubelet.k8s import (
    Container,
    ContainerUser,
    ImageVolumeStatus,
    LinuxContainerUser,
    MountPropagationMode,
    Pod,
    Quantity,
    RecursiveReadOnlyMode,
    ResourceRequirements,
    VolumeMount,
    VolumeMountStatus,
    VolumeStatus,
)
from trio_kubelet.k8s.codec import encode
from trio_kubelet.k8s.json_text import go_json
from trio_kubelet.resources.cgroup_config import MIN_SHARES
from trio_kubelet.runtime.observed import ObservedContainer, ObservedResources

LEAST_CPU_LIMIT_MILLICORES = 10
"""The kernel has no smaller quota: what is allocated below it is shown as allocated."""

_SHARES_PER_CPU = 1024
_NOTHING = Quantity(0)
_REMEMBERED_CHARACTERS = 512
"""Of the texts of a mount; nothing else bounds a path."""


def actual_resources(
    allocated: ResourceRequirements,
    actuated: ResourceRequirements | None,
    shown: ObservedResources | None,
) -> ResourceRequirements:
    """Return the resources of a container that runs (API: ContainerStatus.resources).

    `actuated` is what it was made with, None for what it was allocated; `shown` is what the
    runtime tells. Resources that cannot be resized are those of the allocation.
    """
    told = shown or ObservedResources()
    made_with = actuated or allocated
    limits, requests = dict(allocated.limits), dict(allocated.requests)
    if limits:
        limit = _cpu_limit(told) or made_with.limits.get("cpu")
        _set(limits, "cpu", limit, least_milli=LEAST_CPU_LIMIT_MILLICORES)
        _set(limits, "memory", _memory_limit(told) or made_with.limits.get("memory"))
    if requests:
        request = _cpu_request(told) or made_with.requests.get("cpu")
        _set(requests, "cpu", request, least_milli=MIN_SHARES)
        if "memory" in requests:
            _set(requests, "memory", made_with.requests.get("memory"))
    return evolve(allocated, limits=limits, requests=requests)


def _set(
    amounts: dict[str, Quantity], name: str, actual: Quantity | None, *, least_milli: int = 0
) -> None:
    """Put in what holds, unless it is the least that the kernel can do for what is allocated."""
    allocated = amounts.get(name)
    if actual is None or actual == allocated:
        return
    if max(actual, allocated or _NOTHING).milli_value <= least_milli:
        return
    amounts[name] = actual


def _cpu_limit(told: ObservedResources) -> Quantity | None:
    if told.cpu_quota <= 0 or told.cpu_period <= 0:
        return None
    return Quantity.from_milli(told.cpu_quota * 1000 // told.cpu_period)


def _cpu_request(told: ObservedResources) -> Quantity | None:
    """Shares are rounded down where they are made, so back they are rounded up."""
    if told.cpu_shares <= 0:
        return None
    return Quantity.from_milli(-(-told.cpu_shares * 1000 // _SHARES_PER_CPU))


def _memory_limit(told: ObservedResources) -> Quantity | None:
    return Quantity.from_bytes(told.memory_limit_bytes) if told.memory_limit_bytes > 0 else None


def mount_status(
    name: str, mount_path: str, read_only: bool, recursive: bool, image_ref: str = ""
) -> VolumeMountStatus:
    """The status of a volume's mount; only read-only mounts say whether those below are, too.

    `image_ref` names the image of an image volume, with its digest.
    """
    is_short = len(name) + len(mount_path) + len(image_ref) <= _REMEMBERED_CHARACTERS
    make = _remembered_mount_status if is_short else _mount_status
    return make(name, mount_path, read_only, recursive, image_ref)


def _mount_status(
    name: str, mount_path: str, read_only: bool, recursive: bool, image_ref: str
) -> VolumeMountStatus:
    mode = ""
    if read_only:
        modes = RecursiveReadOnlyMode
        mode = modes.ENABLED.value if recursive else modes.DISABLED.value
    return VolumeMountStatus(
        name=name,
        mount_path=mount_path,
        read_only=read_only or None,
        recursive_read_only=mode,
        volume_status=VolumeStatus(image=ImageVolumeStatus(image_ref=image_ref))
        if image_ref
        else None,
    )


# A pod may have thousands, and two statuses are compared each time.
_remembered_mount_status = lru_cache(16_384)(_mount_status)


def asks_for_recursive_read_only(mount: VolumeMount) -> bool:
    """True if the mounts below a read-only one are to be read-only, too (KEP-3857)."""
    modes = (RecursiveReadOnlyMode.ENABLED, RecursiveReadOnlyMode.IF_POSSIBLE)
    private = mount.mount_propagation in ("", MountPropagationMode.NONE)
    return private and mount.recursive_read_only in modes


def container_user(container: ObservedContainer) -> ContainerUser | None:
    """The user and groups that a container runs as; None if the runtime does not tell."""
    if container.user is None:
        return None
    return ContainerUser(
        linux=LinuxContainerUser(
            uid=container.user.uid,
            gid=container.user.gid,
            supplemental_groups=container.user.supplemental_groups,
        )
    )


def resize_message(pod: Pod, what: str, why: str = "", generation: int | None = None) -> str:
    """Return the message of an event: what happens to a resize, its resources as JSON, and why.

    `generation` is the version of the spec that it is about, if not the pod's own.
    """
    init, regular = map(_listed, (pod.spec.init_containers, pod.spec.containers))
    summary = {
        **({"initContainers": init} if init else {}),
        **({"containers": regular} if regular else {}),
        "generation": generation or pod.metadata.generation or 0,
        **({"error": why} if why else {}),
    }
    return f"Pod resize {what}: {go_json(summary)}"


def _listed(containers: tuple[Container, ...]) -> list[object]:
    return [
        {"name": each.name, "resources": encode(each.resources) if each.resources else {}}
        for each in containers
    ]
