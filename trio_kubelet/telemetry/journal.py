"""The flight recorder: what happened to each pod, and where the time went.

Every transition of a state machine goes through `Walk.step` or `Journal.transition`, every
noteworthy fact (an event, a bad manifest, a failed sync) through `Journal.note`. The journal is a
bounded ring in memory: it costs the same after a year as after a minute. What does not fit goes
from the pod with the most of it, its oldest first, so that a noisy one does not drive out the
story of others.
`/debug/journal` serves it, and `trio-kubelet timeline POD` prints one pod's part of it.
"""

import sys
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from typing import Generic

import trio
from attrs import field, frozen

from state_machines.machine import C, E, S, StateMachine
from trio_kubelet.tasks.clock import Clock

DEFAULT_CAPACITY = 8192
"""In entries of a kibibyte of text; longer ones count as several."""
MOST_CHARACTERS = 1024
"""Of one text in an entry; what containers print has no end."""


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
    """A ring of entries, newest last. One owner (the agent) hands it to all parts."""

    __slots__ = (
        "_capacity",
        "_clock",
        "_dropped",
        "_entries",
        "_number",
        "_owners",
        "_size",
        "_size_of",
        "_sizes",
    )

    def __init__(self, clock: Clock, capacity: int = DEFAULT_CAPACITY) -> None:
        self._clock = clock
        self._capacity = capacity
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._number = 0
        self._owners: dict[str, deque[int]] = {}
        self._size = 0
        self._size_of: dict[str, int] = {}
        self._sizes: list[dict[str, None]] = [{}]
        """The owners with entries of such a size together, by that size."""
        self._dropped = 0

    @property
    def dropped(self) -> int:
        """The number of entries that had to make room for others."""
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
                key=_cut(key),
                event=made.event,
                cause=_cut(made.cause),
                source=made.source,
                target=made.target,
                duration_seconds=made.duration_seconds,
                details={name: _cut(value) for name, value in made.details.items()},
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
                key=_cut(key),
                event=event,
                cause=_cut(cause),
                duration_seconds=duration_seconds,
                details={name: _cut(value) for name, value in details.items()},
            )
        )

    def entries(self, key: str = "") -> Iterator[Entry]:
        """All entries, oldest first; with `key`, those about it and about its parts."""
        for entry in tuple(self._entries.values()):
            if not key or entry.key == key or entry.key.startswith(key + "/"):
                yield entry

    def _append(self, entry: Entry) -> None:
        size = _size(entry)
        while self._entries and self._size + size > self._capacity:
            self._drop_one()
        self._number += 1
        self._entries[self._number] = entry
        owner = _owner(entry.key)
        self._owners.setdefault(owner, deque()).append(self._number)
        self._resize(owner, size)

    def _drop_one(self) -> None:
        """Drop the oldest entry of who has the most."""
        owner = next(iter(self._sizes[-1]))
        numbers = self._owners[owner]
        dropped = self._entries.pop(numbers.popleft())
        self._dropped += 1
        self._resize(owner, -_size(dropped))
        if not numbers:
            del self._owners[owner]

    def _resize(self, owner: str, by: int) -> None:
        before = self._size_of.pop(owner, 0)
        after = before + by
        self._size += by
        self._sizes[before].pop(owner, None)
        if after:
            self._size_of[owner] = after
            self._sizes.extend({} for _ in range(len(self._sizes), after + 1))
            self._sizes[after][owner] = None
        while len(self._sizes) > 1 and not self._sizes[-1]:
            self._sizes.pop()


def _size(entry: Entry) -> int:
    """One, and one more for each kibibyte that its texts take in memory."""
    texts = (entry.key, entry.cause, *entry.details.values())
    return 1 + sum(map(sys.getsizeof, texts)) // 1024


def _owner(key: str) -> str:
    """The pod of a key, or the key itself where it is a path, or one word."""
    namespace, slash, rest = key.partition("/")
    return f"{namespace}/{rest.partition('/')[0]}" if namespace and slash else key


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"


class Walk(Generic[S, E, C]):
    """One thing on its way through its machine: each move is a row of the table, and an entry.

    `key` names the thing, as in `Entry`. `entered_at` is when it came into its state, in trio's
    clock, None if that is unknown. An event that leads nowhere is an entry only with `notes_all`.
    """

    __slots__ = ("_entered_at", "_journal", "_key", "_machine", "_notes_all", "state")

    def __init__(
        self,
        machine: StateMachine[S, E, C],
        state: S,
        journal: Journal,
        key: str,
        *,
        entered_at: float | None = None,
        notes_all: bool = False,
    ) -> None:
        self.state = state
        self._machine = machine
        self._journal = journal
        self._key = key
        self._entered_at = entered_at
        self._notes_all = notes_all

    def begin(self, event: str, **details: str) -> None:
        """Note that the walk begins, in the state where it is."""
        beginning = Transition(source="", event=event, target=self.state, details=details)
        self._journal.transition(self._machine.name, self._key, beginning)

    def step(self, event: E, evidence: C | None = None, *, cause: str = "", **details: str) -> bool:
        """Take an event; True if it leads to another state. Raises IllegalTransition."""
        row = self._machine.row(self.state, event, evidence)
        if row.stays and not self._notes_all:
            return False
        since = self._entered_at
        seconds = None if since is None else trio.current_time() - since
        self._journal.transition(
            self._machine.name,
            self._key,
            Transition(
                source=row.source,
                event=event,
                target=row.target,
                cause=cause,
                duration_seconds=seconds,
                details=details,
            ),
        )
        if row.stays:
            return False
        self.state = row.target
        if since is not None:
            self._entered_at = trio.current_time()
        return True
