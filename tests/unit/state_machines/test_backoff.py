from state_machines.backoff import (
    NANOSECONDS,
    Backoff,
    BackoffPolicy,
    next_backoff,
    remaining_seconds,
)

POLICY = BackoffPolicy(initial_seconds=10, cap_seconds=300, forget_after_seconds=600)


def ns(seconds: float) -> int:
    return int(seconds * NANOSECONDS)


def test_a_container_that_exits_at_once_is_restarted_after_0_10_20_40_up_to_300_seconds() -> None:
    backoff: Backoff | None = None
    waited = []
    now = ns(1000)
    for _ in range(8):
        exited_at = now
        wait = remaining_seconds(backoff, POLICY, failed_at_ns=exited_at, now_ns=exited_at)
        waited.append(wait)
        now += ns(wait)
        backoff = next_backoff(backoff, POLICY, failed_at_ns=exited_at, now_ns=now)
    assert waited == [0, 10, 20, 40, 80, 160, 300, 300]


def test_the_wait_counts_from_the_failure() -> None:
    backoff = Backoff(delay_seconds=40, decided_at_ns=ns(0))
    assert remaining_seconds(backoff, POLICY, failed_at_ns=ns(5), now_ns=ns(15)) == 30
    assert remaining_seconds(backoff, POLICY, failed_at_ns=ns(5), now_ns=ns(45)) == 0


def test_ten_minutes_of_running_are_forgiven() -> None:
    backoff = Backoff(delay_seconds=300, decided_at_ns=ns(0))
    assert remaining_seconds(backoff, POLICY, failed_at_ns=ns(600), now_ns=ns(600)) == 300
    assert remaining_seconds(backoff, POLICY, failed_at_ns=ns(600.1), now_ns=ns(600.1)) == 0
    again = next_backoff(backoff, POLICY, failed_at_ns=ns(600.1), now_ns=ns(601))
    assert again == Backoff(delay_seconds=10, decided_at_ns=ns(601))


def test_waiting_for_an_hour_is_not_running_for_an_hour() -> None:
    backoff = Backoff(delay_seconds=40, decided_at_ns=ns(0))
    after_an_hour = next_backoff(backoff, POLICY, failed_at_ns=ns(1), now_ns=ns(3600))
    assert after_an_hour.delay_seconds == 80


def test_a_clock_that_was_set_back_does_not_make_the_wait_longer() -> None:
    backoff = Backoff(delay_seconds=20, decided_at_ns=ns(9000))
    assert remaining_seconds(backoff, POLICY, failed_at_ns=ns(9001), now_ns=ns(9000)) == 20


def test_a_failure_of_the_far_future_is_not_waited_for() -> None:
    backoff = Backoff(delay_seconds=20, decided_at_ns=ns(9000))
    assert remaining_seconds(backoff, POLICY, failed_at_ns=ns(9001), now_ns=ns(8980)) == 0
