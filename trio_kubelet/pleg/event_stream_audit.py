"""The audit of the runtime's events: the bookkeeping behind the proof.

Every start and every end of a container that shows up in the cache, however it came there, must
have been announced by an event, shortly before or shortly after. The audit matches the two.
Pure: it is told what was seen and when, and answers with counts.
"""

from collections.abc import Iterable

from state_machines.pleg import Proof
from trio_kubelet.runtime.observed import ObservedPod, ObservedState

PATIENCE_SECONDS = 3.0
"""The time after a change was seen in which its event may still arrive."""

MEMORY_SECONDS = 60.0
"""The time that an event is remembered for a change that is seen later."""

Change = tuple[str, ObservedState]
"""A container's id, and that it runs or has ended."""

_ANNOUNCED_STATES = (ObservedState.RUNNING, ObservedState.EXITED)


class EventStreamAudit:
    """Counts for one stream of events, which began to deliver at `since_ns` (since the epoch)."""

    def __init__(self, since_ns: int, misses: int = 0) -> None:
        self._since_ns = since_ns
        self._announced: dict[Change, float] = {}
        self._expected: dict[Change, float] = {}
        self._settled: set[Change] = set()
        self._in_a_row = 0
        self._misses = misses

    @property
    def proof(self) -> Proof:
        """The record so far."""
        return Proof(announced=self._in_a_row, misses=self._misses)

    def heard(self, change: Change, now: float) -> None:
        """An event announced a change."""
        if self._expected.pop(change, None) is not None:
            self._settle(change)
        elif change not in self._settled:
            self._announced[change] = now

    def saw(self, before: ObservedPod, after: ObservedPod, now: float) -> None:
        """An observation of a pod took the place of an older one."""
        known = set(_changes(before, 0))
        for change in _changes(after, self._since_ns):
            if change in known or change in self._settled:
                continue
            if self._announced.pop(change, None) is not None:
                self._settle(change)
            else:
                self._expected.setdefault(change, now)

    def missed(self, now: float) -> int:
        """The changes that nobody announced in time; they are counted once, and forgotten."""
        late = [c for c, at in self._expected.items() if now - at > PATIENCE_SECONDS]
        for change in late:
            del self._expected[change]
            self._settled.add(change)
        if late:
            self._misses += 1
            self._in_a_row = 0
        old = [c for c, at in self._announced.items() if now - at > MEMORY_SECONDS]
        for change in old:
            del self._announced[change]
        return len(late)

    def forget(self, container_ids: Iterable[str]) -> None:
        """Drop what is known of containers that are gone."""
        gone = set(container_ids)
        self._settled = {change for change in self._settled if change[0] not in gone}

    def _settle(self, change: Change) -> None:
        self._settled.add(change)
        self._in_a_row += 1


def _changes(observed: ObservedPod, since_ns: int) -> Iterable[Change]:
    """The starts and ends that a pod shows, as far as they are younger than `since_ns`.

    What could not be started is announced by no runtime: it has ended without having run.
    """
    for container in observed.containers:
        if container.state not in _ANNOUNCED_STATES or not container.started_at:
            continue
        ended = container.state is ObservedState.EXITED
        happened_at = container.finished_at if ended else container.started_at
        if happened_at > since_ns:
            yield container.id, container.state
