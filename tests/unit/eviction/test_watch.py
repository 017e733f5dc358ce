"""The task that observes a node: at once, every ten seconds, when asked, and whatever fails."""

import random

import pytest
import structlog
import trio
from attrs import evolve
from trio.testing import MockClock

from tests.trio_clock import TrioClock
from tests.unit.eviction.readings import Machine
from trio_kubelet.config.eviction import Signal, ThresholdValue
from trio_kubelet.eviction.observations import Observations
from trio_kubelet.eviction.pressure import Pressures
from trio_kubelet.eviction.rhythm import seconds_to_next_look
from trio_kubelet.eviction.thresholds import Threshold
from trio_kubelet.eviction.watch import PressureWatch
from trio_kubelet.telemetry import Journal

FULL = Threshold(signal=Signal.PIDS, value=ThresholdValue.parse("50%"))


def watch(machine: Machine, journal: Journal | None = None) -> PressureWatch:
    return PressureWatch(
        thresholds=(FULL,),
        transition_seconds=30,
        read=machine.read,
        journal=journal or Journal(TrioClock()),
    )


async def test_the_node_is_observed_before_others_start_and_every_ten_seconds(
    autojump_clock: MockClock,
) -> None:
    machine, journal = Machine(), Journal(TrioClock())
    at = watch(machine, journal)
    heard: list[Pressures | None] = []
    at.on_change.add(lambda: heard.append(at.current()))
    assert at.current() is None
    async with trio.open_nursery() as nursery:
        await nursery.start(at.run)
        assert at.current() == Pressures()
        machine.tasks = 600
        await trio.sleep(11)
        assert at.current() == Pressures(pid=True)
        machine.tasks = 100
        await trio.sleep(20)
        assert at.current() == Pressures(pid=True)
        await trio.sleep(20)
        assert at.current() == Pressures()
        nursery.cancel_scope.cancel()
    assert heard == [Pressures(pid=True), Pressures()]
    steps = [(entry.key, entry.source, entry.event, entry.target) for entry in journal.entries()]
    assert steps == [
        ("PIDPressure", "Relieved", "Crossed", "Under"),
        ("PIDPressure", "Under", "Kept", "Eased"),
        ("PIDPressure", "Eased", "Kept", "Relieved"),
    ]


async def test_who_asks_for_an_observation_gets_one_at_once(autojump_clock: MockClock) -> None:
    machine = Machine()
    at = watch(machine)
    async with trio.open_nursery() as nursery:
        await nursery.start(at.run)
        await trio.sleep(3)
        at.look_now()
        before = trio.current_time()
        assessment = await at.newer_than(before - 1)
        assert assessment.observed.at == before == trio.current_time()
        nursery.cancel_scope.cancel()
    assert machine.read_at[1] - machine.read_at[0] == 3


async def test_other_thresholds_hold_at_once(autojump_clock: MockClock) -> None:
    at = watch(Machine(tasks=400))
    async with trio.open_nursery() as nursery:
        await nursery.start(at.run)
        assert at.current() == Pressures()
        await trio.sleep(3)
        fuller, before = evolve(FULL, value=ThresholdValue.parse("70%")), trio.current_time()
        at.use((fuller,), transition_seconds=5)
        await at.newer_than(before - 1)
        assert at.current() == Pressures(pid=True)
        assert trio.current_time() == before
        at.use((FULL,), transition_seconds=5)
        await at.newer_than(before + 5)
        assert at.current() == Pressures()
        nursery.cancel_scope.cancel()


async def test_who_waits_for_an_observation_gets_the_next_one(autojump_clock: MockClock) -> None:
    at = watch(Machine())
    async with trio.open_nursery() as nursery:
        await nursery.start(at.run)
        first = await at.newer_than(float("-inf"))
        second = await at.newer_than(first.observed.at)
        assert second.observed.at - first.observed.at == 10
        nursery.cancel_scope.cancel()


async def test_what_is_not_measured_is_logged_once_and_measured_again(
    autojump_clock: MockClock,
) -> None:
    machine = Machine(tasks=None)
    at = watch(machine)
    with structlog.testing.capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            await nursery.start(at.run)
            await trio.sleep(25)
            assert at.current() == Pressures()
            machine.tasks = 600
            await trio.sleep(10)
            assert at.current() == Pressures(pid=True)
            nursery.cancel_scope.cancel()
    said = [entry["signal"] for entry in logs if entry["event"] == "node measurement incomplete"]
    assert said == ["pid.available"]
    assert [e["signal"] for e in logs if e["event"] == "eviction threshold crossed"] == [
        "pid.available"
    ]


async def test_a_reading_that_hangs_holds_up_nothing_but_itself(
    autojump_clock: MockClock,
) -> None:
    machine = Machine(hangs=True, tasks=600)
    at = watch(machine)
    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            await nursery.start(at.run)
            assert at.current() is None
            machine.hangs = False
            await trio.sleep(11)
            assert at.current() == Pressures(pid=True)
            nursery.cancel_scope.cancel()


async def test_nothing_is_measured_but_when_it_is_due_or_asked_for(
    autojump_clock: MockClock,
) -> None:
    """An hour in which use goes up and down, and somebody asks now and then."""
    chance, machine = random.Random(1), Machine(tasks=100)
    at = watch(machine)
    due = [trio.current_time()]
    at.on_observed.add(lambda seen: due.append(when_due((FULL,), seen.observed)))
    async with trio.open_nursery() as nursery:
        await nursery.start(at.run)
        asked = [trio.current_time()]
        while trio.current_time() - asked[0] < 3600:
            await trio.sleep(chance.uniform(0.1, 60))
            machine.tasks = chance.randint(0, 1000)
            if chance.random() < 0.3:
                asked.append(trio.current_time())
                at.look_now()
        nursery.cancel_scope.cancel()
    assert len(machine.read_at) > 400
    for measured, planned in zip(machine.read_at[1:], due[1:], strict=False):
        assert measured in asked or measured == pytest.approx(planned)
    assert set(asked) <= set(machine.read_at)


def when_due(thresholds: tuple[Threshold, ...], observed: Observations) -> float:
    """The time of the next observation, by the rhythm alone."""
    return observed.at + seconds_to_next_look(thresholds, observed)
