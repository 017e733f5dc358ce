"""`/metrics/resource`: what schedulers and autoscalers go by, of node, pods and containers. Pure.

Each sample has the time at which it was taken: who computes rates needs no second guess.
"""

from collections.abc import Iterable

from trio_kubelet.metrics.text import Family, exposition, label_text
from trio_kubelet.stats.values import PodStats, Stats, Usage

_SECONDS = 1e9


def resource_metrics(stats: Stats) -> bytes:
    """The whole answer."""
    return exposition([*_node(stats), *_pods(stats.pods), *_containers(stats.pods), _error(stats)])


def _error(stats: Stats) -> Family:
    family = Family("resource_scrape_error", "gauge", "1 if some of the figures could not be had.")
    family.add("", int(bool(stats.problems)))
    return family


def _node(stats: Stats) -> Iterable[Family]:
    usage = stats.node.usage
    yield from _usage("node", "of the node", [("", usage)])


def _pods(pods: Iterable[PodStats]) -> Iterable[Family]:
    rows = [(label_text({"namespace": pod.namespace, "pod": pod.name}), pod.usage) for pod in pods]
    yield from _usage("pod", "of the pod", rows)


def _containers(pods: Iterable[PodStats]) -> Iterable[Family]:
    started = Family(
        "container_start_time_seconds", "gauge", "When the container started, in Unix time."
    )
    limits = Family("container_swap_limit_bytes", "gauge", "Swap that the container may use.")
    rows = []
    for pod in pods:
        for container in pod.containers:
            labels = label_text(
                {"container": container.name, "namespace": pod.namespace, "pod": pod.name}
            )
            rows.append((labels, container.usage))
            started.add(labels, container.started_at_ns / _SECONDS)
            swap = container.usage.swap
            if swap is not None and swap.limit is not None:
                limits.add(labels, swap.limit, _milliseconds(container.usage))
    yield from _usage("container", "of the container", rows)
    yield started
    yield limits


def _usage(prefix: str, whose: str, rows: Iterable[tuple[str, Usage]]) -> Iterable[Family]:
    cpu = Family(f"{prefix}_cpu_usage_seconds_total", "counter", f"CPU time {whose}.")
    memory = Family(f"{prefix}_memory_working_set_bytes", "gauge", f"Working set {whose}.")
    swap = Family(f"{prefix}_swap_usage_bytes", "gauge", f"Swap {whose}.")
    for labels, usage in rows:
        at = _milliseconds(usage)
        if usage.cpu is not None:
            cpu.add(labels, usage.cpu.total_ns / _SECONDS, at)
        if usage.memory is not None:
            memory.add(labels, usage.memory.working_set, at)
        if usage.swap is not None:
            swap.add(labels, usage.swap.usage, at)
    return cpu, memory, swap


def _milliseconds(usage: Usage) -> int:
    return usage.time_ns // 1_000_000
