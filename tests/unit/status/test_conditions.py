"""Conditions: their status, their words, since when they hold, and whose they are."""

import pytest

from state_machines.probe import ProbeVerdict
from tests.unit.status.pods import (
    EXITED,
    NOTHING,
    NOW,
    RUNNING,
    SECOND,
    a_pod,
    instance,
    sandbox,
    seen,
    sidecar,
    status_of,
)
from trio_kubelet.k8s import Container, Pod, PodCondition, PodStatus, Time
from trio_kubelet.runtime.observed import ObservedPod
from trio_kubelet.status import Failure

INIT = (Container(name="i"), Container(name="j"))


def condition(status: PodStatus, kind: str) -> PodCondition:
    (found,) = (c for c in status.conditions if c.type == kind)
    return found


def words(status: PodStatus, kind: str) -> tuple[str, str, str]:
    found = condition(status, kind)
    return found.status, found.reason, found.message


def test_the_node_sets_five_conditions_in_a_fixed_order() -> None:
    assert [c.type for c in status_of(a_pod()).conditions] == [
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
    ]


@pytest.mark.parametrize(
    ("pod", "observed", "kind", "expected"),
    [
        (a_pod(), NOTHING, "PodScheduled", ("True", "", "")),
        (a_pod(), NOTHING, "PodReadyToStartContainers", ("False", "", "")),
        (a_pod(), seen(), "PodReadyToStartContainers", ("True", "", "")),
        (
            a_pod(),
            seen(sandboxes=(sandbox(ready=False),)),
            "PodReadyToStartContainers",
            ("False", "", ""),
        ),
        (
            a_pod(),
            seen(sandboxes=(sandbox(ips=()),)),
            "PodReadyToStartContainers",
            ("False", "", ""),
        ),
        (
            a_pod(host_network=True),
            seen(sandboxes=(sandbox(ips=(), host_network=True),)),
            "PodReadyToStartContainers",
            ("True", "", ""),
        ),
        (
            a_pod(host_network=True),
            seen(sandboxes=(sandbox(),)),
            "PodReadyToStartContainers",
            ("False", "", ""),
        ),
        (
            a_pod(),
            seen(sandboxes=(sandbox(id="s-1"), sandbox())),
            "PodReadyToStartContainers",
            ("False", "", ""),
        ),
        (a_pod(), NOTHING, "Initialized", ("True", "", "")),
        (
            a_pod(init=INIT),
            seen(instance("i", RUNNING)),
            "Initialized",
            ("False", "ContainersNotInitialized", "containers with incomplete status: [i j]"),
        ),
        (
            a_pod(init=INIT),
            seen(instance("i", EXITED)),
            "Initialized",
            ("False", "ContainersNotInitialized", "containers with incomplete status: [j]"),
        ),
        (
            a_pod(init=INIT),
            seen(instance("i", EXITED), instance("j", EXITED)),
            "Initialized",
            ("True", "", ""),
        ),
        (
            a_pod(init=(sidecar("s"),)),
            seen(),
            "Initialized",
            ("False", "ContainersNotInitialized", "containers with incomplete status: [s]"),
        ),
        (
            a_pod(init=(sidecar("s"),)),
            seen(instance("s", RUNNING)),
            "Initialized",
            ("True", "", ""),
        ),
        (
            a_pod(init=(sidecar("s"),)),
            seen(instance("s", EXITED), instance("c", RUNNING)),
            "Initialized",
            ("True", "", ""),
        ),
        (
            a_pod(init=INIT, restart_policy="Never"),
            seen(instance("i", EXITED), instance("j", EXITED), instance("c", EXITED)),
            "Initialized",
            ("True", "PodCompleted", ""),
        ),
        (a_pod(), seen(instance("c", RUNNING)), "ContainersReady", ("True", "", "")),
        (a_pod(), seen(instance("c", RUNNING)), "Ready", ("True", "", "")),
        (
            a_pod("c", "d", "e"),
            seen(instance("d", RUNNING)),
            "ContainersReady",
            ("False", "ContainersNotReady", "containers with unready status: [c e]"),
        ),
        (
            a_pod("c", init=(sidecar("s"),)),
            seen(),
            "Ready",
            ("False", "ContainersNotReady", "containers with unready status: [s c]"),
        ),
        (
            a_pod(restart_policy="Never"),
            seen(instance("c", EXITED)),
            "Ready",
            ("False", "PodCompleted", ""),
        ),
        (
            a_pod(restart_policy="Never"),
            seen(instance("c", EXITED, exit_code=1)),
            "ContainersReady",
            ("False", "PodFailed", ""),
        ),
    ],
)
def test_what_a_condition_says(
    pod: Pod, observed: ObservedPod, kind: str, expected: tuple[str, str, str]
) -> None:
    assert words(status_of(pod, observed), kind) == expected


# --- the words for a pod that goes

NEVER_STARTED = "containers with unready status: [c]"


@pytest.mark.parametrize(
    ("pod", "observed", "expected"),
    [
        (a_pod(), NOTHING, ("ContainersNotReady", NEVER_STARTED)),
        (a_pod(restart_policy="Never"), seen(), ("ContainersNotReady", NEVER_STARTED)),
        (
            a_pod("d", "c"),
            seen(instance("d", EXITED)),
            ("ContainersNotReady", "containers with unready status: [d c]"),
        ),
        (
            a_pod(init=INIT),
            seen(instance("i", EXITED, exit_code=2)),
            ("ContainersNotReady", NEVER_STARTED),
        ),
        (
            a_pod(init=INIT, restart_policy="Never"),
            seen(instance("i", EXITED, exit_code=2)),
            ("PodFailed", ""),
        ),
        (a_pod(), seen(instance("c", EXITED, exit_code=1)), ("PodFailed", "")),
        (a_pod(), seen(instance("c", EXITED)), ("PodCompleted", "")),
        (
            a_pod("c", "d"),
            seen(instance("c", EXITED), instance("d", EXITED, exit_code=1)),
            ("PodFailed", ""),
        ),
    ],
)
def test_a_pod_that_was_stopped_says_what_was_unready_where_not_all_had_their_turn(
    pod: Pod, observed: ObservedPod, expected: tuple[str, str]
) -> None:
    status = status_of(pod, observed, stopped=True)
    assert status.phase in ("Failed", "Succeeded")
    for _ in range(2):
        for kind in ("Ready", "ContainersReady"):
            assert words(status, kind) == ("False", *expected)
        status = status_of(pod, NOTHING, previous=status, stopped=True)


def test_a_pod_that_failed_for_its_own_reason_is_unready_while_it_is_stopped() -> None:
    running = seen(instance("c", RUNNING))
    before = status_of(a_pod(), running)
    failure = Failure(reason="DeadlineExceeded")
    status = status_of(a_pod(), running, previous=before, failure=failure)
    assert status.phase == "Running"
    assert words(status, "Ready") == words(status, "ContainersReady") == ("False", "PodFailed", "")


# --- readiness gates


def gated(*conditions: PodCondition) -> PodStatus:
    pod = a_pod(gates=("lb/attached", "dns/known"), status=PodStatus(conditions=conditions))
    return status_of(pod, seen(instance("c", RUNNING)))


def test_a_pod_waits_for_its_readiness_gates() -> None:
    attached = PodCondition(type="lb/attached", status="False")
    assert words(gated(attached), "Ready") == (
        "False",
        "ReadinessGatesNotReady",
        'the status of pod readiness gate "lb/attached" is not "True", but False, '
        'corresponding condition of pod readiness gate "dns/known" does not exist.',
    )
    assert words(gated(attached), "ContainersReady")[0] == "True"


def test_a_pod_is_ready_when_its_gates_are_open() -> None:
    open_gates = (PodCondition(type=t, status="True") for t in ("lb/attached", "dns/known"))
    assert words(gated(*open_gates), "Ready") == ("True", "", "")


def test_a_hundred_closed_gates_are_named_and_the_others_counted() -> None:
    pod = a_pod(gates=tuple(f"gate/{number}" for number in range(30_000)))
    said = words(status_of(pod, seen(instance("c", RUNNING))), "Ready")[2]
    assert '"gate/99" does not exist., and 29900 more' in said
    assert '"gate/100"' not in said


def test_unready_containers_are_told_before_gates() -> None:
    pod = a_pod(gates=("lb/attached",))
    assert words(status_of(pod, seen()), "Ready")[1] == "ContainersNotReady"


# --- since when


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    pod, running = a_pod(), seen(instance("c", RUNNING))
    first = status_of(pod, seen(), now_ns=NOW)
    second = status_of(pod, running, previous=first, now_ns=NOW + 5 * SECOND)
    third = status_of(pod, running, previous=second, now_ns=NOW + 9 * SECOND)
    assert condition(second, "Ready").last_transition_time == Time.from_ns(NOW + 5 * SECOND)
    assert condition(second, "PodScheduled").last_transition_time == Time.from_ns(NOW)
    assert third == second


def test_another_reason_alone_is_no_transition() -> None:
    pod = a_pod(restart_policy="Never")
    first = status_of(pod, seen(), now_ns=NOW)
    ended = seen(instance("c", EXITED))
    second = status_of(pod, ended, previous=first, now_ns=NOW + SECOND)
    assert condition(second, "Ready").reason == "PodCompleted"
    assert condition(second, "Ready").last_transition_time == Time.from_ns(NOW)


# --- whose they are


def test_the_conditions_of_others_are_passed_on_as_the_api_has_them() -> None:
    theirs = PodCondition(type="lb/attached", status="True", reason="Done")
    stale = PodCondition(type="lb/attached", status="False")
    pod = a_pod(status=PodStatus(conditions=(theirs,)))
    status = status_of(pod, previous=PodStatus(conditions=(stale,)))
    assert condition(status, "lb/attached") == theirs


def test_a_condition_that_others_removed_is_gone() -> None:
    theirs = PodCondition(type="lb/attached", status="True")
    status = status_of(a_pod(), previous=PodStatus(conditions=(theirs,)))
    assert "lb/attached" not in [c.type for c in status.conditions]


def test_a_pod_that_the_node_disrupts_tells_why_once() -> None:
    failure = Failure(reason="Preempting", disruption="for a critical pod")
    first = status_of(a_pod(generation=3), failure=failure)
    expected = PodCondition(
        type="DisruptionTarget",
        status="True",
        reason="TerminationByKubelet",
        message="for a critical pod",
        observed_generation=3,
        last_transition_time=Time.from_ns(NOW),
    )
    assert condition(first, "DisruptionTarget") == expected
    later = status_of(a_pod(), previous=first, failure=failure, now_ns=NOW + SECOND)
    assert condition(later, "DisruptionTarget") == expected
    assert "DisruptionTarget" not in [
        c.type for c in status_of(a_pod(), failure=Failure(reason="DeadlineExceeded")).conditions
    ]


def test_a_disruption_is_not_forgotten() -> None:
    disrupted = PodCondition(type="DisruptionTarget", status="True", reason="TerminationByKubelet")
    status = status_of(a_pod(), previous=PodStatus(conditions=(disrupted,)))
    assert condition(status, "DisruptionTarget") == disrupted


def test_what_the_node_no_longer_says_is_over() -> None:
    resizing = PodCondition(type="PodResizeInProgress", status="True")
    status = status_of(a_pod(status=PodStatus(conditions=(resizing,))))
    assert "PodResizeInProgress" not in [c.type for c in status.conditions]


def test_conditions_tell_which_spec_they_are_about() -> None:
    theirs = PodCondition(type="lb/attached", status="True", observed_generation=2)
    status = status_of(a_pod(generation=7, status=PodStatus(conditions=(theirs,))))
    assert {c.type: c.observed_generation for c in status.conditions} == {
        "lb/attached": 2,
        "PodReadyToStartContainers": 7,
        "Initialized": 7,
        "Ready": 7,
        "ContainersReady": 7,
        "PodScheduled": 7,
    }
    assert status.observed_generation == 7


def test_an_unready_probe_makes_the_pod_unready() -> None:
    observed = seen(instance("c", RUNNING))
    status = status_of(a_pod(), observed, probed={"c-0": ProbeVerdict(ready=False)})
    assert words(status, "Ready") == (
        "False",
        "ContainersNotReady",
        "containers with unready status: [c]",
    )
