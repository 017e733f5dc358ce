"""What is garbage, by table: dead containers and sandboxes that were replaced."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.runtime.observed_pods import NOW_NS, STATES, pod, series
from trio_kubelet.runtime.garbage.collector import (
    DeadContainerLimits,
    dead_containers_to_remove,
    sandboxes_to_remove,
)
from trio_kubelet.runtime.observed import (
    ObservedPod,
    ObservedState,
)


def removed(
    *pods: ObservedPod, per_container: int = 1, total: int = -1, minimum_hours: int = 0
) -> str:
    limits = DeadContainerLimits(
        per_container=per_container, total=total, minimum_age=timedelta(hours=minimum_hours)
    )
    return " ".join(sorted(dead_containers_to_remove(pods, limits, NOW_NS)))


@pytest.mark.parametrize(
    ("states", "kept", "gone"),
    [
        ("", 1, ""),
        ("R", 0, ""),
        ("X", 0, ""),
        ("C", 0, ""),
        ("XR", 1, ""),
        ("XR", 0, "a0"),
        ("XXR", 1, "a0"),
        ("XXXR", 2, "a0"),
        ("XX", 1, "a0"),
        ("XX", 2, ""),
        ("XX", 0, "a0"),
        ("UR", 0, "a0"),
        ("UXR", 1, "a0"),
        ("XXXR", -1, ""),
    ],
)
def test_of_each_container_so_many_dead_are_kept_and_always_the_newest(
    states: str, kept: int, gone: str
) -> None:
    assert removed(pod(a=states), per_container=kept) == gone


@pytest.mark.parametrize(
    ("states", "gone"), [("CR", "a0"), ("CX", "a0"), ("CC", "a0"), ("XCR", "a1"), ("RC", "")]
)
def test_one_that_was_never_started_goes_when_there_is_a_newer_one(states: str, gone: str) -> None:
    assert removed(pod(a=states), per_container=5) == gone


def test_one_that_was_made_just_now_may_yet_be_started() -> None:
    observed = pod(a="CR")
    limits = DeadContainerLimits()
    made_at = observed.containers[-1].created_at
    assert not dead_containers_to_remove([observed], limits, made_at + 1_000_000_000)


def test_containers_of_different_names_and_pods_are_counted_apart() -> None:
    assert removed(pod("p", a="XR", b="XXR"), pod("q", a="XR")) == "b0"


def test_what_is_too_young_is_kept() -> None:
    assert removed(pod(a="XXXXR"), per_container=1, minimum_hours=4) == "a0 a1"


@pytest.mark.parametrize(
    ("total", "gone"),
    [
        (6, ""),
        (5, "a0"),
        (4, "a0 a1"),
        (2, "a0 a1 a2 b0"),
        (0, "a0 a1 a2 a3 b0 b1"),
        (-1, ""),
    ],
)
def test_on_the_whole_node_the_oldest_go_after_an_equal_share(total: int, gone: str) -> None:
    pods = (pod("p", a="XXXXR"), pod("q", b="XXR"))
    assert removed(*pods, per_container=-1, total=total) == gone


def test_the_newest_of_a_finished_pod_stays_whatever_the_limits() -> None:
    assert removed(pod("p", a="X"), pod("q", a="X"), per_container=0, total=0) == ""


@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.text("RXCU", max_size=6)), max_size=3),
    st.integers(-1, 3),
    st.integers(-1, 8),
)
def test_never_the_newest_never_one_that_runs_and_the_limits_hold_as_far_as_they_can(
    made: list[dict[str, str]], per_container: int, total: int
) -> None:
    pods = [pod(f"uid{number}", **each) for number, each in enumerate(made)]
    limits = DeadContainerLimits(per_container=per_container, total=total)
    for observed in pods:
        gone = dead_containers_to_remove([observed], limits, NOW_NS)
        left = [c for c in observed.containers if c.id not in gone]
        assert all(
            c.state is not ObservedState.RUNNING for c in observed.containers if c.id in gone
        )
        for name in {c.name for c in observed.containers}:
            assert observed.container(name) in left
            dead = [c for c in left if c.name == name and c.state in (STATES["X"], STATES["U"])]
            assert per_container < 0 or len(dead) <= max(per_container, 1)


@pytest.mark.parametrize(
    ("sandboxes", "occupied", "gone"),
    [
        ("", "", ""),
        ("n", "", ""),
        ("r", "", ""),
        ("nr", "", "s0"),
        ("nn", "", "s0"),
        ("nnr", "", "s0 s1"),
        ("nnr", "s1", "s0"),
        ("rr", "", ""),
    ],
)
def test_a_sandbox_that_was_replaced_goes_when_it_is_empty(
    sandboxes: str, occupied: str, gone: str
) -> None:
    observed = pod(sandboxes=sandboxes)
    if occupied:
        observed = ObservedPod(
            uid="uid",
            name="web",
            namespace="default",
            observed_at=0.0,
            sandboxes=observed.sandboxes,
            containers=tuple(series("a", "X", sandbox=occupied)),
        )
    assert " ".join(sorted(s.id for s in sandboxes_to_remove(observed))) == gone
