"""Faults of a call: delays, errors, lost replies.

The runtime asks its `Faults` once for each call, before anything happens, and does as the
returned `CallFault` says. The simulation passes a seeded `RandomFaults`, tests a `ScriptedFaults`;
any function of the rpc's name and its request will do. A whole outage is not a fault of a call:
see `HollowRuntime.go_down`.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable

from attrs import field, frozen
from betterproto import Message

from trio_kubelet.rpc import Code, RpcError


@frozen(kw_only=True)
class CallFault:
    """The faults of one call, in this order: delay, error, effect, lost reply.

    `error` is raised instead of the effect, `lost_reply` after it. With `outlives_cancel` the
    effect takes place even though the caller was cancelled while it waited, as it does in a
    runtime that learns too late that its client has gone.
    """

    delay_seconds: float = 0.0
    error: RpcError | None = None
    lost_reply: RpcError | None = None
    outlives_cancel: bool = False


NO_FAULT = CallFault()

Faults = Callable[[str, Message], CallFault]


def no_faults(rpc: str, request: Message) -> CallFault:
    """Nothing ever goes wrong."""
    del rpc, request
    return NO_FAULT


class ScriptedFaults:
    """Gives each rpc its faults in the order in which they were added; then nothing goes wrong."""

    __slots__ = ("_faults",)

    def __init__(self, faults: Iterable[tuple[str, CallFault]] = ()) -> None:
        self._faults: dict[str, deque[CallFault]] = {}
        for rpc, fault in faults:
            self.add(rpc, fault)

    def add(self, rpc: str, fault: CallFault) -> None:
        """Let the next call of that rpc (`CreateContainer`), after those added before, meet it."""
        self._faults.setdefault(rpc, deque()).append(fault)

    def __call__(self, rpc: str, request: Message) -> CallFault:
        """The next fault of that rpc."""
        del request
        waiting = self._faults.get(rpc)
        return waiting.popleft() if waiting else NO_FAULT


@frozen(kw_only=True)
class FaultRates:
    """The share of calls that each kind of fault hits, from 0 to 1, and the longest delays."""

    delay: float = 0.0
    error: float = 0.0
    lost_reply: float = 0.0
    outlives_cancel: float = 0.0
    longest_delay_seconds: float = 5.0


@frozen
class RandomFaults:
    """Faults drawn from a seeded source: the same seed and calls give the same faults.

    `rates_of_rpc` overrides `rates` for single rpcs. Faults stop when `enabled` says so.
    """

    source: random.Random
    rates: FaultRates = FaultRates()
    rates_of_rpc: dict[str, FaultRates] = field(factory=dict)
    enabled: Callable[[], bool] = lambda: True

    def __call__(self, rpc: str, request: Message) -> CallFault:
        """Draw one call's fault."""
        del request
        if not self.enabled():
            return NO_FAULT
        rates = self.rates_of_rpc.get(rpc, self.rates)
        return CallFault(
            delay_seconds=self._delay(rates),
            error=self._error(rates.error),
            lost_reply=self._error(rates.lost_reply),
            outlives_cancel=self.source.random() < rates.outlives_cancel,
        )

    def _delay(self, rates: FaultRates) -> float:
        if self.source.random() >= rates.delay:
            return 0.0
        return self.source.uniform(0.0, rates.longest_delay_seconds)

    def _error(self, rate: float) -> RpcError | None:
        if self.source.random() >= rate:
            return None
        code = self.source.choice((Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.UNKNOWN))
        return RpcError(code, "a fault of the hollow runtime")
