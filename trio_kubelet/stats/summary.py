"""`/stats/summary`: statistics as JSON, in the form of the kubelet's stats API (v1alpha1).

Monitoring and schedulers ask for it. What is not known is left out, as that API has it.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from trio_kubelet.foreign_text import boolean
from trio_kubelet.k8s.time import SECOND_NS, Time
from trio_kubelet.server.endpoints import json_response
from trio_kubelet.server.messages import Request, Response
from trio_kubelet.server.router import ANY, Right, Route
from trio_kubelet.server.writers import AnswerWriters, Write
from trio_kubelet.stats.provider import StatsProvider
from trio_kubelet.stats.values import (
    ContainerStats,
    Filesystem,
    Interface,
    NetworkStats,
    NodeStats,
    PodStats,
    PsiLine,
    PsiResource,
    Stats,
    SwapUsage,
    SystemContainer,
    Usage,
    VolumeStats,
)

Json = dict[str, Any]

_KNOWN_SECONDS = 512
"""Times whose texts are kept: an answer has thousands of times, but in few different seconds."""

STATS = Right(subresource="stats")


def summary(stats: Stats, node_name: str, *, only_cpu_and_memory: bool = False) -> Json:
    """The whole answer, or that of `?only_cpu_and_memory`: with the swap of the node alone."""
    short = only_cpu_and_memory
    return {
        "node": _node(stats.node, stats.system, node_name, short=short),
        "pods": [_pod(pod, short=short) for pod in stats.pods],
    }


def _node(
    node: NodeStats, system: tuple[SystemContainer, ...], node_name: str, *, short: bool
) -> Json:
    usage = node.usage
    found: Json = {
        "nodeName": node_name,
        "systemContainers": [_system_container(each, short=short) for each in system],
        "startTime": _time(node.booted_at_ns),
        **_cpu_and_memory(usage, memory_bytes=node.memory_bytes),
        "swap": _swap(usage),
    }
    if short:
        return _given(**found)
    found |= {
        **_io(usage),
        "network": _network(node.network),
        "fs": _filesystem(node.root),
        "runtime": _given(
            imageFs=_filesystem(node.images), containerFs=_filesystem(node.containers)
        ),
        "rlimit": _given(time=_time(usage.time_ns), maxpid=node.max_tasks, curproc=node.tasks),
    }
    return _given(**found)


def _system_container(container: SystemContainer, *, short: bool) -> Json:
    usage = container.usage
    found = {
        "name": container.name,
        "startTime": _time(container.started_at_ns),
        **_cpu_and_memory(usage),
    }
    return found if short else _given(**found, **_io(usage), swap=_swap(usage))


def _pod(pod: PodStats, *, short: bool) -> Json:
    found: Json = {
        "podRef": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
        "startTime": _time(pod.started_at_ns),
        "containers": [_container(each, short=short) for each in pod.containers],
        **_cpu_and_memory(pod.usage, is_pod=True),
    }
    if short:
        return found
    tasks = pod.usage.tasks
    return _given(
        **found,
        **_io(pod.usage),
        network=_network(pod.network),
        volume=[_volume(volume, pod.namespace) for volume in pod.volumes] or None,
        swap=_swap(pod.usage),
        process_stats=None if tasks is None else {"process_count": tasks},
        **{"ephemeral-storage": _filesystem(pod.ephemeral_storage)},
    )


def _volume(volume: VolumeStats, namespace: str) -> Json:
    found: Json = {**(_filesystem(volume.filesystem) or {}), "name": volume.name}
    if volume.claim:
        found["pvcRef"] = {"name": volume.claim, "namespace": namespace}
    return found


def _container(container: ContainerStats, *, short: bool) -> Json:
    usage = container.usage
    found = {
        "name": container.name,
        "startTime": _time(container.started_at_ns),
        **_cpu_and_memory(usage),
    }
    if short:
        return found
    return _given(
        **found,
        **_io(usage),
        rootfs=_filesystem(container.root),
        logs=_filesystem(container.logs),
        swap=_swap(usage),
    )


def _cpu_and_memory(usage: Usage, *, memory_bytes: int | None = None, is_pod: bool = False) -> Json:
    return _given(cpu=_cpu(usage), memory=_memory(usage, memory_bytes, is_pod=is_pod))


def _cpu(usage: Usage) -> Json | None:
    if usage.cpu is None:
        return None
    return _given(
        time=_time(usage.time_ns),
        usageNanoCores=usage.cpu.nano_cores,
        usageCoreNanoSeconds=usage.cpu.total_ns,
        psi=_psi(usage.pressures.cpu),
    )


def _memory(usage: Usage, memory_bytes: int | None, *, is_pod: bool) -> Json | None:
    memory = usage.memory
    if memory is None:
        return None
    limit = memory_bytes if memory_bytes is not None else memory.limit
    return _given(
        time=_time(usage.time_ns),
        availableBytes=None if limit is None or is_pod else max(0, limit - memory.working_set),
        usageBytes=memory.usage,
        workingSetBytes=memory.working_set,
        rssBytes=memory.rss,
        pageFaults=memory.page_faults,
        majorPageFaults=memory.major_page_faults,
        psi=_psi(usage.pressures.memory),
    )


def _io(usage: Usage) -> Json:
    return {"io": _given(time=_time(usage.time_ns), psi=_psi(usage.pressures.io))}


def _swap(usage: Usage) -> Json | None:
    swap: SwapUsage | None = usage.swap
    if swap is None:
        return None
    return _given(
        time=_time(usage.time_ns),
        swapAvailableBytes=None if swap.limit is None else max(0, swap.limit - swap.usage),
        swapUsageBytes=swap.usage,
    )


def _psi(pressure: PsiResource | None) -> Json | None:
    if pressure is None:
        return None
    return {"full": _psi_line(pressure.full), "some": _psi_line(pressure.some)}


def _psi_line(line: PsiLine) -> Json:
    return {
        "total": line.total_us,
        "avg10": line.avg10,
        "avg60": line.avg60,
        "avg300": line.avg300,
    }


def _network(network: NetworkStats | None) -> Json | None:
    if network is None:
        return None
    by_name = {each.name: each for each in network.interfaces}
    default = by_name.get(network.default) or by_name.get("eth0")
    return {
        "time": _time(network.time_ns),
        **(_interface(default) if default is not None else {"name": ""}),
        "interfaces": [_interface(each) for each in network.interfaces],
    }


def _interface(interface: Interface) -> Json:
    return {
        "name": interface.name,
        "rxBytes": interface.rx_bytes,
        "rxErrors": interface.rx_errors,
        "txBytes": interface.tx_bytes,
        "txErrors": interface.tx_errors,
    }


def _filesystem(found: Filesystem | None) -> Json | None:
    if found is None:
        return None
    return _given(
        time=_time(found.time_ns),
        availableBytes=found.available,
        capacityBytes=found.capacity,
        usedBytes=found.used,
        inodesFree=found.inodes_free,
        inodes=found.inodes,
        inodesUsed=found.inodes_used,
    )


def _given(**fields: Any) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def _time(time_ns: int) -> str:
    return _second(time_ns // SECOND_NS)


@lru_cache(maxsize=_KNOWN_SECONDS)
def _second(seconds: int) -> str:
    return str(Time.from_ns(seconds * SECOND_NS))


def stats_routes(stats: StatsProvider, node_name: str, writers: AnswerWriters) -> Sequence[Route]:
    """`/stats/summary[?only_cpu_and_memory=true]`, by GET and POST as the Go kubelet has it.

    `/stats/` has nothing at it, but `/stats` is sent there.
    """

    async def answer(request: Request) -> Response:
        short = bool(boolean(request.query.first("only_cpu_and_memory")))

        async def gather() -> Write:
            found = await (stats.rated_usage() if short else stats.full())
            # A pod of a thousand containers takes a tenth of a second.
            return lambda: json_response(summary(found, node_name, only_cpu_and_memory=short))

        return await writers.answer("/stats/summary", gather, short)

    async def refuse(_request: Request) -> Response:
        return Response(status=404, body=b"404: Page Not Found")

    return (
        *(
            Route(method, "/stats/summary[/]", answer, STATS, is_public=True)
            for method in ("GET", "POST")
        ),
        Route(ANY, "/stats/", refuse, STATS, is_public=True),
    )
