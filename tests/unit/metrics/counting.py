"""A counter of what is told, and what it has counted."""

from trio_kubelet.k8s import Container, ObjectMeta, Pod, PodSpec, Time
from trio_kubelet.metrics.counted import EventCounter

SECOND = 1_000_000_000
NOW = 1_700_000_000 * SECOND
POD = Pod(
    metadata=ObjectMeta(
        name="web", namespace="default", uid="uid", creation_timestamp=Time(NOW - 20 * SECOND)
    ),
    spec=PodSpec(containers=(Container(name="c"),), init_containers=(Container(name="i"),)),
)


def counter(seen_ago: float = 0.0) -> EventCounter:
    return EventCounter(
        lambda: NOW,
        lambda uid: POD if uid == "uid" else None,
        lambda _uid: seen_ago,
        lambda: {"cpu", "hugepages-2Mi"},
    )


def value(counter: EventCounter, name: str, **labels: str) -> float | None:
    found: float | None = counter.counts.registry.get_sample_value(name, labels)
    return found
