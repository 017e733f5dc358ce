"""Waiting longer after each failure, up to a cap.

`delay_seconds` is for requests that are repeated until they succeed (`tasks/retries.py`).
For containers and images a back-off is a value: how long to wait, and when that was decided. It
is forgotten when a failure comes so late that the attempt before it must have gone well. There
the first failure costs nothing: the second attempt is made at once (0, 10, 20, 40 s, ...).

Times are nanoseconds since the epoch, because containers' times are. That clock may be set back:
a failure that lies in the future by more than its delay is not waited for.
"""

from dataclasses import dataclass

NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffPolicy:
    """The growth of a delay, in seconds.

    `forget_after_seconds` is how long after the last decision a failure must come to count as
    the first one again. A delay may be stretched by up to the share `jitter` of it, so that what
    failed together does not try again together.
    """

    initial_seconds: float = 10.0
    cap_seconds: float = 300.0
    forget_after_seconds: float = 600.0
    growth: float = 2.0
    jitter: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The wait after a failure, as decided at `decided_at_ns`."""

    delay_seconds: float
    decided_at_ns: int


def delay_seconds(policy: BackoffPolicy, failures: int) -> float:
    """Return the delay after so many failures in a row, at least one, without jitter."""
    delay = policy.initial_seconds
    for _ in range(failures - 1):
        if delay >= policy.cap_seconds:
            break
        delay *= policy.growth
    return min(delay, policy.cap_seconds)


def next_backoff(
    previous: Backoff | None, policy: BackoffPolicy, *, failed_at_ns: int, now_ns: int
) -> Backoff:
    """Return the back-off to keep while the next attempt is made, at `now_ns`.

    `failed_at_ns` is when the last attempt failed: for a container when it exited, for an image
    now. `previous` is None before the first failure.
    """
    if previous is None or is_forgotten(previous, policy, failed_at_ns=failed_at_ns):
        delay = policy.initial_seconds
    else:
        delay = previous.delay_seconds * policy.growth
    return Backoff(delay_seconds=min(delay, policy.cap_seconds), decided_at_ns=now_ns)


def remaining_seconds(
    backoff: Backoff | None, policy: BackoffPolicy, *, failed_at_ns: int, now_ns: int
) -> float:
    """Return how long the next attempt must still wait: 0.0 if it may be made now."""
    if backoff is None or is_forgotten(backoff, policy, failed_at_ns=failed_at_ns):
        return 0.0
    elapsed_seconds = (now_ns - failed_at_ns) / NANOSECONDS
    if elapsed_seconds < -backoff.delay_seconds:
        # By this clock the wait would not begin before the failure's time comes round again.
        return 0.0
    return backoff.delay_seconds - min(max(0.0, elapsed_seconds), backoff.delay_seconds)


def is_forgotten(backoff: Backoff, policy: BackoffPolicy, *, failed_at_ns: int) -> bool:
    """True if the attempt went well for so long that its failure counts as a first one."""
    return failed_at_ns - backoff.decided_at_ns > policy.forget_after_seconds * NANOSECONDS
