"""The connections of a server: which one has to go when there are too many.

Of a connection whose requests were let in the server waits for the client or is at work for it;
the latter is left alone. A connection that has proven nothing yet may have to go even while it is
looked into who asks. What has to go to make room: first such connections, of the peer that has the
most of them; then those whose clients let the server wait. Of these it is the one that has waited
longest. A request is waited for from its begin, so a client that sends it byte by byte gains
nothing. When the server is at work for all, a new connection is refused.

A request that lasts as long as its client likes (a followed log, a command) is counted for its
owner, the namespace of the pod. When there are as many as may be, the owner that has the most
loses its newest one to an owner that has fewer. So there is always room for short requests, also
of a peer that passes on what many users ask.

An answer is in memory until its client has taken it. When all of them together have too many bytes,
those go that have made no progress for the longest time, of the peer and owner with the most.
"""

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

import structlog
import trio
from attrs import frozen

from trio_kubelet.server.limits import Limits
from trio_kubelet.tasks.turns import Turns

log = structlog.get_logger("server")

REFUSALS_IN_A_ROW = 3
"""So often a connection may ask without being let in; then it is closed."""


class NoPlaceError(Exception):
    """There are too many connections, and none of them waits for its client."""


class ClientGoneError(Exception):
    """The client has gone, or had to go."""


class TooManyLastingError(Exception):
    """There are too many requests that last."""


class Place:
    """One connection's place in the table."""

    def __init__(self, table: "ConnectionTable", peer: Hashable) -> None:
        self.peer = peer
        self.gone = False
        """The client has gone, or its place was needed."""
        self.is_known = False
        """The last request was let in, and not as anybody's."""
        self.owner = ""
        """Whom its request counts for: the namespace of a pod, empty for the node itself."""
        self.waits_since = 0.0
        self._table = table
        self._awaits_request = False
        self._refusals = 0
        self._work: trio.CancelScope | None = None

    @classmethod
    def alone(cls) -> "Place":
        """Make the place of a connection that shares its server with no other."""
        return cls(ConnectionTable(Limits()), "")

    @property
    def closing(self) -> bool:
        """True if the server ends, so that this request is the connection's last."""
        return self._table.closing

    @contextmanager
    def waiting(self, seconds: float, *, for_request: bool = False) -> Iterator[trio.CancelScope]:
        """Wait for the client in the block, which is cancelled if it takes too long.

        It is also cancelled to make room, and, where it is the next request that is waited
        for, when the server ends.
        """
        if not (for_request and self._awaits_request):
            self.waits_since = trio.current_time()
        self._awaits_request = for_request
        with trio.move_on_after(seconds) as scope, self._table.listed(self, scope, for_request):
            yield scope

    @contextmanager
    def under_review(self) -> Iterator[None]:
        """Find out in the block who asks, and whether he may.

        Raises ClientGoneError if meanwhile the connection had to make room.
        """
        self.is_known = False
        with trio.CancelScope() as scope, self._table.listed(self, scope, for_request=False):
            yield
        if scope.cancelled_caught or self.gone:
            self.gone = True
            raise ClientGoneError

    def let_in(self, *, known: bool) -> None:
        """Note that the request was let in; `known`: its user has shown who he is."""
        self.is_known = known
        self._refusals = 0

    def refused(self) -> bool:
        """Note that the request was not let in; True if the connection is to be closed."""
        self._refusals += 1
        return self._refusals >= REFUSALS_IN_A_ROW

    @contextmanager
    def working(self, work: trio.CancelScope) -> Iterator[None]:
        """Answer a request in the block, within `work`."""
        self._work = work
        try:
            yield
        finally:
            self._work = None
            self._table.stop_lasting(self)

    def last(self) -> None:
        """Count the request as one that lasts, for its owner. Raises TooManyLastingError."""
        self._table.start_lasting(self)

    @property
    def lasts(self) -> bool:
        """True while a request is answered that lasts."""
        return self._table.has_lasting(self)

    async def turn(self) -> None:
        """Wait for the turn of this connection, before its next piece is worked on.

        Connections of clients that have shown who they are take turns by whom they ask for, so that
        the one peer that passes on what many users ask is no single one; others by their peers.
        """
        if self.is_known:
            await self._table.turns_of_owners.wait(self.owner)
        else:
            await self._table.turns_of_strangers.wait(self.peer)

    @contextmanager
    def sending(self, copies_bytes: int, body: bytes = b"") -> Iterator[None]:
        """Send the client something in the block, which may be cancelled to make room.

        `copies_bytes` are in memory for this client alone; the same body may be for others, too.
        """
        self._table.start_sending(self, _Unsent(copies_bytes, body))
        try:
            yield
        finally:
            self._table.stop_sending(self)

    def make_room(self) -> None:
        """End the request that is being answered, and the connection with it."""
        self.gone = True
        if self._work is not None:
            self._work.cancel()


@frozen
class _Unsent:
    """The bytes that one client has not taken yet: a body, and copies for this client alone."""

    copies_bytes: int
    body: bytes


class ConnectionTable:
    """The connections of one server."""

    def __init__(self, limits: Limits) -> None:
        self.closing = False
        self.turns_of_strangers, self.turns_of_owners = Turns(), Turns()
        self._limits = limits
        self._places: set[Place] = set()
        self._of_peer: Counter[Hashable] = Counter()
        self._waiting: dict[Place, trio.CancelScope] = {}
        self._between_requests: set[Place] = set()
        self._lasting: dict[Place, str] = {}
        """The owners of requests that last, in the order in which they began."""
        self._unsent: dict[Place, _Unsent] = {}
        """The bytes that clients have not taken yet, in the order in which their sending began."""
        self._clients_of_body: Counter[int] = Counter()
        """By the bodies' identities: an answer that several clients have is in memory once."""
        self._unsent_bytes = 0

    async def give_turns(self) -> None:
        """Let connections have their turns, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.turns_of_strangers.give)
            nursery.start_soon(self.turns_of_owners.give)

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
        """List a place as one that can be taken away, by cancelling `scope`."""
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

    def start_lasting(self, place: Place) -> None:
        """Count a request as one that lasts. Raises TooManyLastingError."""
        limit, owner = self._limits.lasting_requests, place.owner
        if len(self._lasting) >= limit:
            held = Counter(self._lasting.values())
            most, number = held.most_common(1)[0]
            if number <= held[owner] + 1:
                words = f"too many requests at once that last: {owner or 'the node'} has "
                raise TooManyLastingError(f"{words}{held[owner]} of {limit}; try again later")
            newest = next(each for each in reversed(self._lasting) if self._lasting[each] == most)
            log.warning("request ended to make room", of=most, had=number, limit=limit, to=owner)
            self.stop_lasting(newest)
            newest.make_room()
        self._lasting[place] = owner

    def has_lasting(self, place: Place) -> bool:
        """True if a request of this place is one that lasts."""
        return place in self._lasting

    def stop_lasting(self, place: Place) -> None:
        """Count the request of this connection no more."""
        self._lasting.pop(place, None)

    def start_sending(self, place: Place, unsent: "_Unsent") -> None:
        """Count what a client has not taken yet; others have to go if there is too much."""
        self._unsent[place] = unsent
        self._unsent_bytes += unsent.copies_bytes
        self._clients_of_body[id(unsent.body)] += 1
        if self._clients_of_body[id(unsent.body)] == 1:
            self._unsent_bytes += len(unsent.body)
        while self._unsent_bytes > self._limits.unsent_bytes:
            slowest = self._slowest_of_several()
            if slowest is None:
                return
            log.warning("answer cut off, too much is unread", peer=slowest.peer, of=slowest.owner)
            self.stop_sending(slowest)
            slowest.make_room()

    def stop_sending(self, place: Place) -> None:
        """Count what is for this client no more."""
        unsent = self._unsent.pop(place, None)
        if unsent is None:
            return
        self._unsent_bytes -= unsent.copies_bytes
        self._clients_of_body[id(unsent.body)] -= 1
        if not self._clients_of_body[id(unsent.body)]:
            del self._clients_of_body[id(unsent.body)]
            self._unsent_bytes -= len(unsent.body)

    def _unsent_bytes_of(self, place: Place) -> float:
        """The bytes in memory for a client, with its part of a body that others have, too."""
        unsent = self._unsent[place]
        clients = self._clients_of_body[id(unsent.body)]
        return unsent.copies_bytes + len(unsent.body) / clients

    def _slowest_of_several(self) -> Place | None:
        """The answer that has waited longest of those of the peer and owner with the most bytes.

        None if nobody has more than one: a client with one long answer does nothing wrong.
        """
        answers: dict[tuple[Hashable, str], list[Place]] = {}
        for place in self._unsent:
            answers.setdefault((place.peer, place.owner), []).append(place)
        several = [places for places in answers.values() if len(places) > 1]
        if not several:
            return None
        return max(several, key=lambda places: sum(map(self._unsent_bytes_of, places)))[0]

    def _make_room(self, peer: Hashable) -> None:
        if self._of_peer[peer] >= self._limits.connections_of_a_peer:
            candidates = [place for place in self._waiting if place.peer == peer]
        elif len(self._places) >= self._limits.connections:
            candidates = list(self._waiting)
        else:
            return
        candidates = [place for place in candidates if not place.gone]
        if unknown := [place for place in candidates if not place.is_known]:
            of_peer = Counter(place.peer for place in unknown)
            most = max(of_peer.values())
            candidates = [place for place in unknown if of_peer[place.peer] == most]
        if not candidates:
            raise NoPlaceError
        longest = min(candidates, key=lambda place: place.waits_since)
        longest.gone = True
        self._waiting[longest].cancel()
        self._remove(longest)

    def _remove(self, place: Place) -> None:
        if place not in self._places:
            return
        self._places.remove(place)
        self._of_peer[place.peer] -= 1
        if not self._of_peer[place.peer]:
            del self._of_peer[place.peer]
