# ruff: noqa: E501 - a row of a table is one line
"""The shutdown of the machine, as the node agent takes part in it.

Theory of operation
===================

systemd-logind lets programs delay a shutdown: each holds a lock, is told that the machine is about
to go down, does what it has to, and lets its lock go. logind waits for them, but not for longer
than `InhibitDelayMaxSec`. The agent is in one of these states:

    Unguarded  it holds no lock: logind or the bus is away, or the agent has just begun
    Guarded    a shutdown would wait for it
    Ending     a shutdown was announced: pods are ended, group by group
    Ended      all pods have ended, their statuses are told, the lock is let go

In the last two the node takes no pod and is not ready. A shutdown that is called off leaves as
they are the pods that were not ended yet. What was announced holds until logind says otherwise:
a bus or a logind that is away calls nothing off. A logind that begins anew does so where it says
that no shutdown is under way: it has forgotten the one that it had announced.
"""

from enum import StrEnum

from state_machines.machine import Row, Start, StateMachine


class ShutdownState(StrEnum):
    """States of the agent's part in a shutdown."""

    UNGUARDED = "Unguarded"
    GUARDED = "Guarded"
    ENDING = "Ending"
    ENDED = "Ended"


class ShutdownEvent(StrEnum):
    """News of logind, and of the pods that are ended."""

    LOCKED = "Locked"
    """logind has given a lock."""
    LOST = "Lost"
    """logind or the bus has gone, and perhaps the lock."""
    ANNOUNCED = "Announced"
    """The machine is about to go down."""
    CALLED_OFF = "CalledOff"
    """The machine stays up after all."""
    PODS_ENDED = "PodsEnded"
    """Each group has ended or has had its time."""


S, E = ShutdownState, ShutdownEvent

# fmt: off
SHUTDOWN: StateMachine[ShutdownState, ShutdownEvent, None] = StateMachine(
    name="shutdown",
    starts=(
        Start(S.UNGUARDED, "logind was not asked yet"),
    ),
    rows=(
        Row(S.UNGUARDED, E.LOCKED,     S.GUARDED,   "from now on a shutdown waits"),
        Row(S.UNGUARDED, E.LOST,       S.UNGUARDED, "logind is asked again"),
        Row(S.UNGUARDED, E.ANNOUNCED,  S.ENDING,    "nothing holds it up, but pods may have some time left"),
        Row(S.UNGUARDED, E.CALLED_OFF, S.UNGUARDED, "nothing had begun"),

        Row(S.GUARDED,   E.LOCKED,     S.GUARDED,   "the new lock takes the place of the old one"),
        Row(S.GUARDED,   E.LOST,       S.UNGUARDED, "the lock may be gone"),
        Row(S.GUARDED,   E.ANNOUNCED,  S.ENDING,    "the lock holds the machine up meanwhile"),
        Row(S.GUARDED,   E.CALLED_OFF, S.GUARDED,   "nothing had begun"),

        Row(S.ENDING,    E.LOST,       S.ENDING,    "what was announced still holds"),
        Row(S.ENDING,    E.ANNOUNCED,  S.ENDING,    "it is the same shutdown"),
        Row(S.ENDING,    E.CALLED_OFF, S.UNGUARDED, "pods that were not ended yet stay; a new lock is needed"),
        Row(S.ENDING,    E.PODS_ENDED, S.ENDED,     "the machine need not wait any more"),

        Row(S.ENDED,     E.LOST,       S.ENDED,     "the machine goes down"),
        Row(S.ENDED,     E.ANNOUNCED,  S.ENDED,     "it is the same shutdown"),
        Row(S.ENDED,     E.CALLED_OFF, S.UNGUARDED, "the node takes pods again; those that were ended stay so"),
    ),
)
# fmt: on
