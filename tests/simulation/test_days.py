"""Days of a node: whatever goes wrong, the invariants hold, and every day can be repeated.

`SIMULATION_SEEDS=100` lives through more days than the default, `python -m tests.simulation SEED`
through one, with its story.
"""

import os

import pytest

from state_machines.container import CONTAINER, ContainerEvent, ContainerStage
from tests.simulation.day import simulate

DAYS = int(os.environ.get("SIMULATION_SEEDS", "6"))


@pytest.mark.parametrize("seed", range(1, DAYS + 1))
def test_nothing_that_must_not_be_happens_on_a_day(seed: int) -> None:
    report = simulate(seed, rounds=2)
    assert not report.violations, f"python -m tests.simulation {seed} --rounds 2 --story"


def test_a_day_can_be_repeated() -> None:
    first, second = (simulate(7, rounds=1) for _ in range(2))
    assert first.story == second.story
    assert first.digest == second.digest


def test_every_state_and_event_of_a_container_is_reached_on_a_day() -> None:
    steps = simulate(1).steps
    events = {event for machine, event, _ in steps if machine == CONTAINER.name}
    states = {target for machine, _, target in steps if machine == CONTAINER.name}
    assert events == set(ContainerEvent)
    assert states == set(ContainerStage)
