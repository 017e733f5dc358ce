"""The fault schedule of calls: rounds of faults, with quiet phases between them.

Every call takes some milliseconds, so that things happen between calls. In a round of faults calls
fail before or after their effect, are slow, or outlive callers that went away; and one call,
chosen by its number, may be the moment at which something larger happens.
"""

import random
from collections.abc import Callable

from attrs import evolve
from betterproto import Message

from trio_kubelet.hollow import CallFault, FaultRates, RandomFaults

FAULTLESS = FaultRates(delay=0.7, longest_delay_seconds=0.03)
FAULTY = (
    FaultRates(delay=0.3, error=0.05, longest_delay_seconds=0.1),
    FaultRates(delay=0.3, lost_reply=0.05, longest_delay_seconds=0.1),
    FaultRates(delay=0.3, error=0.25, lost_reply=0.1, longest_delay_seconds=0.1),
    FaultRates(delay=0.5, longest_delay_seconds=6.0),
    FaultRates(delay=0.02, longest_delay_seconds=150.0),
    FaultRates(delay=0.4, error=0.1, lost_reply=0.1, longest_delay_seconds=3.0),
)
UNSHIELDED = ("RunPodSandbox", "PullImage", "StopContainer", "StopPodSandbox")
"""Calls that agents cancel in the course of their work: the runtime may learn of it too late."""


class FaultSchedule:
    """The `Faults` of the runtime."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._calls_left = 0
        self._then: Callable[[], None] = lambda: None
        self.on_call: Callable[[str, Message], None] = lambda _rpc, _request: None
        """Called before each call of the agent's."""
        self.stop_faults()

    def stop_faults(self) -> None:
        """Let nothing go wrong from now on, not even what was planned."""
        self._calls_left = 0
        self._faults = RandomFaults(self._chance, FAULTLESS)

    def start_faults(self) -> None:
        """Let things go wrong in one of several ways."""
        rates = self._chance.choice(FAULTY)
        late = evolve(rates, outlives_cancel=0.5)
        self._faults = RandomFaults(self._chance, rates, dict.fromkeys(UNSHIELDED, late))

    def at_call(self, number: int, then: Callable[[], None]) -> None:
        """Do something in the middle of the call of that number, counted from now."""
        self._calls_left, self._then = number, then

    def __call__(self, rpc: str, request: Message) -> CallFault:
        """What happens to one call."""
        self.on_call(rpc, request)
        if self._calls_left > 0:
            self._calls_left -= 1
            if self._calls_left == 0:
                self._then()
        return self._faults(rpc, request)
