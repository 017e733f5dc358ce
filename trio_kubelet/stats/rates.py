"""CPU time per second, from one sample of a cgroup to the next. No clock of its own, no I/O.

A rate over less than five seconds says little, and one over minutes little of now: samples that
come faster are measured against the same older one, and what is too old begins anew.
"""

from collections.abc import Hashable, Iterable

from attrs import evolve, frozen

from trio_kubelet.stats.values import CpuUsage, Usage

SETTLED_NS = 5_000_000_000
OLDEST_NS = 150_000_000_000
LEAST_NS = 500_000_000


@frozen
class _Sample:
    time_ns: int
    total_ns: int
    nano_cores: int | None = None


class Rates:
    """Owner of the older samples."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: dict[Hashable, _Sample] = {}

    def rated(self, key: Hashable, usage: Usage) -> Usage:
        """The usage with its rate, where there is an older sample of the same thing."""
        if usage.cpu is None:
            return usage
        rate = self._rate(key, usage.time_ns, usage.cpu)
        if rate is None:
            return usage
        return evolve(usage, cpu=evolve(usage.cpu, nano_cores=rate))

    def keep_only(self, keys: Iterable[Hashable]) -> None:
        """Forget what is gone."""
        kept = set(keys)
        self._samples = {key: value for key, value in self._samples.items() if key in kept}

    def is_known(self, key: Hashable, now_ns: int) -> bool:
        """True if a sample taken now would have a rate."""
        older = self._samples.get(key)
        return (
            older is not None
            and (older.nano_cores is not None or older.time_ns + LEAST_NS <= now_ns)
            and now_ns <= older.time_ns + OLDEST_NS
        )

    def _rate(self, key: Hashable, now_ns: int, cpu: CpuUsage) -> int | None:
        older = self._samples.get(key)
        if older is None or abs(now_ns - older.time_ns) > OLDEST_NS:
            self._samples[key] = _Sample(now_ns, cpu.total_ns)
            return None
        passed, used = now_ns - older.time_ns, cpu.total_ns - older.total_ns
        if passed <= 0:
            return older.nano_cores  # A reading that others have had, and newer ones since.
        if used < 0:
            self._samples[key] = _Sample(now_ns, cpu.total_ns)  # Another one of that name.
            return None
        if passed < SETTLED_NS and (older.nano_cores is not None or passed < LEAST_NS):
            return older.nano_cores
        rate = used * 1_000_000_000 // passed
        if passed >= SETTLED_NS:
            self._samples[key] = _Sample(now_ns, cpu.total_ns, rate)
        return rate
