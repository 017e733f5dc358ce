"""Whether a running pod may have other resources: now, later, or never; and who is first."""

from typing import Any

import pytest

from tests.unit.sync.admission.pods_and_nodes import make_pod
from trio_kubelet.k8s import Pod, Quantity
from trio_kubelet.sync.admission.resize_fit import (
    ResizeAdmission,
    ResizeRefusal,
    resize_order,
)

NODE = {"cpu": Quantity("2"), "memory": Quantity("1Gi")}


def decide(
    pod: Pod,
    allocated: Pod,
    used: dict[str, str] | None = None,
    *,
    swaps: bool = False,
    pod_level: bool = True,
    static: tuple[str, ...] = (),
    whole: bool = False,
) -> ResizeRefusal | None:
    admission = ResizeAdmission(
        allocatable=lambda: NODE,
        may_swap=lambda _pod, _container: swaps,
        pod_level=pod_level,
        static_managers=static,
        is_whole=lambda _pod: whole,
    )
    others = {name: Quantity(amount) for name, amount in (used or {}).items()}
    return admission.infeasible(pod, allocated) or admission.unfit(pod, allocated, others)


def asking(cpu: str = "1", memory: str = "256Mi", **more: Any) -> Pod:
    return make_pod(requests={"cpu": cpu, "memory": memory}, **more)


@pytest.mark.parametrize(
    ("pod", "used"),
    [
        (asking(cpu="1500m"), {}),
        (asking(cpu="1500m"), {"cpu": "500m"}),
        (asking(memory="1Gi"), {}),
        (asking(cpu="500m", memory="128Mi"), {"cpu": "1500m", "memory": "900Mi"}),
        # The node has less than its pods hold: what does not grow makes it no worse.
        (asking(cpu="500m"), {"cpu": "3", "memory": "2Gi"}),
        (asking(memory="128Mi"), {"cpu": "3", "memory": "2Gi"}),
    ],
)
def test_what_fits_is_granted_and_so_is_what_shrinks(pod: Pod, used: dict[str, str]) -> None:
    assert decide(pod, asking(), used) is None


@pytest.mark.parametrize(
    ("pod", "used", "message"),
    [
        (asking(cpu="1500m"), {"cpu": "600m"}, "cpu, requested: 1500, used: 600, capacity: 2000"),
        (
            asking(memory="512Mi"),
            {"memory": "768Mi"},
            "memory, requested: 536870912, used: 805306368, capacity: 1073741824",
        ),
    ],
)
def test_what_others_hold_is_waited_for(pod: Pod, used: dict[str, str], message: str) -> None:
    refusal = decide(pod, asking(), used)
    assert refusal == ResizeRefusal(
        reason="Deferred", message=f"Node didn't have enough resource: {message}"
    )


@pytest.mark.parametrize(
    ("pod", "message"),
    [
        (asking(cpu="2100m"), "cpu, requested: 2100, capacity: 2000"),
        (asking(memory="2Gi"), "memory, requested: 2147483648, capacity: 1073741824"),
        (asking(cpu="3", memory="2Gi"), "memory, requested: 2147483648, capacity: 1073741824"),
    ],
)
def test_more_than_the_node_has_is_infeasible(pod: Pod, message: str) -> None:
    assert decide(pod, asking()) == ResizeRefusal(
        reason="Infeasible",
        message=f"Node didn't have enough capacity: {message}",
        detail="insufficient_node_allocatable",
    )


def test_a_static_pod_is_never_resized() -> None:
    assert decide(asking(cpu="500m", static=True), asking(static=True)) == ResizeRefusal(
        reason="Infeasible",
        message="In-place resize of static-pods is not supported",
        detail="static_pod",
    )


def test_the_qos_class_of_a_pod_never_changes() -> None:
    burstable = asking(limited=True, status={"qosClass": "Burstable"})
    refusal = decide(burstable, asking())
    assert refusal is not None
    assert (refusal.reason, refusal.detail) == ("Infeasible", "qos_class_change")
    assert decide(asking(cpu="500m", status={"qosClass": "Burstable"}), asking()) is None


def test_a_container_that_may_swap_keeps_its_memory_request() -> None:
    refusal = decide(asking(memory="128Mi"), asking(), swaps=True)
    assert refusal == ResizeRefusal(
        reason="Infeasible",
        message="In-place resize of containers with swap is not supported.",
        detail="swap_limitation",
    )
    assert decide(asking(cpu="500m"), asking(), swaps=True) is None


def test_a_container_that_restarts_for_memory_may_swap_as_it_likes() -> None:
    policy = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]

    def restarting(memory: str) -> Pod:
        resources = {"requests": {"memory": memory}}
        containers = [{"name": "c", "resources": resources, "resizePolicy": policy}]
        return make_pod(containers=containers)

    assert decide(restarting("128Mi"), restarting("256Mi"), swaps=True) is None


def test_the_pod_as_a_whole_is_resized_only_if_the_gate_is_on() -> None:
    larger, before = (
        asking(resources={"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}) for cpu in ("2", "1")
    )
    assert decide(larger, before) is None
    assert decide(larger, before, pod_level=False) == ResizeRefusal(
        reason="Infeasible",
        message="InPlacePodLevelResourcesVerticalScaling is disabled",
        detail="feature_gate_off",
    )
    refusal = decide(larger, before, {"cpu": "500m"})
    assert refusal is not None
    assert refusal.reason == "Deferred"


@pytest.mark.parametrize(
    ("changes", "manager", "policy"),
    [
        ({"cpu": "1500m"}, "cpu", 'CPU Manager policy "static"'),
        ({"memory": "128Mi"}, "memory", 'Memory Manager policy "Static"'),
    ],
)
def test_what_a_static_policy_gave_to_a_guaranteed_pod_is_not_resized(
    changes: dict[str, str], manager: str, policy: str
) -> None:
    pod, before = asking(limited=True, **changes), asking(limited=True)
    assert decide(pod, before, static=(manager,)) == ResizeRefusal(
        reason="Infeasible",
        message=f"Resize is infeasible for Guaranteed Pods alongside {policy}",
        detail=f"guaranteed_pod_{manager}_manager_static_policy",
    )
    others = {"cpu": "memory", "memory": "cpu"}
    assert decide(pod, before, static=(others[manager],)) is None
    assert decide(asking(**changes), asking(), static=(manager,)) is None


@pytest.mark.parametrize(
    ("changes", "manager"), [({"cpu": "1500m"}, "cpu"), ({"memory": "128Mi"}, "memory")]
)
def test_the_one_part_that_a_static_policy_gave_to_a_pod_is_not_resized(
    changes: dict[str, str], manager: str
) -> None:
    def a_pod(**changed: str) -> Pod:
        amounts = {"cpu": "1", "memory": "256Mi"} | changed
        return make_pod(resources={"requests": amounts, "limits": amounts})

    larger, before = a_pod(**changes), a_pod()
    refusal = decide(larger, before, static=(manager,), whole=True)
    assert refusal is not None
    detail = f"guaranteed_pod_{manager}_manager_static_policy"
    assert (refusal.reason, refusal.detail) == ("Infeasible", detail)
    # Containers that have parts of their own keep these.
    assert decide(larger, before, static=(manager,), whole=False) is None
    others = {"cpu": "memory", "memory": "cpu"}
    assert decide(larger, before, static=(others[manager],), whole=True) is None


def test_what_shrinks_is_first_then_priority_then_class_then_who_has_waited_longest() -> None:
    small = asking(cpu="100m")

    def guaranteed(name: str) -> Pod:
        return asking(cpu="1", name=name, limited=True)

    named = {
        "shrinks": (asking(cpu="50m", name="shrinks", priority=-1), small, 9),
        "important": (asking(cpu="1", name="important", priority=1000), small, None),
        "guaranteed": (guaranteed("guaranteed"), small, 9),
        "waits longest": (asking(cpu="1", name="waits"), small, 3),
        "waits": (asking(cpu="1", name="waits-too"), small, 4),
        "new": (asking(cpu="1", name="new"), small, None),
        "humble": (asking(cpu="1", name="humble", priority=-1), small, 1),
    }
    order = sorted(sorted(named), key=lambda name: resize_order(*named[name]))
    assert order == list(named)
