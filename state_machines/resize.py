"""A change of a pod's resources in place (KEP-1287).

Theory of operation
===================

Three things may differ: what the spec of a pod asks for, what the pod is allocated of the node,
and what its containers and its cgroup were given (what is actuated). Two machines go from one to
the next, and neither waits for the other: a pod may wait for more while an earlier change is
still being made.

The request, from the spec to the allocation:

    Met         the pod is allocated what its spec asks for
    Proposed    the spec asks for something else, and nobody has decided yet
    Deferred    the node has too little left now; tried again whenever a pod ends or shrinks
    Infeasible  this node will never do that; only another spec is looked at again

The actuation, from the allocation to what the kernel enforces:

    Actuated    containers have what was allocated
    InProgress  containers and the pod's cgroup are being brought there
    Failing     the last try did not work; the next one is made later

An allocation is on the disk before anything is done about it, and what was actuated is written
after it was done. So an agent that is killed begins where these two differ.
"""

from enum import StrEnum

from state_machines.machine import Row, Start, StateMachine


class ResizeRequestState(StrEnum):
    """States between what the spec of a pod asks for and what the pod is allocated."""

    MET = "Met"
    PROPOSED = "Proposed"
    DEFERRED = "Deferred"
    INFEASIBLE = "Infeasible"


class ResizeRequestEvent(StrEnum):
    """Changes of a spec, and decisions about it."""

    ASKED = "Asked"
    """A version of the spec asks for other resources than are allocated."""
    WITHDRAWN = "Withdrawn"
    """The spec asks for what is allocated again."""
    GRANTED = "Granted"
    """The amounts that the spec asks for are allocated."""
    POSTPONED = "Postponed"
    """The node has too little left at present."""
    REFUSED = "Refused"
    """The node will never allocate that."""


class ResizeState(StrEnum):
    """States between what a pod is allocated and what its containers have."""

    ACTUATED = "Actuated"
    IN_PROGRESS = "InProgress"
    FAILING = "Failing"


class ResizeEvent(StrEnum):
    """Steps of a change that is being made."""

    ALLOCATED = "Allocated"
    """The pod is allocated something else than before."""
    FAILED = "Failed"
    """A try to bring the containers there did not work."""
    COMPLETED = "Completed"
    """Containers and the pod's cgroup have what is allocated."""


R, D = ResizeRequestState, ResizeRequestEvent

# fmt: off
RESIZE_REQUEST: StateMachine[ResizeRequestState, ResizeRequestEvent, None] = StateMachine(
    name="resize-request",
    starts=(
        Start(R.MET, "the pod was admitted, and has what it asked for then"),
    ),
    rows=(
        Row(R.MET,        D.ASKED,     R.PROPOSED,   "the node has to decide"),
        Row(R.MET,        D.WITHDRAWN, R.MET,        "the spec asks for what there is"),

        Row(R.PROPOSED,   D.ASKED,     R.PROPOSED,   "the newest spec counts"),
        Row(R.PROPOSED,   D.WITHDRAWN, R.MET,        "there is nothing to decide any more"),
        Row(R.PROPOSED,   D.GRANTED,   R.MET,        "the node has it"),
        Row(R.PROPOSED,   D.POSTPONED, R.DEFERRED,   "other pods hold it now"),
        Row(R.PROPOSED,   D.REFUSED,   R.INFEASIBLE, "waiting would not help"),

        Row(R.DEFERRED,   D.ASKED,     R.PROPOSED,   "another amount may fit"),
        Row(R.DEFERRED,   D.WITHDRAWN, R.MET,        "the spec asks for what there is"),
        Row(R.DEFERRED,   D.GRANTED,   R.MET,        "another pod has ended or shrunk"),
        Row(R.DEFERRED,   D.POSTPONED, R.DEFERRED,   "still too little is left"),
        Row(R.DEFERRED,   D.REFUSED,   R.INFEASIBLE, "the node itself has become smaller"),

        Row(R.INFEASIBLE, D.ASKED,     R.PROPOSED,   "the node may do something else"),
        Row(R.INFEASIBLE, D.WITHDRAWN, R.MET,        "the spec asks for what there is"),
    ),
)


S, E = ResizeState, ResizeEvent

RESIZE: StateMachine[ResizeState, ResizeEvent, None] = StateMachine(
    name="resize",
    starts=(
        Start(S.ACTUATED,    "containers are made with what is allocated"),
        Start(S.IN_PROGRESS, "an earlier agent was stopped in the middle of it"),
    ),
    rows=(
        Row(S.ACTUATED,    E.ALLOCATED, S.IN_PROGRESS, "containers are to be brought there"),

        Row(S.IN_PROGRESS, E.ALLOCATED, S.IN_PROGRESS, "the newest allocation counts"),
        Row(S.IN_PROGRESS, E.FAILED,    S.FAILING,     "the status says why; it is tried again"),
        Row(S.IN_PROGRESS, E.COMPLETED, S.ACTUATED,    "containers have what is allocated"),

        Row(S.FAILING,     E.ALLOCATED, S.IN_PROGRESS, "what failed before may work with this"),
        Row(S.FAILING,     E.FAILED,    S.FAILING,     "it has not worked again"),
        Row(S.FAILING,     E.COMPLETED, S.ACTUATED,    "what was in the way has gone"),
    ),
)
# fmt: on
