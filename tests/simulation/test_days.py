"""Days of a node: whatever goes wrong, the invariants hold, and every day can be repeated.

`SIMULATION_SEEDS=100` lives through more days than the default, `python -m tests.simulation SEED`
through one, with its story.
"""

import os
from typing import Any

import pytest

from state_machines.claim import CLAIM
from state_machines.container import CONTAINER
from state_machines.device_plugin import DEVICE_PLUGIN
from state_machines.image import IMAGE
from state_machines.machine import StateMachine
from state_machines.pleg import PLEG
from state_machines.pod import POD
from state_machines.pressure import PRESSURE
from state_machines.probe import PROBE
from state_machines.resize import RESIZE, RESIZE_REQUEST
from state_machines.volume import STAGE, VOLUME
from tests.simulation.day import simulate

DAYS = int(os.environ.get("SIMULATION_SEEDS", "6"))


@pytest.mark.parametrize("seed", range(1, DAYS + 1))
def test_nothing_that_must_not_be_happens_on_a_day(seed: int) -> None:
    report = simulate(seed, rounds=2)
    assert not report.violations, f"python -m tests.simulation {seed} --rounds 2 --story"


# On that of 20 agents and plugins end while calls are under way.
@pytest.mark.parametrize("seed", [7, 20])
def test_a_day_can_be_repeated(seed: int) -> None:
    first, second = (simulate(seed, rounds=1) for _ in range(2))
    assert first.story == second.story
    assert first.digest == second.digest


MACHINES: tuple[StateMachine[Any, Any, Any], ...] = (
    POD,
    CONTAINER,
    IMAGE,
    PLEG,
    PROBE,
    PRESSURE,
    RESIZE_REQUEST,
    RESIZE,
    STAGE,
    VOLUME,
    DEVICE_PLUGIN,
    CLAIM,
)
ELSEWHERE: dict[str, frozenset[str]] = {
    CONTAINER.name: frozenset(),
    # tests/unit/sync: test_pod_syncer.py, test_pod_task.py, test_preemptions.py;
    # tests/integration/test_pods_restarts.py; tests/e2e/test_shutdown.py
    POD.name: frozenset(
        {"Rejected", "DeadlineExceeded", "Preempted", "GraceShortened", "NodeShutdown"}
    ),
    # tests/unit/runtime/test_images.py
    IMAGE.name: frozenset(
        {"NameRefused", "PullCancelled", "PullFailed", "RetryDue", "BackOff", "Invalid", "Missing"}
    ),
    # tests/unit/pleg/test_generator.py
    PLEG.name: frozenset({"Unsupported", "Hinted", "Generic", "ChangeMissed"}),
    # tests/unit/probes/test_pod_probes.py; an error changes no state, so no journal has it
    PROBE.name: frozenset({"Errored", "Recalled", "PodEnds"}),
    PRESSURE.name: frozenset(),
    # tests/unit/sync/test_loop.py, tests/unit/runtime/test_resize_progress.py; there is room for
    # all pods of a day, and one that asks for what it has again is rare
    RESIZE_REQUEST.name: frozenset({"Postponed", "Deferred", "Withdrawn"}),
    # tests/unit/runtime/test_resize_progress.py, test_resizer.py; a call that fails in it is rare
    RESIZE.name: frozenset({"Failed", "Failing"}),
    # tests/unit/volumes/test_staged_volumes.py
    STAGE.name: frozenset({"Abandon"}),
    # tests/unit/volumes/test_csi_volume.py; the driver of a day does not ask for it
    VOLUME.name: frozenset({"Republish"}),
    # tests/unit/devices/test_manager.py; the plugin of a day is never away for that long
    DEVICE_PLUGIN.name: frozenset({"Expire", "Gone"}),
    CLAIM.name: frozenset(),
}
"""The states and events of each machine that a day need not reach, and where tests do."""
MOST_DAYS = 5
"""What happens on a day changes with the code; what is rare may need another one."""


def test_the_states_and_events_of_the_machines_are_reached_within_days() -> None:
    unreached = {
        machine.name: {*machine.events, *machine.states} - ELSEWHERE[machine.name]
        for machine in MACHINES
    }
    for seed in range(2, 2 + MOST_DAYS):
        for name, event, target in simulate(seed).steps:
            unreached[name] -= {event, target}
        if not any(unreached.values()):
            return
    pytest.fail(str(unreached))
