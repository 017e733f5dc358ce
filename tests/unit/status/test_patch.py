"""The body of a status patch: what is in it, and what the server makes of it."""

from attrs import evolve
from hypothesis import given

from tests.unit.status.api import patched
from tests.unit.status.test_merge import LATE, condition, statuses
from trio_kubelet.k8s import (
    ContainerState,
    ContainerStatus,
    PodIP,
    PodStatus,
    Quantity,
    ResourceRequirements,
)
from trio_kubelet.status.patch import status_patch


def test_equal_statuses_need_no_patch() -> None:
    known = PodStatus(phase="Running", allocated_resources={"cpu": Quantity("1")})
    wanted = PodStatus(phase="Running", allocated_resources={"cpu": Quantity("1000m")})
    assert status_patch("u", known, wanted) is None


def test_a_state_that_says_nothing_is_no_state() -> None:
    """The API answers with `lastState: {}` where nothing was sent."""
    known = PodStatus(container_statuses=(ContainerStatus(name="c", last_state=ContainerState()),))
    wanted = PodStatus(container_statuses=(ContainerStatus(name="c"),))
    assert status_patch("u", known, wanted) is None


def test_a_patch_names_the_pod_and_what_differs() -> None:
    known = PodStatus(phase="Pending", qos_class="BestEffort")
    assert status_patch("u", known, evolve(known, phase="Running")) == {
        "metadata": {"uid": "u"},
        "status": {"phase": "Running"},
    }


def test_what_is_over_is_taken_away() -> None:
    body = status_patch("u", PodStatus(reason="Waiting", message="m"), PodStatus())
    assert body is not None
    assert body["status"] == {"reason": None, "message": None}


def test_conditions_are_sent_one_by_one_with_their_order() -> None:
    gate, ready = condition("x/gate"), condition("Ready", "False", reason="R", message="m")
    gone = condition("PodResizePending")
    known = PodStatus(conditions=(ready, gate, gone))
    body = status_patch("u", known, PodStatus(conditions=(gate, condition("Ready", at=LATE))))
    assert body is not None
    assert body["status"] == {
        "$setElementOrder/conditions": [{"type": "x/gate"}, {"type": "Ready"}],
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "lastTransitionTime": str(LATE),
                "reason": None,
                "message": None,
            },
            {"$patch": "delete", "type": "PodResizePending"},
        ],
    }


def test_a_condition_that_somebody_added_meanwhile_survives() -> None:
    known = PodStatus(conditions=(condition("Ready", "False"),))
    body = status_patch("u", known, PodStatus(conditions=(condition("Ready"),)))
    assert body is not None
    meanwhile = PodStatus(conditions=(condition("Ready", "False"), condition("x/gate")))
    found = patched(meanwhile, body["status"])
    assert {c.type: c.status for c in found.conditions} == {"x/gate": "True", "Ready": "True"}


def test_lists_of_containers_are_sent_whole() -> None:
    one, two = ContainerStatus(name="a"), ContainerStatus(name="b")
    body = status_patch(
        "u",
        PodStatus(container_statuses=(one, two)),
        PodStatus(container_statuses=(one, evolve(two, ready=True))),
    )
    assert body is not None
    assert [each["name"] for each in body["status"]["containerStatuses"]] == ["a", "b"]


def test_an_address_that_changed_does_not_leave_the_old_one() -> None:
    known = PodStatus(pod_ips=(PodIP(ip="10.0.0.1"), PodIP(ip="fd00::1")))
    wanted = PodStatus(pod_ips=(PodIP(ip="10.0.0.2"), PodIP(ip="fd00::1")))
    body = status_patch("u", known, wanted)
    assert body is not None
    assert patched(known, body["status"]) == wanted


def test_resources_that_go_are_taken_out_of_their_maps() -> None:
    known = PodStatus(
        allocated_resources={"cpu": Quantity("1"), "memory": Quantity("1Gi")},
        resources=ResourceRequirements(limits={"cpu": Quantity("1")}),
    )
    wanted = PodStatus(allocated_resources={"cpu": Quantity("2")}, resources=ResourceRequirements())
    body = status_patch("u", known, wanted)
    assert body is not None
    assert body["status"] == {
        "allocatedResources": {"cpu": "2", "memory": None},
        "resources": {"limits": None},
    }


@given(statuses, statuses)
def test_a_patch_leads_from_one_status_to_the_other(known: PodStatus, wanted: PodStatus) -> None:
    body = status_patch("u", known, wanted)
    if body is None:
        assert known == wanted
    else:
        assert patched(known, body["status"]) == wanted
