"""The flight recorder: what happened to each pod, and where the time went.

Every transition of a state machine goes through `Journal.transition`, every noteworthy fact
(an event, a bad manifest, a failed sync) through `Journal.note`. The journal is a bounded ring
in memory: it costs the same after a year as after a minute. `/debug/journal` serves it, and
`trio-kubelet timeline POD` prints one pod's part of it.
"""

from collections import deque
from collections.abc import Iterator, Mapping

from attrs import field, frozen

from trio_kubelet.callbacks import Callbacks
from trio_kubelet.clock import Clock

DEFAULT_CAPACITY = 8192


@frozen(kw_only=True)
class Entry:
    """One line of the journal.

    `time_ns` is nanoseconds since the epoch. `key` names what it is about: a pod as
    `namespace/name`, a container as `namespace/name/container`, a file by its path. `kind` is
    the name of the machine, or `event`, `manifest`, `sync`. `duration_seconds` is how long the
    source state (or the action) lasted, when that is known.
    """

    time_ns: int
    kind: str
    key: str
    event: str
    cause: str = ""
    source: str = ""
    target: str = ""
    duration_seconds: float | None = None
    details: Mapping[str, str] = field(factory=dict)


@frozen(kw_only=True)
class Transition:
    """A step of a state machine; it was in `source` for `duration_seconds`, if that is known."""

    source: str
    event: str
    target: str
    cause: str = ""
    duration_seconds: float | None = None
    details: Mapping[str, str] = field(factory=dict)


class Journal:
    """A ring of entries, newest last. One owner (the agent) hands it to all parts.

    `on_entry` is called with each.
    """

    __slots__ = ("_clock", "_dropped", "_entries", "on_entry")

    def __init__(self, clock: Clock, capacity: int = DEFAULT_CAPACITY) -> None:
        self._clock = clock
        self._entries: deque[Entry] = deque(maxlen=capacity)
        self._dropped = 0
        self.on_entry: Callbacks[[Entry]] = Callbacks()

    @property
    def dropped(self) -> int:
        """How many entries the ring has overwritten."""
        return self._dropped

    def transition(
        self,
        machine: str,
        key: str,
        made: Transition,
    ) -> None:
        """Record one step of a state machine."""
        self._append(
            Entry(
                time_ns=self._clock.now_ns(),
                kind=machine,
                key=key,
                event=made.event,
                cause=made.cause,
                source=made.source,
                target=made.target,
                duration_seconds=made.duration_seconds,
                details=made.details,
            )
        )

    def note(
        self,
        kind: str,
        key: str,
        event: str,
        cause: str = "",
        *,
        duration_seconds: float | None = None,
        **details: str,
    ) -> None:
        """Record a fact that is no transition."""
        self._append(
            Entry(
                time_ns=self._clock.now_ns(),
                kind=kind,
                key=key,
                event=event,
                cause=cause,
                duration_seconds=duration_seconds,
                details=details,
            )
        )

    def entries(self, key: str = "") -> Iterator[Entry]:
        """All entries, oldest first; with `key`, those about it and about its parts."""
        for entry in tuple(self._entries):
            if not key or entry.key == key or entry.key.startswith(key + "/"):
                yield entry

    def _append(self, entry: Entry) -> None:
        if len(self._entries) == self._entries.maxlen:
            self._dropped += 1
        self._entries.append(entry)
        self.on_entry.call(entry)
