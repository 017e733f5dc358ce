"""The rate of a client's requests: a token bucket, as kubeAPIQPS and kubeAPIBurst mean it.

A request takes a token and waits until that token has come into being, so that requests leave in
the order in which they asked. One that is cancelled while it waits gives its token back.
"""

import trio
from attrs import define, frozen

DEFAULT_QPS = 5.0
DEFAULT_BURST = 10


@frozen
class RateLimit:
    """`qps` requests a second on average, `burst` at once; a negative `qps` is no limit.

    Zero means 5 a second and 10 at once, as it does in the Go client.
    """

    qps: float = -1.0
    burst: int = 0


UNLIMITED = RateLimit()


@define
class TokenBucket:
    """The arithmetic of a rate limit; times are seconds of any one clock."""

    _rate: float
    _size: float
    _tokens: float
    _at: float

    @classmethod
    def of(cls, limit: RateLimit, now: float) -> "TokenBucket":
        """Make the full bucket of a limit that is not unlimited."""
        size = float(limit.burst or DEFAULT_BURST)
        return cls(limit.qps or DEFAULT_QPS, size, size, now)

    def take(self, now: float) -> float:
        """Take a token; returns the seconds until it exists."""
        self._tokens = min(self._size, self._tokens + (now - self._at) * self._rate) - 1
        self._at = now
        return max(0.0, -self._tokens / self._rate)

    def give_back(self) -> None:
        """Return a token that was not used."""
        self._tokens += 1


class RateLimiter:
    """Holds requests up so that they keep to a limit."""

    __slots__ = ("_bucket", "_limit")

    def __init__(self, limit: RateLimit = UNLIMITED) -> None:
        self._limit = limit
        self._bucket: TokenBucket | None = None

    async def wait(self) -> None:
        """Wait for one's turn; cancelled, it is as if one had never asked."""
        if self._limit.qps < 0:
            return
        now = trio.current_time()
        if self._bucket is None:
            self._bucket = TokenBucket.of(self._limit, now)
        seconds = self._bucket.take(now)
        if not seconds:
            return
        try:
            await trio.sleep(seconds)
        except trio.Cancelled:
            self._bucket.give_back()
            raise
