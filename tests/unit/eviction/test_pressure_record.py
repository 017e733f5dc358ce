"""What the next agent knows of the pressures that the last one has seen."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog
import trio
from attrs import evolve
from trio.testing import MockClock

from state_machines.pressure import PressureState
from tests.trio_clock import TrioClock
from tests.unit.eviction.readings import Machine
from trio_kubelet.config.eviction import Signal, ThresholdValue
from trio_kubelet.eviction.observations import Observations, Observed
from trio_kubelet.eviction.pressure import Assessment, Pressures, assess
from trio_kubelet.eviction.pressure_record import (
    FILE,
    MOST_UNSEEN_SECONDS,
    SAVE_SECONDS,
    Moment,
    PressureRecord,
    is_due,
    parsed,
    printed,
)
from trio_kubelet.eviction.thresholds import DiskLayout, Threshold
from trio_kubelet.eviction.watch import PressureWatch
from trio_kubelet.k8s import NodeConditionType
from trio_kubelet.telemetry import Journal

TRANSITION = 30.0
NOW = Moment(seconds=1000.0, epoch_ns=1_767_225_600_000_000_000)
HARD = Threshold(signal=Signal.PIDS, value=ThresholdValue.parse("50%"))
SOFT = Threshold(
    signal=Signal.NODE_DISK,
    value=ThresholdValue.parse("50%"),
    minimum_reclaim=ThresholdValue.parse("10"),
    is_hard=False,
    grace_seconds=60.0,
)
BOTH = (HARD, SOFT)
LOW, ENOUGH = Observed(available=1, capacity=100), Observed(available=80, capacity=100)


def seen(
    at: float, pids: Observed = ENOUGH, disk: Observed = ENOUGH, before: Assessment | None = None
) -> Assessment:
    """The assessment of one more observation."""
    signals = {Signal.PIDS: pids, Signal.NODE_DISK: disk}
    observed = Observations(at=at, signals=signals, layout=DiskLayout.SPLIT)
    return assess(before or Assessment(), BOTH, observed, TRANSITION)


def read(
    text: bytes, *, at: float = 1000.0, thresholds: tuple[Threshold, ...] = BOTH, boot: str = "b"
) -> Assessment | None:
    """What an agent makes of a record that begins `at` by the clock of the last one."""
    passed = round((at - NOW.seconds) * 1e9)
    return parsed(text, thresholds, boot, Moment(seconds=0.0, epoch_ns=NOW.epoch_ns + passed))


def record(assessment: Assessment) -> bytes:
    return printed(assessment, "b", NOW)


def test_the_next_agent_knows_since_when_and_when_last_thresholds_were_crossed() -> None:
    earlier = seen(990, disk=LOW, before=seen(985, pids=LOW, disk=LOW))
    resumed = read(record(earlier), at=1000)
    assert resumed is not None
    assert resumed.crossed_since == {SOFT: -15}
    assert resumed.last_crossed_at == {HARD: -15, SOFT: -10}
    assert resumed.observed.at == -10
    assert resumed.observed.layout is DiskLayout.SPLIT
    assert resumed.states == {
        NodeConditionType.MEMORY_PRESSURE: PressureState.RELIEVED,
        NodeConditionType.DISK_PRESSURE: PressureState.UNDER,
        NodeConditionType.PID_PRESSURE: PressureState.EASED,
    }


def test_the_grace_of_a_soft_threshold_goes_on() -> None:
    began = seen(930, disk=LOW)
    assert began.met == ()
    resumed = read(record(began), at=990)
    assert resumed is not None
    assert resumed.met == ()
    assert seen(0, disk=LOW, before=resumed).met == (SOFT,)
    acted_on = read(record(seen(991, disk=LOW, before=began)), at=995)
    assert acted_on is not None
    assert acted_on.met == (SOFT,)
    within_reclaim = evolve(LOW, available=55)
    assert SOFT in seen(0, disk=within_reclaim, before=acted_on).crossed_since


def test_a_condition_lasts_for_the_transition_period_whichever_agent_looks() -> None:
    eased = seen(970, before=seen(960, pids=LOW))
    early, late = read(record(eased), at=989), read(record(eased), at=990)
    assert early is not None
    assert late is not None
    assert seen(0, before=early).pressures == Pressures(pid=True)
    assert seen(0, before=late).pressures == Pressures()


def test_after_long_without_an_agent_the_grace_begins_anew() -> None:
    began = record(seen(1000, disk=LOW))
    soon, late = (
        read(began, at=1000 + seconds) for seconds in (MOST_UNSEEN_SECONDS, MOST_UNSEEN_SECONDS + 1)
    )
    assert soon is not None
    assert late is not None
    assert (len(soon.crossed_since), late.crossed_since) == (1, {})
    assert late.states[NodeConditionType.DISK_PRESSURE] is PressureState.EASED


def test_thresholds_that_are_configured_no_more_count_for_nothing() -> None:
    earlier = record(seen(990, pids=LOW, disk=LOW))
    other_value = evolve(HARD, value=ThresholdValue.parse("10%"))
    other_kind = evolve(SOFT, is_hard=True, grace_seconds=0.0)
    resumed = read(earlier, thresholds=(other_value, other_kind))
    assert resumed is not None
    assert (resumed.crossed_since, resumed.pressures) == ({}, Pressures())
    longer_grace = evolve(SOFT, grace_seconds=90.0)
    resumed = read(earlier, thresholds=(longer_grace,))
    assert resumed is not None
    assert resumed.crossed_since == {longer_grace: -10}


def test_a_record_of_another_boot_counts_for_nothing() -> None:
    assert read(record(seen(990, pids=LOW)), boot="another") is None


def test_a_record_has_no_thresholds_of_conditions_that_are_relieved() -> None:
    relieved = seen(990, before=seen(950, pids=LOW, disk=LOW))
    assert orjson.loads(record(relieved))["thresholds"] == []


@pytest.mark.parametrize(
    ("newer", "due"),
    [
        (lambda before: seen(1, pids=LOW, before=before), False),
        (lambda before: seen(9.9, pids=LOW, before=before), False),
        (lambda before: seen(10, pids=LOW, before=before), True),
        (lambda before: seen(1, before=before), True),
        (lambda before: seen(1, pids=LOW, disk=LOW, before=before), True),
        (lambda before: seen(1, pids=LOW, disk=LOW, before=seen(0.5, before=before)), True),
    ],
)
def test_a_record_is_replaced_when_it_says_something_else_or_is_old(
    newer: Callable[[Assessment], Assessment], due: bool
) -> None:
    before = seen(0, pids=LOW)
    assert is_due(before, newer(before)) is due


def test_a_record_is_replaced_when_a_threshold_is_acted_on_from_now_on() -> None:
    before = seen(0, pids=LOW, disk=LOW)
    later = seen(59, pids=LOW, disk=LOW, before=before)
    assert is_due(later, seen(60, pids=LOW, disk=LOW, before=later))


def test_no_record_is_replaced_while_nothing_is_crossed() -> None:
    assert not is_due(seen(0), seen(100))
    assert not is_due(Assessment(), seen(100))


def changed(**fields: Any) -> bytes:
    """A record of one threshold, with other fields."""
    content = orjson.loads(record(seen(990, pids=LOW)))
    entry = content["thresholds"][0]
    for name, value in fields.items():
        (content if name in content else entry)[name] = value
    return orjson.dumps(content)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{",
        b'"text"',
        b"{}",
        changed(thresholds=7),
        changed(thresholds=["text"]),
        changed(thresholds=[{}]),
        changed(diskLayout="Round"),
        changed(diskLayout=[]),
        changed(observedAtNs="now"),
        changed(observedAtNs=True),
        changed(observedAtNs=-1),
        changed(observedAtNs=1.5),
        changed(observedAtNs=10**18),
        changed(observedAtNs=NOW.epoch_ns + 2_000_000_000),
        changed(signal=[]),
        changed(kind={}),
        changed(value=5),
        changed(lastCrossedAtNs=NOW.epoch_ns),
        changed(crossedSinceNs=NOW.epoch_ns),
        changed(crossedSinceNs="then"),
    ],
)
def test_what_no_agent_has_written_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read(text)


@asynccontextmanager
async def agent(
    root: Path, machine: Machine, boot: str = "b", clock: TrioClock | None = None
) -> AsyncIterator[PressureWatch]:
    """The watch of one agent, which has observed the machine once; killed at the end."""
    watch = PressureWatch(
        thresholds=(HARD,),
        transition_seconds=TRANSITION,
        read=machine.read,
        journal=Journal(TrioClock()),
    )
    kept = PressureRecord(root, (HARD,), boot, clock or TrioClock())
    watch.on_observed.add(kept.observed)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kept.run)
        earlier = await kept.load()
        if earlier is not None:
            watch.resume(earlier)
        await nursery.start(watch.run)
        yield watch
        nursery.cancel_scope.cancel()


async def written(root: Path) -> None:
    """Wait until there is a record."""
    while not (root / FILE).exists():  # noqa: ASYNC110 - a file
        await trio.sleep(0.01)


async def test_a_pressure_outlives_its_agent(autojump_clock: MockClock, tmp_path: Path) -> None:
    machine = Machine(tasks=600)
    async with agent(tmp_path, machine):
        await written(tmp_path)
    machine.tasks = 100
    async with agent(tmp_path, machine) as watch:
        assert watch.current() == Pressures(pid=True)
    await trio.sleep(TRANSITION)
    async with agent(tmp_path, machine) as watch:
        assert watch.current() == Pressures()


async def test_a_pressure_holds_before_the_next_agent_has_measured_anything(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    machine = Machine(tasks=600)
    async with agent(tmp_path, machine):
        await written(tmp_path)
    machine.hangs = True
    async with agent(tmp_path, machine) as watch:
        assert watch.current() == Pressures(pid=True)


async def test_no_record_is_written_where_nothing_is_crossed(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with agent(tmp_path, Machine()):
        await trio.sleep(100)
    assert not (tmp_path / FILE).exists()


async def test_a_reboot_ends_what_an_agent_knew(autojump_clock: MockClock, tmp_path: Path) -> None:
    machine = Machine(tasks=600)
    async with agent(tmp_path, machine):
        await written(tmp_path)
    machine.tasks = 100
    with structlog.testing.capture_logs() as logs:
        async with agent(tmp_path, machine, boot="next") as watch:
            assert watch.current() == Pressures()
            await trio.sleep(1)
    assert [entry for entry in logs if entry["log_level"] == "warning"] == []
    assert orjson.loads((tmp_path / FILE).read_bytes())["bootID"] == "next"


@pytest.mark.parametrize("kind", ["garbage", "large", "folder"])
async def test_a_record_that_is_none_is_warned_of_and_the_agent_begins_anew(
    kind: str, autojump_clock: MockClock, tmp_path: Path
) -> None:
    path = tmp_path / FILE
    path.mkdir() if kind == "folder" else path.write_bytes(
        b"x" * (70_000 if kind == "large" else 9)
    )
    with structlog.testing.capture_logs() as logs:
        async with agent(tmp_path, Machine()) as watch:
            assert watch.current() == Pressures()
            await trio.sleep(1)
    words = [entry["event"] for entry in logs]
    assert words[0] == "pressure record is unreadable, starting without it"
    if kind != "folder":
        assert orjson.loads(path.read_bytes())["thresholds"] == []


async def test_a_clock_that_was_set_back_is_warned_of_and_the_agent_begins_anew(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    machine = Machine(tasks=600)
    async with agent(tmp_path, machine):
        await written(tmp_path)
    machine.tasks = 100
    with structlog.testing.capture_logs() as logs:
        async with agent(tmp_path, machine, clock=TrioClock(epoch_ns=1_700_000_000 * 10**9)) as w:
            assert w.current() == Pressures()
    (warning,) = [entry for entry in logs if entry["log_level"] == "warning"]
    assert "clock was set back" in warning["error"]


async def test_a_record_that_cannot_be_written_is_tried_again(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    root.write_text("no folder")
    with structlog.testing.capture_logs() as logs:
        async with agent(root, Machine(tasks=600)):
            await trio.sleep(5)
            root.unlink()
            await trio.sleep(SAVE_SECONDS)
            await written(root)
    assert [e["event"] for e in logs].count("pressure record write failed") == 1
