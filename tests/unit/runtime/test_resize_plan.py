"""What a resize does to each container: in place, by a restart, or nothing as it does not run."""

from typing import Any

import pytest
from attrs import evolve

from tests.unit.runtime.planned_pods import GIVEN, exited, observe, sandbox, seen
from tests.unit.runtime.planned_pods import planned as plan_of
from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.codec import decode
from trio_kubelet.runtime.lifecycle.resize_plan import ResizePlan, plan_resize
from trio_kubelet.runtime.observed import ObservedPod, ObservedResources

SMALL = {"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}}
MIB = 1 << 20
RUNS = observe(sandbox(), seen("c"))


def resources(**changes: dict[str, str]) -> dict[str, dict[str, str]]:
    return {kind: {**SMALL[kind], **changes.get(kind, {})} for kind in SMALL}


def a_pod(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **spec: Any) -> Pod:
    named = [{"image": "busybox", **each} for each in containers]
    metadata = {"name": "p", "namespace": "ns", "uid": "u"}
    first = [{"image": "busybox", **each} for each in init]
    more = {"restartPolicy": "Always", "initContainers": first, **spec}
    return decode(Pod, {"metadata": metadata, "spec": {"containers": named, **more}})


def one(given: Any = None, **policies: str) -> dict[str, Any]:
    policy = [{"resourceName": name, "restartPolicy": kind} for name, kind in policies.items()]
    return {"name": "c", "resources": given or SMALL, "resizePolicy": policy}


def planned(allocated: Pod, actuated: Pod, observed: ObservedPod = RUNS) -> ResizePlan:
    plan = plan_resize(allocated, actuated, observed)
    assert plan is not None
    return plan


def updated(plan: ResizePlan) -> dict[str, int | None]:
    return {each.container.name: each.lowered_memory_limit_bytes for each in plan.update}


def test_a_pod_that_has_what_it_is_allocated_needs_nothing() -> None:
    pod = a_pod(one())
    assert plan_resize(pod, pod, RUNS) is None


@pytest.mark.parametrize(
    ("changes", "lowered"),
    [
        ({"requests": {"cpu": "200m"}}, None),
        ({"limits": {"cpu": "500m"}}, None),
        ({"requests": {"memory": "16Mi"}}, None),
        ({"limits": {"memory": "96Mi"}}, None),
        ({"limits": {"memory": "48Mi"}}, 48 * MIB),
    ],
)
def test_a_running_container_is_changed_in_place(
    changes: dict[str, dict[str, str]], lowered: int | None
) -> None:
    plan = planned(a_pod(one(resources(**changes))), a_pod(one()))
    assert (updated(plan), plan.restart, plan.idle) == ({"c": lowered}, frozenset(), frozenset())


@pytest.mark.parametrize(
    ("changes", "restarts"),
    [
        ({"requests": {"cpu": "200m"}}, False),
        ({"limits": {"memory": "96Mi"}}, True),
        ({"requests": {"memory": "16Mi", "cpu": "200m"}}, True),
    ],
)
def test_a_container_restarts_for_the_resource_whose_policy_asks_for_it(
    changes: dict[str, dict[str, str]], restarts: bool
) -> None:
    policy = {"memory": "RestartContainer", "cpu": "NotRequired"}
    plan = planned(a_pod(one(resources(**changes), **policy)), a_pod(one(**policy)))
    assert plan.restart == ({"c"} if restarts else set())
    assert bool(plan.update) is not restarts


def test_a_container_that_does_not_run_is_made_with_what_is_allocated_when_it_is() -> None:
    larger = resources(limits={"memory": "96Mi"})
    plan = planned(a_pod(one(larger)), a_pod(one()), observe(sandbox(), exited("c", 1)))
    assert plan == ResizePlan(idle=frozenset({"c"}))
    assert planned(a_pod(one(larger)), a_pod(one()), observe(sandbox())).idle == {"c"}


@pytest.mark.parametrize(
    ("changes", "changed"),
    [
        ({"requests": {"cpu": "200m"}}, {"cpu"}),
        ({"limits": {"memory": "96Mi"}}, {"memory"}),
        ({"limits": {"memory": "48Mi", "cpu": "2"}}, {"memory", "cpu"}),
    ],
)
def test_a_container_is_told_of_the_resources_that_change(
    changes: dict[str, dict[str, str]], changed: set[str]
) -> None:
    (update,) = planned(a_pod(one(resources(**changes))), a_pod(one())).update
    assert update.changed == changed


def test_a_limit_that_the_runtime_has_already_is_not_lowered_again() -> None:
    smaller = a_pod(one(resources(limits={"memory": "48Mi"})))
    for shown_mib, lowered in ((48, None), (64, 48 * MIB)):
        shown = ObservedResources(memory_limit_bytes=shown_mib * MIB)
        (instance,) = RUNS.containers
        running = evolve(RUNS, containers=(evolve(instance, resources=shown),))
        assert updated(planned(smaller, a_pod(one()), running)) == {"c": lowered}


def test_one_whose_resources_stay_the_same_is_left_alone() -> None:
    other = {"name": "d", "resources": SMALL}
    running = observe(sandbox(), seen("c"), seen("d"))
    larger = resources(limits={"memory": "96Mi"})
    plan = planned(a_pod(one(larger), other), a_pod(one(), other), running)
    assert updated(plan) == {"c": None}
    assert plan.idle == set()


def test_sidecars_and_init_containers_that_run_are_changed_too() -> None:
    def pod(given: Any) -> Pod:
        side = {"name": "s", "restartPolicy": "Always", "resources": given}
        return a_pod(one(), init=(side, {"name": "i", "resources": given}))

    running = observe(sandbox(), seen("s"), seen("i"))
    plan = planned(pod(resources(limits={"cpu": "2"})), pod(SMALL), running)
    assert updated(plan) == {"s": None, "i": None}


def test_the_limit_of_the_pod_holds_for_containers_without_their_own() -> None:
    def pod(memory: str) -> Pod:
        return a_pod({"name": "c"}, one() | {"name": "d"}, resources={"limits": {"memory": memory}})

    running = observe(sandbox(), seen("c"), seen("d"))
    assert updated(planned(pod("128Mi"), pod("256Mi"), running)) == {"c": 128 * MIB}


def test_nothing_is_changed_in_place_of_a_pod_that_was_stopped() -> None:
    larger = resources(limits={"memory": "96Mi"})
    plan = planned(a_pod(one(larger)), a_pod(one()))
    assert plan.when_all_stopped == ResizePlan(idle=frozenset({"c"}))


def test_a_container_that_restarts_is_stopped_and_comes_back_with_what_is_allocated() -> None:
    policy = {"memory": "RestartContainer"}
    pod = a_pod(one(resources(limits={"memory": "96Mi"}), **policy))
    resize = planned(pod, a_pod(one(**policy)))
    plan = plan_of(pod, RUNS, evolve(GIVEN, resize=resize))
    assert [order.message for order in plan.stop] == ["Container c resize requires restart"]
    assert plan.resize is resize
    ended = observe(sandbox(), exited("c", 137))
    later = plan_of(pod, ended, evolve(GIVEN, resize=planned(pod, a_pod(one(**policy)), ended)))
    assert [order.container for order in later.start] == [pod.spec.containers[0]]
    assert later.resize == ResizePlan(idle=frozenset({"c"}))


def test_a_change_in_place_neither_stops_nor_starts_anything() -> None:
    pod = a_pod(one(resources(limits={"memory": "96Mi"})))
    plan = plan_of(pod, RUNS, evolve(GIVEN, resize=planned(pod, a_pod(one()))))
    assert (plan.stop, plan.start) == ((), ())
    assert not plan.is_empty


def test_a_new_sandbox_begins_with_what_is_allocated() -> None:
    pod = a_pod(one(resources(limits={"memory": "96Mi"})))
    gone = observe(sandbox(ready=False), seen("c"))
    plan = plan_of(pod, gone, evolve(GIVEN, resize=planned(pod, a_pod(one()), gone)))
    assert plan.resize == ResizePlan(idle=frozenset({"c"}))
