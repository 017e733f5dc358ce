"""Where containers stand: what was seen steps the table, what is decided is checked by it."""

from collections.abc import Iterable

import pytest
from attrs import evolve

from state_machines.backoff import BackoffPolicy
from state_machines.container import (
    ContainerEvent,
    ContainerStage,
    RestartEvidence,
    RestartTerms,
)
from state_machines.machine import IllegalTransition
from trio_kubelet.k8s import ObjectMeta, Pod
from trio_kubelet.runtime.lifecycle.container_table import ContainerTable, Decision, Reason
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState
from trio_kubelet.telemetry import Journal

POD = Pod(metadata=ObjectMeta(name="web", namespace="shop", uid="u"))
CREATED, RUNNING, EXITED, UNKNOWN = ObservedState
RESTART = Decision(
    name="c",
    event=ContainerEvent.RESTARTED,
    evidence=RestartEvidence(terms=RestartTerms(), exit_code=1),
    is_restart=True,
)
REPLACE = Decision(name="c", event=ContainerEvent.REPLACED)
STOP = Decision(name="c", event=ContainerEvent.STOPPED)


class Clock:
    def now_ns(self) -> int:
        return 0


@pytest.fixture
def journal() -> Journal:
    return Journal(Clock())


@pytest.fixture
def table(journal: Journal) -> ContainerTable:
    return ContainerTable(journal)


def instance(number: int, state: ObservedState) -> ObservedContainer:
    return ObservedContainer(
        id=f"c{number}", name="c", sandbox_id="s", state=state, restart_count=number
    )


def seen(*instances: ObservedContainer) -> ObservedPod:
    newest_first = tuple(sorted(instances, key=lambda each: each.restart_count, reverse=True))
    return ObservedPod(
        uid="u", name="web", namespace="shop", observed_at=0, containers=newest_first
    )


def walked(journal: Journal) -> Iterable[tuple[str, str]]:
    return [(entry.event, entry.target) for entry in journal.entries("shop/web/c")]


def test_a_restart_is_told_from_the_exit_to_the_next_start(
    table: ContainerTable, journal: Journal
) -> None:
    table.observe(POD, seen(instance(0, RUNNING)))
    table.observe(POD, seen(instance(0, EXITED)))
    table.decide(POD, [RESTART])
    table.observe(POD, seen(instance(0, EXITED)))
    table.observe(POD, seen(instance(0, EXITED), instance(1, RUNNING)))
    assert walked(journal) == [
        ("Started", "Running"),
        ("Exited", "Exited"),
        ("Restarted", "Waiting"),
        ("Started", "Running"),
    ]


@pytest.mark.parametrize(
    ("state", "decision"), [(RUNNING, RESTART), (EXITED, evolve(RESTART, evidence=None))]
)
def test_a_decision_that_the_table_refuses_raises_and_changes_nothing(
    table: ContainerTable, state: ObservedState, decision: Decision
) -> None:
    table.observe(POD, seen(instance(0, state)))
    before = table["c"]
    with pytest.raises(IllegalTransition):
        table.decide(POD, [decision])
    assert table["c"] == before


def test_a_refused_decision_keeps_those_beside_it_from_being_taken(table: ContainerTable) -> None:
    table.observe(POD, seen(instance(0, CREATED)))
    refused = Decision(name="other", event=ContainerEvent.RESTARTED)
    with pytest.raises(IllegalTransition):
        table.decide(POD, [REPLACE, refused])
    assert table["c"].state is ContainerStage.CREATED


def test_an_instance_that_returns_from_the_dead_is_refused(table: ContainerTable) -> None:
    table.observe(POD, seen(instance(0, EXITED)))
    with pytest.raises(IllegalTransition, match="Started is illegal in Exited"):
        table.observe(POD, seen(instance(0, RUNNING)))
    assert table["c"].state is ContainerStage.EXITED


def test_an_instance_that_another_agent_made_is_adopted_and_the_journal_says_so(
    table: ContainerTable, journal: Journal
) -> None:
    table.observe(POD, seen(instance(0, EXITED)))
    told = table.observe(POD, seen(instance(0, EXITED), instance(1, RUNNING)))
    assert table["c"].state is ContainerStage.RUNNING
    assert [each.id for each in told.started] == ["c1"]
    assert [(entry.event, entry.source, entry.target) for entry in journal.entries()] == [
        ("Exited", "Waiting", "Exited"),
        ("MadeByAnother", "", ""),
        ("Started", "Waiting", "Running"),
    ]


def test_what_another_agent_made_says_nothing_of_what_was_decided_before(
    table: ContainerTable,
) -> None:
    table.waits("c", Reason(reason="ErrImagePull"))
    table.observe(POD, seen(instance(0, RUNNING)))
    table.decide(POD, [REPLACE])
    table.observe(POD, seen(instance(0, RUNNING), instance(1, RUNNING)))
    record = table["c"]
    assert record.state is ContainerStage.RUNNING
    assert not record.was_stopped
    assert record.left_behind == {"c0"}
    assert record.reason == Reason(reason="ErrImagePull")


def test_older_instances_are_no_news_when_the_newest_is_gone(table: ContainerTable) -> None:
    table.observe(POD, seen(instance(0, EXITED), instance(1, RUNNING)))
    table.observe(POD, seen(instance(0, EXITED)))
    assert table["c"].state is ContainerStage.UNKNOWN


def test_of_instances_that_are_not_listed_any_more_nothing_is_remembered(
    table: ContainerTable,
) -> None:
    for number in range(5):
        table.observe(POD, seen(instance(number, EXITED)))
        table.decide(POD, [RESTART])
    assert table["c"].left_behind == {"c4"}
    table.observe(POD, seen())
    assert table["c"].left_behind == frozenset()


def test_an_unstarted_instance_that_could_not_be_removed_is_found_again(
    table: ContainerTable,
) -> None:
    table.observe(POD, seen(instance(0, CREATED)))
    table.decide(POD, [REPLACE])
    waiting = table["c"].state
    table.observe(POD, seen(instance(0, RUNNING)))
    states = waiting, table["c"].state
    assert states == (ContainerStage.WAITING, ContainerStage.RUNNING), "its start worked after all"


def test_starts_and_ends_of_instances_are_told_once(table: ContainerTable) -> None:
    told = [table.observe(POD, seen(instance(0, state))) for state in (CREATED, RUNNING, RUNNING)]
    assert [[each.id for each in each.started] for each in told] == [[], ["c0"], []]
    table.decide(POD, [REPLACE])
    ends = [table.observe(POD, seen(instance(0, state))).ended for state in (RUNNING, EXITED)]
    assert ends == [frozenset(), {"c0"}]


def test_a_pod_that_is_stopped_replaces_nothing(table: ContainerTable) -> None:
    table.observe(POD, seen(instance(0, RUNNING)))
    table.decide(POD, [REPLACE])
    table.stop(POD)
    table.observe(POD, seen(instance(0, EXITED)))
    stopped = table["c"].state
    table.remove(POD)
    table.observe(POD, seen(instance(0, EXITED)))
    table.remove(POD)
    assert (stopped, table["c"].state) == (ContainerStage.EXITED, ContainerStage.REMOVED)


def test_a_running_container_is_not_removed(table: ContainerTable) -> None:
    table.observe(POD, seen(instance(0, RUNNING)))
    with pytest.raises(IllegalTransition):
        table.remove(POD)


def test_only_starts_after_a_restart_lengthen_the_back_off(table: ContainerTable) -> None:
    policy = BackoffPolicy()
    table.observe(POD, seen(instance(0, EXITED)))
    table.decide(POD, [REPLACE])
    table.attempt("c", policy, 0)
    assert table["c"].backoff is None
    table.observe(POD, seen(instance(0, EXITED), instance(1, EXITED)))
    table.decide(POD, [RESTART])
    table.attempt("c", policy, 0)
    assert table["c"].backoff is not None


@pytest.mark.parametrize(
    ("found", "decisions", "then", "restarting"),
    [
        (RUNNING, [], RUNNING, set()),
        (RUNNING, [], EXITED, set()),
        (RUNNING, [STOP], EXITED, set()),
        (RUNNING, [REPLACE], RUNNING, {"c"}),
        (RUNNING, [REPLACE], EXITED, {"c"}),
        (RUNNING, [REPLACE, STOP], EXITED, set()),
        (EXITED, [RESTART], EXITED, {"c"}),
        (CREATED, [], CREATED, {"c"}),
        (UNKNOWN, [], UNKNOWN, set()),
    ],
)
def test_what_was_decided_to_run_again_does_so_whatever_it_ends_with(
    table: ContainerTable,
    found: ObservedState,
    decisions: list[Decision],
    then: ObservedState,
    restarting: set[str],
) -> None:
    table.observe(POD, seen(instance(0, found)))
    for each in decisions:
        table.decide(POD, [each])
    table.observe(POD, seen(instance(0, then)))
    assert table.restarting == restarting


def test_why_a_container_waits_is_news_once_and_over_with_its_start(table: ContainerTable) -> None:
    reason = Reason(reason="CrashLoopBackOff")
    assert [table.waits("c", reason), table.waits("c", reason)] == [True, False]
    assert table.reasons == {"c": reason}
    table.started("c", 0)
    assert table.reasons == {}
