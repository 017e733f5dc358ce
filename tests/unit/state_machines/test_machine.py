from dataclasses import dataclass, replace
from enum import StrEnum

import pytest

from state_machines.machine import IllegalTransition, InvalidMachineError, Row, Start, StateMachine


class Door(StrEnum):
    OPEN = "Open"
    CLOSED = "Closed"
    WALLED_UP = "WalledUp"


class Act(StrEnum):
    PUSH = "Push"
    PULL = "Pull"
    BRICK = "Brick"


@dataclass(frozen=True)
class Strength:
    bricks: int


def bricks_suffice(evidence: Strength) -> bool:
    return evidence.bricks >= 100


def bricks_nearly_suffice(evidence: Strength) -> bool:
    return evidence.bricks >= 90


PUSH = Row[Door, Act, Strength](Door.OPEN, Act.PUSH, Door.CLOSED, "doors shut")
PULL = Row[Door, Act, Strength](Door.CLOSED, Act.PULL, Door.OPEN, "doors open")
PUSH_SHUT = Row[Door, Act, Strength](Door.CLOSED, Act.PUSH, Door.CLOSED, "it is shut already")
BRICK = Row[Door, Act, Strength](
    Door.CLOSED, Act.BRICK, Door.WALLED_UP, "no more doors", bricks_suffice
)

DOOR: StateMachine[Door, Act, Strength] = StateMachine(
    name="door",
    starts=(Start(Door.OPEN, "doors are delivered open"),),
    terminal=frozenset({Door.WALLED_UP}),
    rows=(PUSH, PULL, PUSH_SHUT, BRICK),
)


def test_step_returns_the_target_of_the_row() -> None:
    assert DOOR.step(Door.OPEN, Act.PUSH) is Door.CLOSED
    assert DOOR.step(Door.CLOSED, Act.PUSH) is Door.CLOSED


def test_row_tells_why() -> None:
    assert DOOR.row(Door.CLOSED, Act.PUSH).why == "it is shut already"


def test_an_event_without_a_row_names_machine_state_event_and_what_would_be_legal() -> None:
    with pytest.raises(IllegalTransition) as caught:
        DOOR.step(Door.OPEN, Act.PULL)
    assert str(caught.value) == "door: Pull is illegal in Open; legal there: Push"
    assert caught.value.state is Door.OPEN
    assert caught.value.event is Act.PULL
    assert caught.value.legal == (Act.PUSH,)


def test_a_terminal_state_says_that_nothing_is_legal() -> None:
    with pytest.raises(IllegalTransition, match="nothing: the state is terminal"):
        DOOR.step(Door.WALLED_UP, Act.PULL)


def test_a_guard_that_refuses_shows_its_name_and_the_evidence() -> None:
    with pytest.raises(IllegalTransition) as caught:
        DOOR.step(Door.CLOSED, Act.BRICK, Strength(3))
    assert caught.value.refused_by == ("bricks suffice",)
    assert "illegal in Closed unless bricks suffice (given: Strength(bricks=3))" in str(
        caught.value
    )


def test_a_guard_that_holds_opens_the_way() -> None:
    assert DOOR.step(Door.CLOSED, Act.BRICK, Strength(100)) is Door.WALLED_UP


def test_no_guard_holds_without_evidence() -> None:
    assert not DOOR.allows(Door.CLOSED, Act.BRICK)
    assert not DOOR.allows(Door.CLOSED, Act.BRICK, Strength(99))
    assert DOOR.allows(Door.CLOSED, Act.BRICK, Strength(100))


def test_an_unguarded_last_row_means_otherwise() -> None:
    otherwise = Row[Door, Act, Strength](Door.CLOSED, Act.BRICK, Door.CLOSED, "bricks fell down")
    machine = replace(DOOR, rows=(*DOOR.rows, otherwise))
    assert machine.step(Door.CLOSED, Act.BRICK, Strength(3)) is Door.CLOSED
    assert machine.step(Door.CLOSED, Act.BRICK) is Door.CLOSED
    assert machine.step(Door.CLOSED, Act.BRICK, Strength(100)) is Door.WALLED_UP


def test_guarded_rows_are_tried_in_order() -> None:
    nearly = replace(BRICK, target=Door.OPEN, guard=bricks_nearly_suffice)
    machine = replace(DOOR, rows=(*DOOR.rows, nearly))
    assert machine.step(Door.CLOSED, Act.BRICK, Strength(100)) is Door.WALLED_UP
    assert machine.step(Door.CLOSED, Act.BRICK, Strength(95)) is Door.OPEN


def test_states_and_events_are_those_of_the_enumerations() -> None:
    assert DOOR.states == tuple(Door)
    assert DOOR.events == tuple(Act)
    assert DOOR.initial == (Door.OPEN,)
    assert DOOR.legal_events(Door.CLOSED) == (Act.PULL, Act.PUSH, Act.BRICK)
    assert DOOR.legal_events(Door.WALLED_UP) == ()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"name": ""}, "needs a name"),
        ({"starts": ()}, "needs a name, a start"),
        ({"rows": ()}, "needs a name, a start and a row"),
        ({"starts": (Start(Door.OPEN, " "),)}, "start Open has no reason"),
        ({"starts": DOOR.starts * 2}, "a start twice"),
        ({"rows": (replace(PUSH, why=""), PULL, BRICK)}, "row Open, Push has no reason"),
        ({"rows": (PUSH, *DOOR.rows)}, "rows Open, Push compete"),
        ({"rows": (*DOOR.rows, BRICK)}, "rows Closed, Brick compete: the same guard twice"),
        ({"rows": (replace(BRICK, guard=None), *DOOR.rows)}, "without a guard must be the last"),
        ({"rows": (PUSH, PUSH_SHUT, BRICK)}, "event Pull has no row"),
        ({"rows": (PUSH, PULL, PUSH_SHUT)}, "state WalledUp cannot be reached"),
        ({"rows": (PUSH, PULL)}, "state Open never comes to an end"),
        ({"rows": (PUSH, PUSH_SHUT)}, "state Closed cannot be left"),
        ({"terminal": frozenset()}, "state WalledUp cannot be left"),
        ({"terminal": frozenset({Door.CLOSED})}, "terminal state Closed has rows"),
    ],
)
def test_a_table_with_a_gap_cannot_be_built(change: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidMachineError, match=problem):
        replace(DOOR, **change)  # type: ignore[arg-type]


def test_every_problem_of_a_table_is_reported_at_once() -> None:
    with pytest.raises(InvalidMachineError) as caught:
        replace(DOOR, rows=(replace(PUSH, why=""), PUSH_SHUT))
    assert str(caught.value).count(";") >= 3
