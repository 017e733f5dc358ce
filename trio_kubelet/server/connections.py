"""Which connections there are, and which one has to go when there are too many.

It is the one whose client has let the server wait longest: one that is idle, sends nothing or
takes nothing. A request is waited for from its begin, so a client that sends it byte by byte gains
nothing. So no number of slow clients keeps others from asking. Connections that the server
itself is at work for are left alone; when there are only such, a new one is refused.
"""

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

import trio

from trio_kubelet.server.limits import Limits


class NoPlaceError(Exception):
    """There are too many connections, and none of them waits for its client."""


class Place:
    """One connection's place in the table."""

    def __init__(self, table: "ConnectionTable", peer: Hashable) -> None:
        self.peer = peer
        self.evicted = False
        self.waits_since = 0.0
        self._table = table
        self._awaits_request = False

    @property
    def closing(self) -> bool:
        """Whether the server ends, so that this request is the connection's last."""
        return self._table.closing

    @contextmanager
    def waiting(self, seconds: float, *, for_request: bool = False) -> Iterator[trio.CancelScope]:
        """While the client has to do something; cancelled if it takes too long over it.

        It is also cancelled to make room, and, where it is the next request that is waited
        for, when the server ends.
        """
        if not (for_request and self._awaits_request):
            self.waits_since = trio.current_time()
        self._awaits_request = for_request
        with trio.move_on_after(seconds) as scope, self._table.listed(self, scope, for_request):
            yield scope


class ConnectionTable:
    """The connections of one server."""

    def __init__(self, limits: Limits) -> None:
        self.closing = False
        self._limits = limits
        self._places: set[Place] = set()
        self._of_peer: Counter[Hashable] = Counter()
        self._waiting: dict[Place, trio.CancelScope] = {}
        self._between_requests: set[Place] = set()

    @contextmanager
    def place(self, peer: Hashable) -> Iterator[Place]:
        """Hold a place for a connection of `peer`; raises NoPlaceError if none can be had."""
        self._make_room(peer)
        place = Place(self, peer)
        self._places.add(place)
        self._of_peer[peer] += 1
        try:
            yield place
        finally:
            self._remove(place)

    @contextmanager
    def listed(self, place: Place, scope: trio.CancelScope, for_request: bool) -> Iterator[None]:
        """List a place as one that waits for its client, within `scope`."""
        self._waiting[place] = scope
        if for_request:
            self._between_requests.add(place)
            if self.closing:
                scope.cancel()
        try:
            yield
        finally:
            self._waiting.pop(place, None)
            self._between_requests.discard(place)

    def close_idle(self) -> None:
        """End the connections that wait for a request, now and from now on."""
        self.closing = True
        for place in self._between_requests:
            self._waiting[place].cancel()

    def _make_room(self, peer: Hashable) -> None:
        if self._of_peer[peer] >= self._limits.connections_of_a_peer:
            candidates = [place for place in self._waiting if place.peer == peer]
        elif len(self._places) >= self._limits.connections:
            candidates = list(self._waiting)
        else:
            return
        candidates = [place for place in candidates if not place.evicted]
        if not candidates:
            raise NoPlaceError
        longest = min(candidates, key=lambda place: place.waits_since)
        longest.evicted = True
        self._waiting[longest].cancel()
        self._remove(longest)

    def _remove(self, place: Place) -> None:
        if place not in self._places:
            return
        self._places.remove(place)
        self._of_peer[place.peer] -= 1
        if not self._of_peer[place.peer]:
            del self._of_peer[place.peer]
