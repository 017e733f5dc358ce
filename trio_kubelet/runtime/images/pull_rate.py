"""The pace of pulls: registryPullQPS and registryBurst, shared by namespaces."""

import math


class PullRate:
    """A bucket of tokens: `burst` pulls at once, then `per_second`. Zero means no limit.

    Who finds it empty is refused, as by the Go kubelet, but not because of others alone: the token
    of a namespace that has had none for as long as the bucket takes to fill is taken in advance,
    as long as no more than `burst` are. Where all pulls are of one namespace, that never happens.
    """

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second = per_second
        self._burst = burst
        self._tokens = float(burst)
        self._filled_at = -math.inf
        self._taken_at: dict[str, float] = {}
        """The times at which namespaces had a token, as far back as the bucket takes to fill."""

    def use(self, per_second: float, burst: int) -> None:
        """Hold another pace; what the bucket has beyond its new size is gone."""
        self._per_second, self._burst = per_second, burst
        self._tokens = min(self._tokens, float(burst))

    def take(self, now: float, namespace: str) -> bool:
        """Take a token if there is one for a namespace."""
        if self._per_second <= 0:
            return True
        if self._filled_at > -math.inf:
            gained = (now - self._filled_at) * self._per_second
            self._tokens = min(self._burst, self._tokens + gained)
        self._filled_at = now
        since = now - self._burst / self._per_second
        self._taken_at = {name: at for name, at in self._taken_at.items() if at > since}
        least = 1 if namespace in self._taken_at else 1 - self._burst
        if self._tokens < least:
            return False
        self._tokens -= 1
        self._taken_at[namespace] = now
        return True
