"""Where a resize stands, told once, and found out anew by an agent that starts."""

from pathlib import Path
from typing import Any

import trio

from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.codec import decode
from trio_kubelet.runtime.lifecycle.allocations import Allocations
from trio_kubelet.runtime.lifecycle.resize_progress import (
    ResizeCondition,
    ResizeProgress,
    ResizeStatus,
)
from trio_kubelet.telemetry import Journal


class Clock:
    def now_ns(self) -> int:
        return 0


def asking(cpu: str, generation: int = 1, conditions: tuple[Any, ...] = ()) -> Pod:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    metadata = {"name": "p", "namespace": "ns", "uid": "u", "generation": generation}
    status = {"conditions": list(conditions)}
    return decode(
        Pod, {"metadata": metadata, "spec": {"containers": [container]}, "status": status}
    )


def parts() -> tuple[Allocations, ResizeProgress, Journal]:
    allocations = Allocations(Path("/nowhere"), trio.CapacityLimiter(1))
    journal = Journal(Clock())
    return allocations, ResizeProgress(allocations, journal), journal


def steps(journal: Journal) -> list[str]:
    return [f"{entry.source} {entry.event} {entry.target}" for entry in journal.entries("ns/p")]


def test_nothing_is_known_of_a_pod_that_has_what_it_asks_for() -> None:
    allocations, resizes, journal = parts()
    allocations.allocate(asking("1"))
    resizes.ask(asking("1"))
    assert (resizes.undecided(), resizes.status("u"), steps(journal)) == ([], ResizeStatus(), [])


def test_a_request_waits_is_granted_fails_and_is_done() -> None:
    allocations, resizes, journal = parts()
    allocations.allocate(asking("1"))
    larger = asking("2", 2)
    resizes.ask(larger)
    assert resizes.undecided() == ["u"]
    assert resizes.put_off(larger, "Deferred", "full")
    assert not resizes.put_off(larger, "Deferred", "full")
    assert resizes.is_deferred("u")
    pending = ResizeCondition(reason="Deferred", message="full", generation=2)
    assert resizes.status("u") == ResizeStatus(pending=pending)
    resizes.grant(larger, "pods_removed")
    assert allocations.allocated(larger) is larger
    assert resizes.status("u") == ResizeStatus(in_progress=ResizeCondition(generation=2))
    assert resizes.complete("u") is None
    failing = ResizeCondition(reason="Error", message="no", generation=2)
    assert resizes.fail("u", "no") == failing
    assert resizes.fail("u", "no") is None
    assert resizes.status("u") == ResizeStatus(in_progress=failing)
    allocations.actuate(larger)
    assert resizes.complete("u") == failing
    assert resizes.status("u") == ResizeStatus()
    assert steps(journal) == [
        "Met Asked Proposed",
        "Proposed Postponed Deferred",
        "Deferred Granted Met",
        "Actuated Allocated InProgress",
        "InProgress Failed Failing",
        "Failing Completed Actuated",
    ]


def test_another_version_of_the_spec_is_told_of_again() -> None:
    allocations, resizes, _ = parts()
    allocations.allocate(asking("1"))
    resizes.ask(asking("9", 2))
    assert resizes.put_off(asking("9", 2), "Infeasible", "never")
    assert resizes.undecided() == []
    resizes.ask(asking("9", 2))
    assert resizes.undecided() == []
    resizes.ask(asking("8", 3))
    assert resizes.undecided() == ["u"]
    assert resizes.put_off(asking("8", 3), "Infeasible", "never")


def test_what_is_not_asked_for_any_more_is_not_waited_for() -> None:
    allocations, resizes, _ = parts()
    allocations.allocate(asking("1"))
    resizes.ask(asking("2", 2))
    resizes.put_off(asking("2", 2), "Deferred", "full")
    resizes.ask(asking("1", 3))
    assert (resizes.undecided(), resizes.status("u")) == ([], ResizeStatus())


def test_a_pod_waits_for_more_while_an_earlier_change_is_still_being_made() -> None:
    allocations, resizes, _ = parts()
    allocations.allocate(asking("1"))
    resizes.ask(asking("2", 2))
    resizes.grant(asking("2", 2), "pod_updated")
    resizes.ask(asking("3", 3))
    resizes.put_off(asking("3", 3), "Deferred", "full")
    assert resizes.status("u") == ResizeStatus(
        pending=ResizeCondition(reason="Deferred", message="full", generation=3),
        in_progress=ResizeCondition(generation=2),
    )
    assert resizes.counts() == ({"Deferred": 1, "Infeasible": 0}, 1)


def test_an_agent_that_starts_goes_on_and_tells_nothing_twice() -> None:
    """The agent before has granted two CPUs, has given one, and has put off three."""
    allocations, resizes, journal = parts()
    allocations.allocate(asking("1"))
    allocations.resize(asking("2"))
    told = (
        {
            "type": "PodResizePending",
            "status": "True",
            "reason": "Deferred",
            "message": "full",
            "observedGeneration": 3,
        },
        {"type": "PodResizeInProgress", "status": "True", "observedGeneration": 2},
    )
    pod = asking("3", 3, told)
    resizes.ask(pod)
    assert resizes.status("u") == ResizeStatus(in_progress=ResizeCondition(generation=2))
    assert not resizes.put_off(pod, "Deferred", "full")
    assert resizes.put_off(pod, "Deferred", "fuller")
    allocations.actuate(asking("2"))
    assert resizes.complete("u") == ResizeCondition(generation=2)
    assert "InProgress Completed Actuated" in steps(journal)


def test_a_pod_that_has_ended_is_forgotten() -> None:
    allocations, resizes, _ = parts()
    allocations.allocate(asking("1"))
    resizes.ask(asking("2", 2))
    resizes.forget("u")
    assert (resizes.undecided(), resizes.fail("u", "no"), resizes.complete("u")) == ([], None, None)
