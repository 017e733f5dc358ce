# ruff: noqa: E501 - a row of a table is one line
"""The ways in which the agent learns of containers: by looking, or by being told.

Theory of operation
===================

Looking (the relist: all sandboxes and containers, compared with the last time) is always right
and always late. Being told (the runtime's event stream) is early, but only as good as the
runtime. The relist never stops; what the stream earns is that it may become rare.

    Generic     no events: the gate is off, or the runtime has no stream
    Connecting  the stream is being opened, or opened again
    Proving     events come in; whether all of them do is not known yet
    Evented     proven: the relist is only the safety net
    Hinted      the runtime has one channel for all listeners, so that another listener takes
                events away; those that arrive are used, and nothing is concluded from silence

Proof. While proving, the relist goes on each second and every change that it finds must have
been announced. A number of changes in a row without a miss is the proof; a miss starts the
count anew and doubles what is asked for next time, so that a stream which loses an event now
and then is trusted ever less often. Evented ends with the first change that a relist finds and
no event announced, and with the stream.

Gaps. What happens while no stream is open is announced by nobody, and the reply to opening a
stream does not say that the runtime listens already. So a relist is due at once when a stream
opens, when its first event arrives, and when it breaks; and when the trust ends, since a relist
that was rare on trust may be due for minutes already (`relist_is_due`).

The machine has no terminal state: it lives as long as the agent. A runtime that comes back after
a restart may be another version, so it is asked again what it can do.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from state_machines.machine import Row, Start, StateMachine

PROOF_CHANGES = 8
PROOF_DOUBLINGS = 7


class PlegState(StrEnum):
    """Degrees of trust in the runtime's events."""

    GENERIC = "Generic"
    CONNECTING = "Connecting"
    PROVING = "Proving"
    EVENTED = "Evented"
    HINTED = "Hinted"


class PlegEvent(StrEnum):
    """Events that change that trust."""

    RUNTIME_KNOWN = "RuntimeKnown"
    """The runtime told its name and version, at first or after it was away."""
    STREAM_OPENED = "StreamOpened"
    """GetContainerEvents was accepted."""
    STREAM_FAILED = "StreamFailed"
    """The stream ended or could not be opened."""
    UNSUPPORTED = "Unsupported"
    """The runtime does not implement the stream, or it is switched off there."""
    FIRST_EVENT = "FirstEvent"
    """The first event of a stream arrived: the runtime does listen."""
    CHANGE_MISSED = "ChangeMissed"
    """A relist found a change that no event announced, neither before nor in a moment after."""
    PROVEN = "Proven"
    """Changes enough were announced, and none missed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeTraits:
    """The knowledge of a runtime's events before the first one arrives."""

    streams_events: bool
    shares_channel: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The record of this stream: changes announced since the last miss, and all misses."""

    announced: int
    misses: int = 0


PlegEvidence = RuntimeTraits | Proof


def it_streams_events(evidence: PlegEvidence) -> bool:
    """True if there are events to be had."""
    return isinstance(evidence, RuntimeTraits) and evidence.streams_events


def it_shares_a_channel(evidence: PlegEvidence) -> bool:
    """True if other listeners take events away from this one."""
    return isinstance(evidence, RuntimeTraits) and evidence.shares_channel


def it_has_its_own_channel(evidence: PlegEvidence) -> bool:
    """True if each listener gets every event."""
    return isinstance(evidence, RuntimeTraits) and not evidence.shares_channel


def enough_was_announced(evidence: PlegEvidence) -> bool:
    """True if the changes announced in a row make a proof."""
    return isinstance(evidence, Proof) and evidence.announced >= changes_to_prove(evidence.misses)


def changes_to_prove(misses: int) -> int:
    """Return how many changes in a row must be announced after so many misses in all.

    Eight to begin with, the changes of two or three pods: were half of the events lost to another
    listener, that many would arrive by chance once in 256 times. Each miss doubles it, up to 1,024.
    """
    return PROOF_CHANGES << min(misses, PROOF_DOUBLINGS)


S, E = PlegState, PlegEvent

# fmt: off
PLEG: StateMachine[PlegState, PlegEvent, PlegEvidence] = StateMachine(
    name="pleg",
    starts=(
        Start(S.GENERIC, "the runtime has not told what it can do"),
    ),
    rows=(
        Row(S.GENERIC,    E.RUNTIME_KNOWN, S.CONNECTING, "there are events to be had", it_streams_events),
        Row(S.GENERIC,    E.RUNTIME_KNOWN, S.GENERIC,    "too old, or the gate EventedPLEG is off"),

        Row(S.CONNECTING, E.STREAM_OPENED, S.PROVING,    "each listener gets every event, it is said", it_has_its_own_channel),
        Row(S.CONNECTING, E.STREAM_OPENED, S.HINTED,     "what does not arrive may have gone to others", it_shares_a_channel),
        Row(S.CONNECTING, E.STREAM_FAILED, S.CONNECTING, "tried again after a while; the relist sees to the rest"),
        Row(S.CONNECTING, E.UNSUPPORTED,   S.GENERIC,    "asking again is no use before the runtime is another one"),
        Row(S.CONNECTING, E.RUNTIME_KNOWN, S.CONNECTING, "it came back and still has events", it_streams_events),
        Row(S.CONNECTING, E.RUNTIME_KNOWN, S.GENERIC,    "it came back as a version without events"),

        Row(S.PROVING,    E.FIRST_EVENT,   S.PROVING,    "a relist shows what came before the runtime listened"),
        Row(S.PROVING,    E.PROVEN,        S.EVENTED,    "every change was announced, often enough", enough_was_announced),
        Row(S.PROVING,    E.CHANGE_MISSED, S.PROVING,    "the count begins anew, and more is asked for"),
        Row(S.PROVING,    E.STREAM_FAILED, S.CONNECTING, "the runtime went away, or gave the stream up"),

        Row(S.EVENTED,    E.CHANGE_MISSED, S.PROVING,    "a stream that loses events is not trusted alone"),
        Row(S.EVENTED,    E.STREAM_FAILED, S.CONNECTING, "nobody announces what happens now: back to looking"),

        Row(S.HINTED,     E.FIRST_EVENT,   S.HINTED,     "a relist shows what came before the runtime listened"),
        Row(S.HINTED,     E.CHANGE_MISSED, S.HINTED,     "to be expected of a shared channel"),
        Row(S.HINTED,     E.STREAM_FAILED, S.CONNECTING, "the runtime went away, or gave the stream up"),
    ),
)
# fmt: on

_RELIST_AT_ONCE = frozenset({E.STREAM_OPENED, E.FIRST_EVENT, E.STREAM_FAILED})

_RELIST_PERIOD_SECONDS: Mapping[PlegState, float] = {
    S.GENERIC: 1.0,
    S.CONNECTING: 1.0,
    S.PROVING: 1.0,
    S.EVENTED: 300.0,
    S.HINTED: 1.0,
}
_HEALTH_THRESHOLD_SECONDS: Mapping[PlegState, float] = {
    S.GENERIC: 180.0,
    S.CONNECTING: 180.0,
    S.PROVING: 180.0,
    S.EVENTED: 600.0,
    S.HINTED: 180.0,
}


def relist_period_seconds(state: PlegState) -> float:
    """Return how long after a relist the next one is due."""
    return _RELIST_PERIOD_SECONDS[state]


def relist_is_due(source: PlegState, event: PlegEvent, target: PlegState) -> bool:
    """True if a step makes the next relist due now, however long ago the last one was."""
    is_more_often = relist_period_seconds(target) < relist_period_seconds(source)
    return event in _RELIST_AT_ONCE or is_more_often


def health_threshold_seconds(state: PlegState, trusted_age_seconds: float = 0.0) -> float:
    """Return how old the last complete relist may be before the node is not ready.

    `trusted_age_seconds` is how old it was when the trust ended, 0 if it is younger than that:
    what was old enough on trust is no fault, and the next one has as long as any.
    """
    threshold = _HEALTH_THRESHOLD_SECONDS[state] + trusted_age_seconds
    return min(threshold, _HEALTH_THRESHOLD_SECONDS[S.EVENTED])


def uses_events(state: PlegState) -> bool:
    """True if an event of the runtime leads to an inspection of its pod."""
    return state in (S.PROVING, S.EVENTED, S.HINTED)


def runtime_traits(name: str, version: str, *, events_enabled: bool = True) -> RuntimeTraits:
    """Return what a runtime of this name and version (CRI Version) is known to do.

    containerd has no stream before 1.7, and one channel for all listeners before 2.0. Any other
    runtime is tried: if it has no stream, opening one says so. A version of containerd that
    cannot be read is taken for one that shares its channel. `events_enabled` is the gate
    EventedPLEG.
    """
    if not events_enabled:
        return RuntimeTraits(streams_events=False)
    if name != "containerd":
        return RuntimeTraits(streams_events=True)
    match = re.match(r"v?(\d{1,9})\.(\d{1,9})(?!\d)", version)
    if match is None:
        return RuntimeTraits(streams_events=True, shares_channel=True)
    release = (int(match[1]), int(match[2]))
    return RuntimeTraits(streams_events=release >= (1, 7), shares_channel=release < (2, 0))
