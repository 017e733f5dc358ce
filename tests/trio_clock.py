"""A time of day for tests on a mock clock."""

import trio


class TrioClock:
    """A time of day derived from trio's clock, so that a mock clock moves both together."""

    __slots__ = ("_epoch_ns",)

    def __init__(self, epoch_ns: int = 1_767_225_600_000_000_000) -> None:
        self._epoch_ns = epoch_ns

    def now_ns(self) -> int:
        """Nanoseconds since the Unix epoch; must be called inside a trio run."""
        return self._epoch_ns + round(trio.current_time() * 1e9)
