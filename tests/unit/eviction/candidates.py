"""Pods and figures for tests of evictions, in a few words."""

from typing import Any

from trio_kubelet.eviction.ranking import Candidate
from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.codec import decode
from trio_kubelet.stats.values import (
    ContainerStats,
    Filesystem,
    MemoryUsage,
    PodStats,
    Usage,
    VolumeStats,
)

MI = 1 << 20
STATIC = {"kubernetes.io/config.source": "file"}
MIRROR = {"kubernetes.io/config.mirror": "hash"}


def pod(
    name: str,
    *,
    requests: dict[str, str] | None = None,
    limits: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> Pod:
    """A pod with one container `c`."""
    container = {
        "name": "c",
        "image": "i",
        "resources": {"requests": requests or {}, "limits": limits or {}},
    }
    meta = {"name": name, "namespace": "ns", "uid": name, "annotations": annotations or {}}
    return decode(Pod, {"metadata": meta, "spec": {"containers": [container], **spec}})


def disk(used_mi: int | None, inodes: int | None = None) -> Filesystem:
    """The use of a disk."""
    used = None if used_mi is None else used_mi * MI
    return Filesystem(time_ns=1, used=used, inodes_used=inodes)


def stats(
    name: str,
    *,
    memory_mi: int | None = 0,
    tasks: int | None = 0,
    layer: Filesystem | None = None,
    logs: Filesystem | None = None,
    whole: Filesystem | None = None,
    volumes: dict[str, int] | None = None,
    is_counted: bool = True,
) -> PodStats:
    """The figures of such a pod; all of its memory is the container's."""
    memory = None
    if memory_mi is not None:
        memory = MemoryUsage(usage=memory_mi * MI, working_set=memory_mi * MI)
    usage = Usage(time_ns=1, memory=memory, tasks=tasks)
    container = ContainerStats(
        name="c", id="id", image="i", started_at_ns=1, usage=usage, root=layer, logs=logs
    )
    return PodStats(
        uid=name,
        namespace="ns",
        name=name,
        started_at_ns=1,
        usage=usage,
        containers=(container,),
        layers=layer,
        ephemeral_storage=whole,
        is_counted=is_counted,
        volumes=tuple(
            VolumeStats(name=volume, filesystem=disk(used_mi), ephemeral=True)
            for volume, used_mi in (volumes or {}).items()
        ),
    )


def using(name: str, memory_mi: int, request: str = "", **spec: Any) -> Candidate:
    """A pod that uses some memory, and asked for some."""
    requests = {"memory": request} if request else {}
    return Candidate(
        pod=pod(name, requests=requests, **spec), stats=stats(name, memory_mi=memory_mi)
    )


def writing(name: str, whole_mi: int, request: str = "", layer_mi: int = 0) -> Candidate:
    """A pod that uses some of the disk, part of it in its writable layer."""
    requests = {"ephemeral-storage": request} if request else {}
    used = stats(
        name, whole=disk(whole_mi, whole_mi * 10), layer=disk(layer_mi, layer_mi * 10), logs=disk(0)
    )
    return Candidate(pod=pod(name, requests=requests), stats=used)


def hiding(name: str, whole_mi: int, request: str = "", **spec: Any) -> Candidate:
    """A pod that has more files on the disk than can be counted, of which so much was."""
    requests = {"ephemeral-storage": request} if request else {}
    used = stats(name, whole=disk(whole_mi, whole_mi * 10), layer=disk(0), is_counted=False)
    return Candidate(pod=pod(name, requests=requests, **spec), stats=used)


def running(name: str, tasks: int, priority: int = 0) -> Candidate:
    """A pod that has some processes."""
    return Candidate(pod=pod(name, priority=priority), stats=stats(name, tasks=tasks))
