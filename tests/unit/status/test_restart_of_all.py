"""What a pod's status tells while all its containers restart, from the exit to the new start."""

from collections.abc import Iterable

from attrs import evolve

from tests.unit.status.pods import (
    EXITED,
    NOW,
    RUNNING,
    SECOND,
    a_pod,
    instance,
    seen,
    status_of,
)
from trio_kubelet.k8s import (
    Container,
    ContainerRestartRule,
    ContainerRestartRuleOnExitCodes,
    ContainerStatus,
    PodStatus,
    Time,
)

RULE = ContainerRestartRule(
    action="RestartAllContainers",
    exit_codes=ContainerRestartRuleOnExitCodes(operator="In", values=(42,)),
)
CAUSE = Container(name="cause", restart_policy="Never", restart_policy_rules=(RULE,))
POD = a_pod(
    containers=(CAUSE, Container(name="other")),
    init=(Container(name="i"),),
    restart_policy="Never",
)
FIRST = seen(
    instance("i", EXITED), instance("cause", EXITED, exit_code=42), instance("other", RUNNING)
)
STOPPED = seen(
    instance("i", EXITED),
    instance("cause", EXITED, exit_code=42),
    instance("other", EXITED, exit_code=137),
)


def condition(status: PodStatus, kind: str) -> tuple[str, str, str]:
    (found,) = (c for c in status.conditions if c.type == kind)
    return found.status, found.reason, found.message


def waiting(statuses: Iterable[ContainerStatus]) -> dict[str, tuple[str, int, int]]:
    """Of those that wait: why, how their last instance ended, how often they were restarted."""
    found = {}
    for each in statuses:
        if each.state and each.state.waiting and each.last_state and each.last_state.terminated:
            end = each.last_state.terminated
            found[each.name] = (each.state.waiting.reason, end.exit_code, each.restart_count)
    return found


def every(status: PodStatus) -> tuple[ContainerStatus, ...]:
    return (*status.init_container_statuses, *status.container_statuses)


def test_a_pod_that_may_restart_all_says_that_it_does_not() -> None:
    told = status_of(POD, seen(instance("cause", RUNNING), instance("other", RUNNING)))
    assert condition(told, "AllContainersRestarting") == ("False", "", "")
    assert not [c for c in status_of(a_pod()).conditions if c.type == "AllContainersRestarting"]


def test_the_ends_of_what_is_removed_stay_told_until_it_runs_again() -> None:
    told = status_of(POD, seen(instance("cause", RUNNING), instance("other", RUNNING)))
    assert told.phase == "Running"
    for observed in (FIRST, STOPPED):
        told = status_of(POD, observed, previous=told, now_ns=NOW + 9 * SECOND)
        assert condition(told, "AllContainersRestarting") == (
            "True",
            "RestartAllContainersStarted",
            "container exited with restart policy rule",
        )
        assert told.phase == "Running", "though all have ended and the policy is Never"
    partly = status_of(POD, seen(instance("cause", EXITED, exit_code=42)), previous=told)
    assert waiting(every(partly)) == {
        "i": ("RestartingAllContainers", 0, 0),
        "other": ("RestartingAllContainers", 137, 0),
    }
    for before in (told, partly):
        removed = status_of(POD, seen(), previous=before)
        assert condition(removed, "AllContainersRestarting")[0] == "False"
        assert condition(removed, "Initialized")[0] == "True"
        assert removed.phase == "Running"
        assert waiting(every(removed)) == {
            "i": ("PodInitializing", 0, 0),
            "cause": ("PodInitializing", 42, 0),
            "other": ("PodInitializing", 137, 0),
        }
    again = status_of(POD, seen(instance("i", RUNNING, 1)), previous=removed)
    assert again.phase == "Pending"
    assert [each.restart_count for each in every(again)] == [1, 0, 0]
    through = status_of(POD, seen(instance("i", EXITED, 1)), previous=again)
    assert through.phase == "Running", "it goes on where another pod would have failed"
    new = seen(
        instance("i", EXITED, 1), instance("cause", RUNNING, 1), instance("other", RUNNING, 1)
    )
    runs = status_of(POD, new, previous=through)
    assert [each.restart_count for each in every(runs)] == [1, 1, 1]
    ends = [each.last_state.terminated for each in every(runs) if each.last_state]
    assert [end.exit_code for end in ends if end] == [0, 42, 137]


def test_a_pod_that_is_deleted_meanwhile_tells_the_ends_as_its_own() -> None:
    told = status_of(POD, STOPPED)
    deleted = evolve(POD, metadata=evolve(POD.metadata, deletion_timestamp=Time.from_ns(NOW)))
    over = status_of(deleted, seen(), previous=told, stopped=True)
    assert over.phase == "Failed"
    assert condition(over, "AllContainersRestarting") == ("False", "PodFailed", "")
    ends = [each.state.terminated for each in every(over) if each.state]
    assert [end.exit_code for end in ends if end] == [0, 42, 137]
