"""The meter of the event loop: who holds it is found, and who waits is not blamed."""

import json
import time

import pytest
import structlog
import trio

from tests.turns import LIMIT_SECONDS, TurnTooLongError, making_test_data
from trio_kubelet.debugging.loop_meter import (
    KEPT_TURNS,
    LONG_SECONDS,
    LongTurn,
    LongTurnLog,
    LoopMeter,
    metered,
    turn_routes,
)
from trio_kubelet.server.messages import Request

HELD_SECONDS = 1.4 * LONG_SECONDS


def use_processor(seconds: float) -> None:
    """Compute for so long by the thread's own clock."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def hold(seconds: float) -> None:
    """Hold the loop in the task's second turn."""
    await trio.lowlevel.checkpoint()
    use_processor(seconds)
    await trio.lowlevel.checkpoint()


async def run_beside_others(meter: LoopMeter, seconds: float) -> None:
    with metered(meter):
        async with trio.open_nursery() as nursery:
            with structlog.contextvars.bound_contextvars(pod="default/hog"):
                nursery.start_soon(hold, seconds, name="hog")
            for _ in range(3):
                nursery.start_soon(trio.sleep, 0.01)


async def test_a_task_that_holds_the_loop_is_named_with_its_pod() -> None:
    told: list[LongTurn] = []
    meter = LoopMeter()
    meter.on_long_turn.add(told.append)
    await run_beside_others(meter, HELD_SECONDS)
    assert [(turn.task, turn.pod) for turn in meter.kept] == [("hog", "default/hog")]
    assert meter.kept[0].cpu_seconds >= HELD_SECONDS
    assert told == [*meter.kept]
    assert meter.count == 1


async def test_many_short_turns_are_none_that_is_long() -> None:
    meter = LoopMeter()
    with metered(meter):
        for _ in range(10):
            use_processor(LONG_SECONDS / 5)
            await trio.lowlevel.checkpoint()
    assert meter.count == 0


async def test_who_waits_in_its_turn_uses_no_processor() -> None:
    meter = LoopMeter()
    with metered(meter):
        await trio.lowlevel.checkpoint()
        time.sleep(HELD_SECONDS)  # noqa: ASYNC251 - as a thread that gets no processor
        await trio.lowlevel.checkpoint()
    assert meter.count == 0


async def test_only_so_many_turns_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trio_kubelet.debugging.loop_meter.LONG_SECONDS", 0.0)
    monkeypatch.setattr("trio_kubelet.debugging.loop_meter.PRECISION_SECONDS", 0.0)
    meter = LoopMeter()
    with metered(meter):
        for _ in range(KEPT_TURNS + 10):
            use_processor(0.0001)
            await trio.lowlevel.checkpoint()
    assert meter.count > KEPT_TURNS == len(meter.kept)


def test_a_second_has_one_line_in_the_log() -> None:
    turns = LongTurnLog()
    with structlog.testing.capture_logs() as lines:
        for time_ns, pod in ((0, "ns/a"), (10**8, "ns/b"), (10**9 - 1, ""), (10**9, "")):
            turns.take(LongTurn(time_ns=time_ns, task="t", pod=pod, cpu_seconds=0.06))
    assert [(line.get("pod"), line["unlogged"]) for line in lines] == [("ns/a", 0), (None, 2)]


async def test_long_turns_are_shown() -> None:
    meter = LoopMeter(lambda: 17)
    await run_beside_others(meter, HELD_SECONDS)
    (route,) = turn_routes(meter)
    response = await route.handler(Request(method="GET", path="/debug/turns"))
    assert response is not None
    assert isinstance(response.body, bytes)
    shown = json.loads(response.body)
    assert shown["count"] == 1
    assert shown["turns"][0].items() >= {"task": "hog", "pod": "default/hog", "time_ns": 17}.items()


async def test_a_listener_that_raises_ends_nothing_but_the_meter() -> None:
    meter = LoopMeter()

    def fail(_turn: LongTurn) -> None:
        raise RuntimeError("a bug of who is told")

    meter.on_long_turn.add(fail)
    await run_beside_others(meter, HELD_SECONDS)
    assert meter.count == 1


def test_a_test_whose_task_holds_the_loop_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy host may be many times slower at one moment, which would excuse the turn.
    monkeypatch.setattr("tests.turns._slowness", lambda: 1.0)
    with pytest.raises(TurnTooLongError, match=r"hold .* held the event loop for 0"):
        trio.run(hold, 6 * LIMIT_SECONDS)


def test_making_what_only_a_test_needs_does_not_fail_it() -> None:
    async def make() -> None:
        await trio.lowlevel.checkpoint()
        with making_test_data():
            use_processor(6 * LIMIT_SECONDS)

    trio.run(make)
