"""How long is waited after failures in a row, and how often they are logged."""

import random

import structlog
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from state_machines.backoff import BackoffPolicy
from trio_kubelet.tasks.retries import Retries

POLICY = BackoffPolicy(initial_seconds=1, cap_seconds=10)


def test_the_delay_doubles_up_to_its_cap_and_begins_anew_after_a_success() -> None:
    retries = Retries(POLICY)
    assert [retries.next_seconds() for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    retries.reset()
    assert retries.next_seconds() == 1


def test_failures_of_days_overflow_nothing() -> None:
    retries = Retries(POLICY)
    assert {retries.next_seconds() for _ in range(20_000)} == {1, 2, 4, 8, 10}


def test_jitter_stretches_a_delay_by_a_share_of_it() -> None:
    policy = BackoffPolicy(initial_seconds=10, cap_seconds=10, jitter=0.5)
    drawn = [Retries(policy, random.Random(seed).random).next_seconds() for seed in range(100)]
    assert 10 <= min(drawn) < 11
    assert 14 < max(drawn) <= 15


def test_what_the_other_side_asks_for_is_waited_for_at_least() -> None:
    retries = Retries(POLICY)
    assert retries.next_seconds(at_least=3) == 3
    assert retries.next_seconds(at_least=1) == 2
    assert retries.next_seconds(at_least=None) == 4


def test_a_policy_for_one_failure_counts_those_before_it() -> None:
    retries = Retries(POLICY)
    retries.next_seconds()
    assert retries.next_seconds(policy=BackoffPolicy(initial_seconds=50, cap_seconds=200)) == 100
    assert retries.next_seconds() == 4


async def test_a_failure_of_what_ran_for_long_is_a_first_one(autojump_clock: MockClock) -> None:
    retries = Retries(BackoffPolicy(initial_seconds=1, cap_seconds=10, forget_after_seconds=60))
    waited = []
    for ran_seconds in (0, 60, 61, 0):
        await trio.sleep(ran_seconds)
        failed_at = trio.current_time()
        await retries.wait()
        waited.append(trio.current_time() - failed_at)
    assert waited == [1, 2, 1, 2]


async def test_a_lasting_failure_is_logged_once_a_minute_and_a_new_one_at_once(
    autojump_clock: MockClock,
) -> None:
    retries = Retries(BackoffPolicy(initial_seconds=10, cap_seconds=10))
    log = structlog.get_logger()
    began = trio.current_time()
    with capture_logs() as logs:
        while trio.current_time() - began < 130:
            retries.warn(log, "no answer", at=trio.current_time() - began)
            await retries.wait()
        retries.reset()
        retries.warn(log, "no answer", at=trio.current_time() - began)
    assert [entry["at"] for entry in logs] == [0, 60, 120, 130]
