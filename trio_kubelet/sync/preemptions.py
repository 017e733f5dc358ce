"""Pods that leave, preempted or ending anyway, and pods that wait for their resources.

An admitted pod holds its resources from its admission on, whether it runs or waits; admission no
longer counts pods that leave: preempted ones, and those that end where another fits only without
them. So all admitted pods fit once these have stopped. Until then a pod starts as soon as it fits
beside what still runs: only a pod that needs the resources of one that is ending waits for that
end.

Plain methods that decide; the sync loop is the owner and acts.
"""

from collections.abc import Callable, Iterable, Sequence

import structlog
import trio
from attrs import frozen

from state_machines.pod_ending import Ending, with_grace
from trio_kubelet.k8s import Pod

log = structlog.get_logger("sync")

LEAST_WAIT_SECONDS = 10.0
GRACE_PERIODS = 1.5
"""The grace periods of a preempted pod to wait for its end, as the Go kubelet does."""

NAMED_PODS = 5


Fits = Callable[[Pod, Iterable[Pod]], bool]
"""True if a pod fits beside others, whatever else speaks against it. Pure."""


@frozen
class _Waiting:
    """A pod that was admitted and does not fit yet; `fits` is set when it does."""

    pod: Pod
    fits: trio.Event


class Preemptions:
    """The pods that leave and the pods that wait, by their UIDs.

    `may_start` reserves what a pod that waited needs beyond amounts; False if that is not there,
    None if the pod waits for it.
    """

    def __init__(self, fits: Fits, may_start: Callable[[Pod], bool | None]) -> None:
        self._fits = fits
        self._may_start = may_start
        self._leaving: set[str] = set()
        self._still_running: dict[str, Pod] = {}
        self._waiting: dict[str, _Waiting] = {}

    def staying(self, active: Iterable[Pod]) -> list[Pod]:
        """The pods that hold resources and do not leave."""
        return [pod for pod in active if pod.metadata.uid not in self._leaving]

    def leave(self, pod: Pod) -> None:
        """A pod leaves. One that still waits to start has nothing to free."""
        uid = pod.metadata.uid
        self._leaving.add(uid)
        if self._waiting.pop(uid, None) is None:
            self._still_running[uid] = pod

    def stopped(self, uid: str) -> None:
        """Nothing of a pod runs any more, or it is waited for no longer."""
        self._still_running.pop(uid, None)

    def finished(self, uid: str) -> None:
        """A pod is through, whatever it was here for."""
        self._leaving.discard(uid)
        self._still_running.pop(uid, None)
        self._waiting.pop(uid, None)

    def wait(self, pod: Pod, active: Iterable[Pod]) -> trio.Event | None:
        """The event that a pod which was just admitted waits for; None if it fits now.

        `active` are the pods that hold resources, without this one.
        """
        if not self._still_running or self._fits(pod, self._running(active)):
            return None
        return self.hold(pod)

    def hold(self, pod: Pod) -> trio.Event:
        """Let a pod that was just admitted wait though it fits; return the event as `wait` does."""
        waiting = _Waiting(pod, trio.Event())
        self._waiting[pod.metadata.uid] = waiting
        return waiting.fits

    def start_fitting(self, active: Iterable[Pod]) -> None:
        """Let the waiting pods start that fit now, in the order of their admission."""
        known = tuple(active) if self._waiting else ()
        for uid, waiting in tuple(self._waiting.items()):
            try:
                if not self._fits(waiting.pod, self._running(known)):
                    continue
                may_start = self._may_start(waiting.pod)
            except Exception:
                log.exception("start of waiting pod failed", pod=waiting.pod.metadata.key)
                continue
            if may_start is None:
                continue
            self._waiting.pop(uid, None)
            if may_start:
                waiting.fits.set()

    def waited_for(self) -> str:
        """The pods that leave and still run, as an event names them."""
        return in_words([pod.metadata.key for pod in self._still_running.values()])

    def _running(self, active: Iterable[Pod]) -> list[Pod]:
        """The pods that occupy resources: those that were started and have not stopped."""
        stay = (pod for pod in self.staying(active) if pod.metadata.uid not in self._waiting)
        return [*stay, *self._still_running.values()]


def in_words(names: Sequence[str]) -> str:
    """The pods that are waited for, as an event names them."""
    more = len(names) - NAMED_PODS
    return ", ".join(names[:NAMED_PODS]) + (f" and {more} more" if more > 0 else "")


def longest_wait_seconds(victim: Pod, ending: Ending) -> float:
    """After how long nobody waits for a pod that leaves any longer."""
    whole = with_grace(
        ending,
        deletion_grace_seconds=victim.metadata.deletion_grace_period_seconds,
        own_grace_seconds=victim.spec.termination_grace_period_seconds,
    )
    grace = whole.grace_seconds or 0
    return max(LEAST_WAIT_SECONDS, GRACE_PERIODS * grace)
