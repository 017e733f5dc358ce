"""The conditions of a node: their words, their order, since when they hold, whose they are."""

from collections.abc import Sequence

import pytest

from tests.unit.node.nodes import LATER, NOW
from trio_kubelet.errors import aggregated
from trio_kubelet.eviction import Pressures
from trio_kubelet.k8s import NodeCondition, Time
from trio_kubelet.node.conditions import condition_events, is_ready, node_conditions

CALM = Pressures()
FOREIGN = NodeCondition(type="NetworkUnavailable", status="False", reason="RouteCreated")


def conditions(
    previous: Sequence[NodeCondition] = (),
    pressures: Pressures | None = CALM,
    errors: Sequence[str] = (),
    now: Time = NOW,
) -> tuple[NodeCondition, ...]:
    return node_conditions(previous, pressures, errors, now)


def unknown(kind: str) -> NodeCondition:
    """A condition as the node lifecycle controller leaves it when a node was silent."""
    return NodeCondition(
        type=kind,
        status="Unknown",
        reason="NodeStatusUnknown",
        message="Kubelet stopped posting node status.",
        last_heartbeat_time=NOW,
        last_transition_time=NOW,
    )


def test_a_node_without_worries_says_so_in_the_go_kubelets_words() -> None:
    assert [(c.type, c.status, c.reason, c.message) for c in conditions()] == [
        (
            "MemoryPressure",
            "False",
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
        ),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        (
            "PIDPressure",
            "False",
            "KubeletHasSufficientPID",
            "kubelet has sufficient PID available",
        ),
        ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ]


def test_a_node_under_pressure_says_which() -> None:
    found = conditions(pressures=Pressures(memory=True, disk=True, pid=True))
    assert [(c.status, c.reason, c.message) for c in found[:3]] == [
        ("True", "KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
        ("True", "KubeletHasDiskPressure", "kubelet has disk pressure"),
        ("True", "KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
    ]


def test_everything_that_keeps_a_node_from_being_ready_is_in_its_message() -> None:
    ready = conditions(errors=("container runtime is down", "network state unknown"))[-1]
    assert (ready.status, ready.reason) == ("False", "KubeletNotReady")
    assert ready.message == "[container runtime is down, network state unknown]"


@pytest.mark.parametrize(
    ("errors", "message"),
    [(("one",), "one"), (("one", "one"), "one"), (("one", "two", "one"), "[one, two]")],
)
def test_errors_are_joined_once_each(errors: tuple[str, ...], message: str) -> None:
    assert aggregated(errors) == message


def test_a_heartbeat_moves_no_transition() -> None:
    for condition in conditions(conditions(), now=LATER):
        assert condition.last_heartbeat_time == LATER
        assert condition.last_transition_time == NOW


def test_a_new_message_of_an_unready_node_is_no_transition() -> None:
    before = conditions(errors=("one",))
    ready = conditions(before, errors=("two",), now=LATER)[-1]
    assert (ready.message, ready.last_transition_time) == ("two", NOW)


def test_a_change_of_status_is_a_transition() -> None:
    before = conditions(errors=("one",))
    after = conditions(before, pressures=Pressures(disk=True), now=LATER)
    assert {c.type for c in after if c.last_transition_time == LATER} == {"DiskPressure", "Ready"}


def test_what_others_made_unknown_is_told_anew() -> None:
    before = [unknown(kind) for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")]
    after = conditions(before, now=LATER)
    assert [c.status for c in after] == ["False", "False", "False", "True"]
    assert all(c.last_transition_time == LATER for c in after)
    assert after[0].reason == "KubeletHasSufficientMemory"


def test_conditions_of_others_stay_where_they_are() -> None:
    assert [c.type for c in conditions((FOREIGN,))] == [
        "NetworkUnavailable",
        "MemoryPressure",
        "DiskPressure",
        "PIDPressure",
        "Ready",
    ]
    assert conditions((FOREIGN,))[0] is FOREIGN


SUFFICIENT = ("NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID")


@pytest.mark.parametrize(
    ("before", "after", "events"),
    [
        ((), conditions(errors=("not yet",)), SUFFICIENT),
        ((), conditions(), (*SUFFICIENT, "NodeReady")),
        (conditions(errors=("not yet",)), conditions(), ("NodeReady",)),
        (conditions(), conditions(errors=("down",)), ("NodeNotReady",)),
        (conditions(errors=("a",)), conditions(errors=("b",)), ()),
        (conditions(), conditions(), ()),
        (conditions(), conditions(pressures=Pressures(disk=True)), ("NodeHasDiskPressure",)),
        (
            conditions(pressures=Pressures(memory=True, pid=True)),
            conditions(pressures=Pressures(pid=True)),
            ("NodeHasSufficientMemory",),
        ),
        ((unknown("Ready"),), conditions(), (*SUFFICIENT, "NodeReady")),
    ],
)
def test_each_change_is_one_event(
    before: Sequence[NodeCondition], after: Sequence[NodeCondition], events: tuple[str, ...]
) -> None:
    assert condition_events(before, after) == events


def test_ready_is_what_the_condition_says() -> None:
    assert is_ready(conditions())
    assert not is_ready(conditions(errors=("down",)))
    assert not is_ready(())


def test_before_the_node_was_measured_its_pressures_are_what_they_were() -> None:
    """An agent that is exchanged tells nobody that a full disk is empty."""
    before = conditions(pressures=Pressures(disk=True))
    after = conditions(before, pressures=None, now=LATER)
    assert {c.type: c.status for c in after} == {c.type: c.status for c in before}
    assert condition_events(before, after) == ()
    new = {c.type: c.status for c in conditions(pressures=None)}
    assert new["DiskPressure"] == new["MemoryPressure"] == new["PIDPressure"] == "False"
