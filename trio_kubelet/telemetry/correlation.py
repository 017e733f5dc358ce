"""Decides which events are written anew, which only count up, and which are left out.

A pod that fails every few seconds would bury everything else. Three rules, those of the usual
Kubernetes clients, in this order:

    alike     more than 10 different messages of one reason for one object in 10 minutes become
              one event: "(combined from similar events): " and the newest message
    same      what is said again is the same event with a higher count and a later time
    spam      of one object, 25 events at once and then one in 5 minutes; the rest is left out.
              Events about the node that pods cause have as many of their own, so that no pod keeps
              the node from telling what befalls it

Nothing here is I/O: `Correlator.correlate` takes an event and the time, and says what to do.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar, final

from attrs import evolve, field, frozen

from trio_kubelet.k8s import Event, Time

COMBINED = "(combined from similar events): "
ALIKE_MESSAGES = 10
ALIKE_SECONDS = 600.0
SPAM_BURST = 25
SPAM_REFILL_SECONDS = 300.0
REMEMBERED = 4096

V = TypeVar("V")


@frozen(kw_only=True)
class EventDecision:
    """The fate of an event: written anew, or, with `repeats`, over the one of its name."""

    event: Event
    key: Hashable
    repeats: bool = False


@frozen(kw_only=True)
class _SimilarMessages:
    """The messages of one reason for one object, by their digests, and when the last one came."""

    messages: frozenset[bytes]
    last_ns: int


@frozen(kw_only=True)
class _SentEvent:
    """One message: the event in the API, and how often it happened."""

    name: str
    first_timestamp: Time | None
    count: int


@frozen(kw_only=True)
class _Tokens:
    """The budget of an object: as of a time."""

    left: float
    as_of_ns: int


class _LruMap(Generic[V]):
    """A map that forgets what was not touched for longest."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: OrderedDict[Hashable, V] = OrderedDict()

    def get(self, key: Hashable) -> V | None:
        return self._items.get(key)

    def put(self, key: Hashable, value: V) -> None:
        self._items[key] = value
        self._items.move_to_end(key)
        if len(self._items) > REMEMBERED:
            self._items.popitem(last=False)

    def drop(self, key: Hashable) -> None:
        self._items.pop(key, None)


@final
@frozen
class Correlator:
    """Remembers what was said lately. One owner, who feeds it every event in order."""

    _alike: _LruMap[_SimilarMessages] = field(factory=_LruMap, init=False)
    _said: _LruMap[_SentEvent] = field(factory=_LruMap, init=False)
    _tokens: _LruMap[_Tokens] = field(factory=_LruMap, init=False)

    def correlate(
        self, event: Event, now_ns: int, *, caused_by_pod: bool = False
    ) -> EventDecision | None:
        """Say what becomes of a new event (count 1); None: it is left out.

        `caused_by_pod`: it is about the node, on account of a pod.
        """
        combined = self._is_one_of_many(event, now_ns)
        if combined:
            event = evolve(event, message=COMBINED + event.message)
        key = _group(event) if combined else (*_group(event), _digest(event.message), _place(event))
        before = self._said.get(key)
        if before is not None:
            event = evolve(
                event,
                metadata=evolve(event.metadata, name=before.name),
                first_timestamp=before.first_timestamp,
                count=before.count + 1,
            )
        said = _SentEvent(
            name=event.metadata.name, first_timestamp=event.first_timestamp, count=event.count or 1
        )
        self._said.put(key, said)
        if not self._may_speak((*_speaker(event), caused_by_pod), now_ns):
            return None
        return EventDecision(event=event, key=key, repeats=before is not None)

    def forget(self, key: Hashable) -> None:
        """The event of this key is not in the API: say it anew the next time."""
        self._said.drop(key)

    def _is_one_of_many(self, event: Event, now_ns: int) -> bool:
        key = _group(event)
        known = self._alike.get(key)
        is_old = known is None or now_ns - known.last_ns > ALIKE_SECONDS * 1e9
        messages = frozenset() if known is None or is_old else known.messages
        digest = _digest(event.message)
        many = digest not in messages and len(messages) >= ALIKE_MESSAGES - 1
        if not many:
            messages |= {digest}
        self._alike.put(key, _SimilarMessages(messages=messages, last_ns=now_ns))
        return many

    def _may_speak(self, key: Hashable, now_ns: int) -> bool:
        known = self._tokens.get(key) or _Tokens(left=SPAM_BURST, as_of_ns=now_ns)
        earned = (now_ns - known.as_of_ns) / 1e9 / SPAM_REFILL_SECONDS
        left = min(float(SPAM_BURST), known.left + max(0.0, earned))
        allowed = left >= 1
        self._tokens.put(key, _Tokens(left=left - 1 if allowed else left, as_of_ns=now_ns))
        return allowed


def _digest(message: str) -> bytes:
    """Sixteen bytes that stand for a message, which may be a thousand times as long."""
    return hashlib.blake2b(message.encode(errors="backslashreplace"), digest_size=16).digest()


def _speaker(event: Event) -> tuple[str, ...]:
    about = event.involved_object
    return (about.kind, about.namespace, about.name, about.uid)


def _group(event: Event) -> tuple[str, ...]:
    return (*_speaker(event), event.type, event.reason)


def _place(event: Event) -> str:
    return event.involved_object.field_path
