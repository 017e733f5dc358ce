"""A resize in the status of a pod: its two conditions, and the words of its events."""

from attrs import evolve

from tests.unit.status.pods import EXITED, RUNNING, a_pod, instance, seen, status_of
from trio_kubelet.k8s import (
    Container,
    Pod,
    PodCondition,
    PodStatus,
    Quantity,
    ResourceRequirements,
)
from trio_kubelet.runtime.lifecycle.resize_progress import ResizeCondition, ResizeStatus
from trio_kubelet.status.container_parts import resize_message

WHY = "Node didn't have enough resource: cpu, requested: 2000, used: 0, capacity: 1000"
CPU = ResourceRequirements(requests={"cpu": Quantity("1")}, limits={"cpu": Quantity("2")})
BOTH_RUN = seen(instance("c", RUNNING), instance("d", RUNNING))


def resized(generation: int | None = 2, **pod: str) -> Pod:
    containers = (Container(name="c", resources=CPU), Container(name="d"))
    return a_pod(containers=containers, generation=generation, **pod)  # type: ignore[arg-type]


def deferred(generation: int = 2, message: str = WHY) -> ResizeStatus:
    pending = ResizeCondition(reason="Deferred", message=message, generation=generation)
    return ResizeStatus(pending=pending)


def resizing(status: PodStatus) -> list[PodCondition]:
    return [each for each in status.conditions if each.type.startswith("PodResize")]


def test_a_pod_that_is_resized_says_so_first_of_the_nodes_conditions() -> None:
    others = (PodCondition(type="example.com/theirs", status="True"),)
    pod = evolve(resized(generation=3), status=PodStatus(conditions=others))
    in_progress = ResizeCondition(generation=2)
    resize = evolve(deferred(generation=3), in_progress=in_progress)
    conditions = status_of(pod, BOTH_RUN, resize=resize).conditions
    assert [each.type for each in conditions][:4] == [
        "example.com/theirs",
        "PodResizePending",
        "PodResizeInProgress",
        "PodReadyToStartContainers",
    ]
    pending, progress = conditions[1:3]
    assert (pending.status, pending.reason, pending.message) == ("True", "Deferred", WHY)
    assert (progress.status, progress.reason, progress.message) == ("True", "", "")
    assert (pending.observed_generation, progress.observed_generation) == (3, 2)


def test_a_resize_that_fails_says_why() -> None:
    failing = ResizeCondition(reason="Error", message="no", generation=2)
    (progress,) = resizing(status_of(resized(), BOTH_RUN, resize=ResizeStatus(in_progress=failing)))
    assert (progress.status, progress.reason, progress.message) == ("True", "Error", "no")


def test_a_pod_that_has_what_its_spec_says_does_not_wait_any_more() -> None:
    before = status_of(resized(), BOTH_RUN, resize=deferred())
    pod = evolve(resized(generation=3), status=before)
    assert resizing(status_of(pod, BOTH_RUN)) == []


def test_a_pod_that_is_over_waits_for_nothing() -> None:
    pod = resized(restart_policy="Never")
    ended = seen(instance("c", EXITED), instance("d", EXITED))
    resize = evolve(deferred(), in_progress=ResizeCondition())
    assert resizing(status_of(pod, ended, resize=resize)) == []


def test_the_time_of_a_pending_resize_is_that_of_its_reason() -> None:
    before = status_of(resized(), BOTH_RUN, resize=deferred())
    pod = evolve(resized(generation=3), status=before)
    later = 4 * 10**18
    waits = status_of(pod, BOTH_RUN, resize=deferred(3, "less"), now_ns=later)
    refused = ResizeStatus(pending=ResizeCondition(reason="Infeasible", message=WHY))
    never = status_of(pod, BOTH_RUN, resize=refused, now_ns=later)
    (first,), (second,), (third,) = map(resizing, (before, waits, never))
    assert first.last_transition_time == second.last_transition_time
    assert third.last_transition_time != first.last_transition_time


def test_an_event_tells_what_is_wanted_and_why_it_is_not_to_be_had() -> None:
    containers = (
        '"containers":[{"name":"c","resources":{"limits":{"cpu":"2"},"requests":{"cpu":"1"}}},'
        '{"name":"d","resources":{}}]'
    )
    assert resize_message(resized(), "Deferred", "full") == (
        f'Pod resize Deferred: {{{containers},"generation":2,"error":"full"}}'
    )
    assert resize_message(resized(), "completed", generation=1) == (
        f'Pod resize completed: {{{containers},"generation":1}}'
    )
