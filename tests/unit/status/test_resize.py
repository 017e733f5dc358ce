"""A resize that is not made: what the status says of it, and the words of its event."""

from attrs import evolve

from tests.unit.status.pods import EXITED, RUNNING, a_pod, instance, seen, status_of
from trio_kubelet.k8s import Container, Pod, PodCondition, PodStatus, Quantity, ResourceRequirements
from trio_kubelet.status.container_resources import pending_resize, resize_message

WHY = "this node agent does not resize pods in place yet"
CPU = ResourceRequirements(requests={"cpu": Quantity("1")}, limits={"cpu": Quantity("2")})


def resized(generation: int | None = 2, **pod: str) -> Pod:
    containers = (Container(name="c", resources=CPU), Container(name="d"))
    return a_pod(containers=containers, generation=generation, **pod)  # type: ignore[arg-type]


def test_a_pod_that_waits_for_other_resources_says_so_first_of_the_nodes_conditions() -> None:
    others = (PodCondition(type="example.com/theirs", status="True"),)
    pod = evolve(resized(), status=PodStatus(conditions=others))
    running = seen(instance("c", RUNNING), instance("d", RUNNING))
    conditions = status_of(pod, running, refused_resize=WHY).conditions
    assert [each.type for each in conditions][:3] == [
        "example.com/theirs",
        "PodResizePending",
        "PodReadyToStartContainers",
    ]
    pending = conditions[1]
    assert (pending.status, pending.reason, pending.message) == ("True", "Infeasible", WHY)
    assert pending.observed_generation == 2


def test_a_pod_that_has_what_its_spec_says_does_not_wait_any_more() -> None:
    running = seen(instance("c", RUNNING), instance("d", RUNNING))
    before = status_of(resized(), running, refused_resize=WHY)
    assert pending_resize(before) is not None
    pod = evolve(resized(generation=3), status=before)
    assert pending_resize(status_of(pod, running)) is None


def test_a_pod_that_is_over_waits_for_nothing() -> None:
    pod = resized(restart_policy="Never")
    ended = seen(instance("c", EXITED), instance("d", EXITED))
    assert pending_resize(status_of(pod, ended, refused_resize=WHY)) is None


def test_the_time_of_a_pending_resize_is_that_of_its_beginning() -> None:
    running = seen(instance("c", RUNNING), instance("d", RUNNING))
    before = status_of(resized(), running, refused_resize=WHY)
    pod = evolve(resized(generation=3), status=before)
    after = status_of(pod, running, refused_resize=WHY, now_ns=4 * 10**18)
    first, second = before.conditions[0], after.conditions[0]
    assert first.last_transition_time == second.last_transition_time
    assert (first.observed_generation, second.observed_generation) == (2, 3)
    assert pending_resize(before) != pending_resize(after)


def test_the_event_tells_what_is_wanted_and_why_it_is_not_to_be_had() -> None:
    assert resize_message(resized(), "Infeasible", WHY) == (
        'Pod resize Infeasible: {"containers":[{"name":"c","resources":{"limits":{"cpu":"2"},'
        '"requests":{"cpu":"1"}}},{"name":"d","resources":{}}],"generation":2,'
        f'"error":"{WHY}"}}'
    )
