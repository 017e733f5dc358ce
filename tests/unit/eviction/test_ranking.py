"""The order in which pods are evicted, one line a case."""

import pytest

from tests.unit.eviction.candidates import (
    MIRROR,
    STATIC,
    hiding,
    pod,
    running,
    stats,
    using,
    writing,
)
from trio_kubelet.config.eviction import Signal
from trio_kubelet.eviction.ranking import (
    Candidate,
    claim,
    figures_for,
    ranked,
)
from trio_kubelet.eviction.thresholds import DiskLayout

SHARED, APART, SPLIT = DiskLayout.SHARED, DiskLayout.IMAGES_APART, DiskLayout.SPLIT
UNKNOWN = Candidate(pod=pod("unknown"))
SYSTEM = 2_000_000_000


def names(candidates: tuple[Candidate, ...]) -> str:
    return " ".join(each.pod.metadata.name for each in candidates)


@pytest.mark.parametrize("signal", [Signal.MEMORY, Signal.ALLOCATABLE_MEMORY])
@pytest.mark.parametrize(
    ("candidates", "order"),
    [
        ([], ""),
        ([using("a", 10), using("b", 20)], "b a"),
        ([using("a", 10), using("b", 10)], "a b"),
        ([using("within", 90, "100Mi"), using("above", 11, "10Mi")], "above within"),
        ([using("exact", 10, "10Mi"), using("above", 11, "10Mi")], "above exact"),
        ([using("a", 50, "10Mi"), using("b", 100, "90Mi")], "a b"),
        ([using("a", 50, "100Mi"), using("b", 95, "100Mi")], "b a"),
        ([using("low", 20, priority=1), using("high", 90, priority=2)], "low high"),
        ([using("none", 20), using("negative", 10, priority=-1)], "negative none"),
        (
            [using("within", 9, "10Mi", priority=-5), using("above", 11, "10Mi", priority=5)],
            "above within",
        ),
        ([using("a", 0), using("b", 0, "1Mi")], "a b"),
        ([using("static", 90, annotations=STATIC), using("a", 1)], "a"),
        ([using("mirror", 90, annotations=MIRROR), using("a", 1)], "a"),
        ([using("critical", 90, priority=SYSTEM), using("a", 1)], "a"),
        ([using("nearly", 90, priority=SYSTEM - 1), using("a", 1)], "a nearly"),
        ([UNKNOWN, using("within", 1, "10Mi")], "within unknown"),
        ([UNKNOWN], "unknown"),
        ([using("critical", 90, priority=SYSTEM)], ""),
    ],
)
def test_memory(signal: Signal, candidates: list[Candidate], order: str) -> None:
    assert names(ranked(signal, candidates, SHARED)) == order


@pytest.mark.parametrize(
    ("candidates", "order"),
    [
        ([running("a", 10), running("b", 20)], "b a"),
        ([running("low", 1, -1), running("high", 99, 1)], "low high"),
        ([running("a", 0), running("b", 0)], "a b"),
        ([running("critical", 99, SYSTEM), running("a", 1)], "a"),
        ([UNKNOWN, running("high", 1, 7)], "high unknown"),
    ],
)
def test_process_ids(candidates: list[Candidate], order: str) -> None:
    assert names(ranked(Signal.PIDS, candidates, SHARED)) == order


@pytest.mark.parametrize(
    ("layout", "signals", "order"),
    [
        (SHARED, "nodefs imagefs containerfs", "volumes layers within"),
        (APART, "nodefs", "volumes layers within"),
        (APART, "imagefs containerfs", "layers volumes within"),
        (SPLIT, "nodefs containerfs", "volumes layers within"),
        (SPLIT, "imagefs", "layers volumes within"),
    ],
)
def test_disks_by_what_is_on_them(layout: DiskLayout, signals: str, order: str) -> None:
    candidates = [
        writing("layers", 50, layer_mi=50),
        writing("volumes", 60),
        writing("within", 90, "100Mi"),
    ]
    for name in signals.split():
        assert names(ranked(Signal(f"{name}.available"), candidates, layout)) == order


@pytest.mark.parametrize(
    ("layout", "signal", "order"),
    [
        (SHARED, Signal.NODE_DISK, "low hides large important within"),
        (SHARED, Signal.IMAGE_INODES, "low hides within large important"),
        (APART, Signal.NODE_DISK, "low hides large important within"),
        (APART, Signal.IMAGE_DISK, "large low hides within important"),
        (SPLIT, Signal.IMAGE_DISK, "low hides large within important"),
        (SHARED, Signal.MEMORY, "low hides large within important"),
    ],
)
def test_who_has_more_files_than_can_be_counted_is_above_all_others_of_its_priority(
    layout: DiskLayout, signal: Signal, order: str
) -> None:
    candidates = [
        writing("large", 100, layer_mi=1),
        hiding("hides", 1),
        hiding("within", 1, "100Mi"),
        hiding("important", 1, priority=5),
        hiding("low", 1, priority=-5),
    ]
    assert names(ranked(signal, candidates, layout)) == order


@pytest.mark.parametrize(
    ("layout", "disks"),
    [
        (SHARED, "nodefs imagefs containerfs"),
        (APART, "imagefs containerfs"),
        (SPLIT, "nodefs containerfs"),
    ],
)
def test_layers_count_where_they_are(layout: DiskLayout, disks: str) -> None:
    counted = {signal.partition(".")[0] for signal in Signal if figures_for(signal, layout).layers}
    assert counted == set(disks.split())


def test_inodes_cannot_be_asked_for() -> None:
    candidates = [writing("within", 90, "100Mi"), writing("few", 10), writing("many", 100)]
    assert names(ranked(Signal.NODE_INODES, candidates, SHARED)) == "many within few"


def test_a_pod_whose_figures_lack_what_is_short_comes_last() -> None:
    blind = Candidate(pod=pod("blind"), stats=stats("blind", memory_mi=None, tasks=None))
    for signal, seen in (
        (Signal.MEMORY, using("seen", 1, "9Mi")),
        (Signal.PIDS, running("seen", 1)),
        (Signal.NODE_DISK, writing("seen", 1, "9Mi")),
    ):
        assert names(ranked(signal, [blind, seen], SHARED)) == "seen blind"
        assert claim(signal, blind, SHARED) is None
