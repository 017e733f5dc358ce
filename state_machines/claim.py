"""A resource claim at the node, from the first pod that uses it to the last one.

Theory of operation
===================

The drivers of a claim make its devices ready before the first container of the first pod that uses
it, and are told when the last one has ended. Each of these calls may hang, fail, or be cut off with
the agent, and then nobody knows what the driver has done. So there is a state for that, and a
restarted agent begins in it: drivers may have forgotten a claim with the last boot of the machine.

    Unprepared    no driver has been asked, or all have undone it
    Preparing     drivers were asked to prepare it, and not all have answered
    Prepared      all drivers have prepared it; pods share it as it is
    Uncertain     a call failed or its answer was lost; the drivers are asked again
    Unpreparing   drivers were asked to undo it, and not all have answered

That a call is to be made is on the disk before it is made, with all that is needed to undo it.
Drivers let every call be repeated.
"""

from enum import StrEnum

from state_machines.machine import Row, Start, StateMachine


class ClaimState(StrEnum):
    """States of a claim at the node."""

    UNPREPARED = "Unprepared"
    PREPARING = "Preparing"
    PREPARED = "Prepared"
    UNCERTAIN = "Uncertain"
    UNPREPARING = "Unpreparing"


class ClaimEvent(StrEnum):
    """Calls that begin, and what becomes of them."""

    PREPARE = "Prepare"
    """The drivers are asked to prepare the claim."""
    UNPREPARE = "Unprepare"
    """The drivers are asked to undo that."""
    SUCCEEDED = "Succeeded"
    """All drivers answered that it is done."""
    FAILED = "Failed"
    """A driver answered with an error, or not at all."""


S, E = ClaimState, ClaimEvent

# fmt: off
CLAIM: StateMachine[ClaimState, ClaimEvent, None] = StateMachine(
    name="claim",
    starts=(
        Start(S.UNPREPARED, "a pod needs it, and nothing was written down"),
        Start(S.UNCERTAIN,  "an earlier agent, or an earlier boot of the machine, began a call"),
    ),
    rows=(
        Row(S.UNPREPARED,  E.PREPARE,   S.PREPARING,   "a pod needs it"),

        Row(S.PREPARING,   E.SUCCEEDED, S.PREPARED,    "containers may use its devices"),
        Row(S.PREPARING,   E.FAILED,    S.UNCERTAIN,   "what the drivers did is not known"),

        Row(S.PREPARED,    E.UNPREPARE, S.UNPREPARING, "the last pod that used it has ended"),

        Row(S.UNCERTAIN,   E.PREPARE,   S.PREPARING,   "the drivers are asked again"),
        Row(S.UNCERTAIN,   E.UNPREPARE, S.UNPREPARING, "the drivers may have prepared it"),

        Row(S.UNPREPARING, E.SUCCEEDED, S.UNPREPARED,  "nothing of it is left at the node"),
        Row(S.UNPREPARING, E.FAILED,    S.UNCERTAIN,   "it may be prepared still"),
    ),
)
# fmt: on
