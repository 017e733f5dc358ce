"""The words about an eviction: exactly those of the Go kubelet."""

from typing import Any

import pytest

from tests.unit.eviction.candidates import MI, disk, pod, stats, using
from trio_kubelet.config.eviction import Resource, Signal, ThresholdValue
from trio_kubelet.eviction.messages import Starvation, eviction_annotations, eviction_message
from trio_kubelet.eviction.ranking import Candidate
from trio_kubelet.eviction.thresholds import Threshold

BEGINNING = "The node was low on resource: {}. Threshold quantity: 1Gi, available: 7Mi. "


def starved(resource: str) -> Starvation:
    threshold = Threshold(signal=Signal.MEMORY, value=ThresholdValue.parse("1Gi"))
    return Starvation(
        threshold=threshold, resource=Resource(resource), quantity="1Gi", available="7Mi"
    )


def storing(request: str, layer: int | None, logs: int | None) -> Candidate:
    requests = {"ephemeral-storage": request} if request else {}
    used = stats("p", layer=disk(layer), logs=disk(logs))
    return Candidate(pod=pod("p", requests=requests), stats=used)


@pytest.mark.parametrize(
    ("resource", "victim", "tail"),
    [
        (
            "memory",
            using("p", 20, "10Mi"),
            "Container c was using 20Mi, request is 10Mi, has larger consumption of memory. ",
        ),
        (
            "memory",
            using("p", 20),
            "Container c was using 20Mi, request is 0, has larger consumption of memory. ",
        ),
        (
            "memory",
            using("p", 20, "0.01Gi"),
            "Container c was using 20Mi, request is 10737418240m, has larger consumption of "
            "memory. ",
        ),
        ("memory", using("p", 10, "10Mi"), ""),
        ("memory", Candidate(pod=pod("p")), ""),
        (
            "ephemeral-storage",
            storing("3Mi", 2, 2),
            "Container c was using 4Mi, request is 3Mi, has larger consumption of "
            "ephemeral-storage. ",
        ),
        ("ephemeral-storage", storing("4Mi", 2, 2), ""),
        ("ephemeral-storage", storing("", None, 2), ""),
        ("inodes", storing("", 2, 2), ""),
        ("pids", using("p", 20), ""),
    ],
)
def test_message(resource: str, victim: Candidate, tail: str) -> None:
    assert eviction_message(starved(resource), victim) == BEGINNING.format(resource) + tail


def test_annotations_name_the_offenders() -> None:
    assert eviction_annotations(starved("memory"), using("p", 20, "10Mi")) == {
        "offending_containers": "c",
        "offending_containers_usage": "20Mi",
        "starved_resource": "memory",
    }
    assert eviction_annotations(starved("pids"), using("p", 20, "10Mi")) == {
        "offending_containers": "",
        "offending_containers_usage": "",
        "starved_resource": "pids",
    }


def test_a_pod_without_figures_has_no_annotations() -> None:
    assert eviction_annotations(starved("memory"), Candidate(pod=pod("p"))) == {}


def test_the_nodes_event_says_what_is_reclaimed() -> None:
    assert starved("inodes").event_message == "Attempting to reclaim inodes"


def test_init_containers_are_told_of_as_well() -> None:
    spec: dict[str, Any] = {"initContainers": [{"name": "c", "image": "i"}]}
    victim = pod("p", containers=[{"name": "other", "image": "i"}], **spec)
    message = eviction_message(
        starved("memory"), Candidate(pod=victim, stats=stats("p", memory_mi=3))
    )
    assert "Container c was using 3Mi, request is 0" in message
    assert 3 * MI == 3 << 20
