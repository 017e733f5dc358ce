"""Resizes that wait, as the sync loop decides on them."""

from collections.abc import Mapping

import trio
from attrs import evolve
from trio.testing import MockClock

from state_machines.pod import PodEvent
from state_machines.pod_ending import Ending
from tests.unit.sync.admission.pods_and_nodes import make_admission
from tests.unit.sync.admission.pods_and_nodes import make_pod as pod_asking
from tests.unit.sync.sync_loops import Loop, running
from trio_kubelet.k8s import (
    ContainerStatus,
    Pod,
    PodStatus,
    Quantity,
    ResourceRequirements,
)
from trio_kubelet.sources import PodOperation, Source


def resizes(at: Loop, name: str) -> list[str]:
    entries = at.journal.entries(f"ns/{name}")
    return [entry.event for entry in entries if entry.event.startswith("Resize")]


async def test_a_resize_waits_for_what_others_hold_and_is_made_when_they_have_gone(
    autojump_clock: MockClock,
) -> None:
    def asking(name: str, cpu: str, generation: int = 1) -> Pod:
        pod = pod_asking(name, requests={"cpu": cpu})
        return evolve(pod, metadata=evolve(pod.metadata, generation=generation))

    async with running(admission=make_admission()) as at:  # two CPUs
        granted, refused = list[str](), list[str]()
        at.resizing.on_deferred_granted.add(granted.append)
        at.resizing.on_refused.add(refused.append)
        for name in ("a", "b"):
            await at.say(PodOperation.ADD, asking(name, "1"))
        await at.say(PodOperation.UPDATE, asking("a", "1500m", 2))
        assert resizes(at, "a") == ["ResizeDeferred"]
        await at.say(PodOperation.UPDATE, asking("b", "500m", 2))
        assert resizes(at, "a") == ["ResizeDeferred", "ResizeStarted"]
        await at.say(PodOperation.UPDATE, asking("a", "2", 3))
        await at.say(PodOperation.REMOVE, asking("b", "500m"))
        assert resizes(at, "a")[2:] == ["ResizeDeferred", "ResizeStarted"]
        await at.say(PodOperation.UPDATE, asking("a", "2100m", 4))
        assert resizes(at, "a")[4:] == ["ResizeInfeasible"]
        await trio.sleep(1000)
        assert len(resizes(at, "a")) == 5
        assert granted == ["pod_updated", "pods_removed"]
        assert refused == ["insufficient_node_allocatable"]


async def test_a_resize_that_waits_is_made_when_the_node_itself_has_ended_a_pod(
    autojump_clock: MockClock,
) -> None:
    async with running(admission=make_admission()) as at:  # two CPUs
        pods = [pod_asking(name, requests={"cpu": "1"}) for name in ("a", "b")]
        await at.say(PodOperation.ADD, *pods)
        await at.say(PodOperation.UPDATE, pod_asking("a", requests={"cpu": "2"}))
        at.loop.end("uid-b", Ending(causes=(PodEvent.PREEMPTED,)))
        await trio.sleep(10)
        assert resizes(at, "a") == ["ResizeDeferred", "ResizeStarted"]


async def test_no_resize_is_decided_before_all_sources_have_spoken(
    autojump_clock: MockClock,
) -> None:
    resized = pod_asking("a", requests={"cpu": "2"})
    given = ResourceRequirements(requests={"cpu": Quantity("1")})
    told = ContainerStatus(
        name=resized.spec.containers[0].name, resources=given, allocated_resources=given.requests
    )
    resized = evolve(resized, status=PodStatus(container_statuses=(told,)))
    both = (Source.FILE, Source.API)
    admission = make_admission()  # two CPUs
    async with running(admission=admission, runs=resized.metadata.uid, sources=both) as at:
        await at.say(PodOperation.ADD, resized, source=Source.API)
        assert resizes(at, "a") == []
        await at.say(PodOperation.ADD, pod_asking("b", requests={"cpu": "1"}))
        assert resizes(at, "a") == ["ResizeDeferred"]


async def test_what_waits_is_not_decided_again_for_each_status_that_comes_back(
    autojump_clock: MockClock,
) -> None:
    """Who may change what others see of a pod must not make the node sum up all pods each time."""
    looks = list[str]()
    two_cpus = make_admission()

    def allocatable() -> Mapping[str, Quantity]:
        looks.append("allocatable")
        return two_cpus.allocatable()

    async with running(admission=evolve(two_cpus, allocatable=allocatable)) as at:
        pods = [pod_asking(name, requests={"cpu": "1"}) for name in ("a", "b")]
        await at.say(PodOperation.ADD, *pods)
        await at.say(PodOperation.UPDATE, pod_asking("a", requests={"cpu": "2"}))
        assert resizes(at, "a") == ["ResizeDeferred"]
        looks.clear()
        await at.say(PodOperation.RECONCILE, evolve(pods[1], status=PodStatus(phase="Running")))
        assert looks == []
        await at.say(PodOperation.RECONCILE, evolve(pods[1], status=PodStatus(phase="Failed")))
        assert looks == ["allocatable"]


async def test_what_waits_is_not_decided_again_when_nothing_has_become_free(
    autojump_clock: MockClock,
) -> None:
    """Who changes a pod fifty times a second must not make the node look at all that wait."""
    looks = list[str]()
    two_cpus = make_admission()

    def allocatable() -> Mapping[str, Quantity]:
        looks.append("allocatable")
        return two_cpus.allocatable()

    async with running(admission=evolve(two_cpus, allocatable=allocatable)) as at:
        pods = [pod_asking(name, requests={"cpu": "500m"}) for name in ("a", "b", "c")]
        await at.say(PodOperation.ADD, *pods)
        for name in ("a", "b"):
            await at.say(PodOperation.UPDATE, pod_asking(name, requests={"cpu": "2"}))
            assert resizes(at, name) == ["ResizeDeferred"]
        looks.clear()
        labelled = evolve(pods[2].metadata, labels={"changed": "often"})
        await at.say(PodOperation.UPDATE, evolve(pods[2], metadata=labelled))
        assert looks == []
        over = evolve(pods[2], status=PodStatus(phase="Failed"))
        await at.say(PodOperation.RECONCILE, over)
        looks.clear()
        await at.say(PodOperation.RECONCILE, evolve(over, status=evolve(over.status, message="m")))
        assert looks == []
        await at.say(PodOperation.UPDATE, pod_asking("a", requests={"cpu": "1900m"}))
        assert looks == ["allocatable"]


async def test_a_resize_that_waits_is_made_when_another_pod_asks_for_less_than_it_has(
    autojump_clock: MockClock,
) -> None:
    async with running(admission=make_admission()) as at:  # two CPUs
        await at.say(PodOperation.ADD, *(pod_asking(n, requests={"cpu": "1"}) for n in "ab"))
        await at.say(PodOperation.UPDATE, pod_asking("a", requests={"cpu": "1500m"}))
        await at.say(PodOperation.UPDATE, pod_asking("b", requests={"cpu": "900m"}))
        assert resizes(at, "a") == ["ResizeDeferred"]
        await at.say(PodOperation.UPDATE, pod_asking("b", requests={"cpu": "500m"}))
        assert resizes(at, "a") == ["ResizeDeferred", "ResizeStarted"]
