"""The shares of the node that the probes of pods and of namespaces have."""

from collections import Counter

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from trio_kubelet.pod_clients.share import (
    NAMESPACE_SHARE,
    RUN_SECONDS,
    SAVED_SECONDS,
    SHARE,
    ProbeShare,
    ProbeShares,
)


async def test_who_has_used_nothing_does_not_wait(mock_clock: MockClock) -> None:
    share = ProbeShare("uid")
    await share.wait()
    share.use(SAVED_SECONDS - 2 * RUN_SECONDS)
    await share.wait()


async def test_who_has_used_more_waits_until_its_share_has_come_to_it(
    autojump_clock: MockClock,
) -> None:
    share, began = ProbeShare("uid"), trio.current_time()
    with capture_logs() as lines:
        await share.wait()
        share.use(SAVED_SECONDS - RUN_SECONDS + 1.0)
        await share.wait()
    assert trio.current_time() - began == pytest.approx(1.0 / SHARE)
    assert [line["log_level"] for line in lines] == ["warning"]
    await trio.sleep(3600)
    share.use(SAVED_SECONDS - 2 * RUN_SECONDS)
    began = trio.current_time()
    await share.wait()
    assert trio.current_time() == began


async def test_no_more_is_saved_than_that(autojump_clock: MockClock) -> None:
    share = ProbeShare("uid")
    await trio.sleep(3600)
    share.use(SAVED_SECONDS + 0.1)
    began = trio.current_time()
    await share.wait()
    assert trio.current_time() > began


MANY_SECONDS = 400


async def keep_probing(share: ProbeShare, seconds: float, runs: list[str]) -> None:
    """Run probes of a pod without a pause, each of which makes work."""
    while True:
        await share.wait()
        runs.append(share.uid)
        share.use(seconds)
        await trio.sleep(0.001)


async def test_a_hundred_pods_of_a_namespace_use_no_more_than_its_share(
    autojump_clock: MockClock,
) -> None:
    shares, runs = ProbeShares(), list[str]()
    with trio.move_on_after(MANY_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shares.give_turns)
            for number in range(100):
                share = shares.of(f"uid-{number}", "hostile")
                nursery.start_soon(keep_probing, share, 1.0, runs)
    assert len(runs) == pytest.approx(MANY_SECONDS * NAMESPACE_SHARE, rel=0.15)
    each = Counter(runs).values()
    assert len(each) == 100
    assert max(each) - min(each) <= 2, "the pods take turns"


async def test_pods_of_other_namespaces_do_not_wait_for_one_that_has_used_up_its_share(
    autojump_clock: MockClock,
) -> None:
    shares = ProbeShares()
    hostile, good = shares.of("a", "hostile"), shares.of("b", "good")
    hostile.use(MANY_SECONDS)
    began = trio.current_time()
    await good.wait()
    assert trio.current_time() == began


async def test_a_pod_with_few_probes_has_its_turn_before_the_many_of_another(
    autojump_clock: MockClock,
) -> None:
    shares, runs = ProbeShares(), list[str]()
    many, few = shares.of("many", "n"), shares.of("few", "n")
    with trio.move_on_after(10 * MANY_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shares.give_turns)
            for number in range(10):
                nursery.start_soon(keep_probing, shares.of(f"uid-{number}", "n"), 1.0, runs)
            for _ in range(50):
                nursery.start_soon(keep_probing, many, 0.1, runs)
            nursery.start_soon(keep_probing, few, 0.1, runs)
    count = Counter(runs)
    # What both had saved they used at once.
    assert count["many"] > 100
    assert count["few"] >= count["many"] - 2 * SAVED_SECONDS / 0.1 - 5


async def test_pieces_of_runs_under_way_do_not_wait_for_runs_that_are_to_begin(
    autojump_clock: MockClock,
) -> None:
    share, began = ProbeShare("uid"), trio.current_time()
    share.use(2 * SAVED_SECONDS)
    await share.wait_for_piece()
    assert trio.current_time() == began
    await share.wait()
    assert trio.current_time() - began == pytest.approx(SAVED_SECONDS / SHARE)


async def test_pieces_wait_where_more_is_used_than_is_saved_and_as_much_again(
    autojump_clock: MockClock,
) -> None:
    share, began = ProbeShare("uid"), trio.current_time()
    share.use(2 * SAVED_SECONDS + 0.1)
    with trio.move_on_after(1.0) as deadline:
        await share.wait_for_piece()
    assert deadline.cancelled_caught, "the time of a run goes on"
    await share.wait_for_piece()
    assert trio.current_time() - began == pytest.approx(0.1 / SHARE)


async def test_pieces_that_come_together_wait_when_those_before_them_have_cost_too_much(
    autojump_clock: MockClock,
) -> None:
    shares, began, taken = ProbeShares(), trio.current_time(), list[float]()
    share = shares.of("uid", "n")

    async def take() -> None:
        await share.wait_for_piece()
        share.use(0.1)
        taken.append(trio.current_time() - began)

    async with trio.open_nursery() as giving:
        giving.start_soon(shares.give_turns)
        async with trio.open_nursery() as taking:
            for _ in range(20):
                taking.start_soon(take)
        giving.cancel_scope.cancel()
    at_once = 2 * SAVED_SECONDS / 0.1
    assert at_once <= taken.count(0.0) <= at_once + 1
    assert taken[-1] >= (20 - at_once - 2) * 0.1 / SHARE


def test_a_pod_has_one_share_while_somebody_holds_it() -> None:
    shares = ProbeShares()
    of_probes, of_hook = shares.of("uid", "n"), shares.of("uid", "n")
    assert of_hook is of_probes
    assert shares.of("other", "n") is not of_probes
