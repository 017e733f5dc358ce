# ruff: noqa: E501 - a row of a table is one line
"""The life of a pod on this node.

Theory of operation
===================

One instance is one incarnation of a pod. It only ever goes forward:

    SyncPod      the pod should run: containers are started, restarted, brought into line
    Terminating  the pod must end: nothing is started any more, containers get their grace
    Terminated   nothing runs: volumes are unmounted, cgroups removed, the last status is sent
    Released     nobody waits for it any more: its object may go, its name and address are free
    Finished     the pod's task has ended

A pod whose UID comes back (a static pod that is deleted and recreated) does not go backwards:
it waits until this incarnation is finished and then starts a new one.

Many things can end a pod, and several of them may do so at once: a pod that completes is
deleted, a deleted pod is preempted for a critical one. The first of them moves the pod to
Terminating and is the cause that its status reports; the others are taken note of (those who
asked wait for the same end, and may shorten the grace period) and change no state.
That is why the events by which others end a pod have rows in all later states. That a pod has
completed, or is over its deadline, only the sync of one that should run can find.

Stopping is only believed when it is seen. A call to the runtime may be cancelled or lost with
its outcome unknown, so Terminated needs evidence: a listing that was asked for after the last
call had ended, and shows nothing of the pod running. From then on none of its containers can
run again, and what they used may be taken away.

What users wait for comes before what nobody waits for. A pod is Released when it holds nothing
any more that others could want; what is left then, dead containers, sandboxes, logs and folders,
is removed when nothing is being started or stopped.

Pods that only the runtime knows (their manifest went while the agent was down) have no spec to
sync: they begin in Terminating. An incarnation that was finished keeps its dead containers and
their logs for those who read them, until its source lets it go: what clears them away begins in
Released, for nothing could have been started since.

The rules below the table are those that are about amounts rather than states: which ending a
pod's own fields imply, and how much grace is left.
"""

from dataclasses import dataclass
from enum import StrEnum

from state_machines.machine import Row, Start, StateMachine

DEFAULT_GRACE_SECONDS = 30
MINIMUM_GRACE_SECONDS = 1
ORPHAN_GRACE_SECONDS = 1


class PodState(StrEnum):
    """The states of an incarnation of a pod."""

    SYNC_POD = "SyncPod"
    TERMINATING = "Terminating"
    TERMINATED = "Terminated"
    RELEASED = "Released"
    FINISHED = "Finished"


class PodEvent(StrEnum):
    """Events of a pod."""

    CHANGED = "Changed"
    """There is a newer version of its spec, metadata or status."""
    COMPLETED = "Completed"
    """Its phase is Succeeded or Failed: by its restart policy nothing is left to run."""
    REJECTED = "Rejected"
    """Admission refused it."""
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    """It was active for longer than spec.activeDeadlineSeconds."""
    DELETED = "Deleted"
    """metadata.deletionTimestamp is set."""
    REMOVED = "Removed"
    """Its source no longer has it."""
    PREEMPTED = "Preempted"
    """A critical pod needs its place."""
    EVICTED = "Evicted"
    """The node runs out of something, or the pod broke a limit of its own."""
    NODE_SHUTDOWN = "NodeShutdown"
    """The machine goes down."""
    GRACE_SHORTENED = "GraceShortened"
    """A pod that is being stopped has less time left than it was given."""
    CONTAINERS_STOPPED = "ContainersStopped"
    """A listing was made to see whether anything still runs."""
    RELEASED = "Released"
    """Volumes are unmounted, cgroups gone, the last status is with its reader."""
    KEPT = "Kept"
    """Its source still has it, or has it again: what is left of it stays."""
    CLEANED = "Cleaned"
    """Its dead containers, sandboxes, logs and folders are gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopEvidence:
    """The result of a listing, as evidence for `PodEvent.CONTAINERS_STOPPED`.

    `listed_at` is when the runtime was asked (before the request was sent) and
    `last_call_ended_at` when the last call that could have started or stopped something had
    returned, failed or run into its deadline; both in seconds of the same clock. `running` names
    the containers and sandboxes of the pod that run, or of which the runtime does not know.
    """

    listed_at: float
    last_call_ended_at: float
    running: tuple[str, ...] = ()


def seen_stopped(evidence: StopEvidence) -> bool:
    """True if a fresh listing shows nothing running.

    Equal times are fresh: who lists after a call has ended may do so in the same instant.
    """
    return evidence.listed_at >= evidence.last_call_ended_at and not evidence.running


S, E = PodState, PodEvent

# fmt: off
POD: StateMachine[PodState, PodEvent, StopEvidence] = StateMachine(
    name="pod",
    starts=(
        Start(S.SYNC_POD,    "a source has the pod"),
        Start(S.TERMINATING, "only the runtime knows the pod"),
        Start(S.RELEASED,    "it was over before its source let it go; what was kept of it goes"),
    ),
    terminal=frozenset({S.FINISHED}),
    rows=(
        Row(S.SYNC_POD,    E.CHANGED,            S.SYNC_POD,    "it is synced with the newest spec"),
        Row(S.SYNC_POD,    E.COMPLETED,          S.TERMINATING, "nothing is left to run; sidecars are stopped"),
        Row(S.SYNC_POD,    E.REJECTED,           S.TERMINATING, "it failed; what an earlier agent left of it goes"),
        Row(S.SYNC_POD,    E.DEADLINE_EXCEEDED,  S.TERMINATING, "it failed: it had its time"),
        Row(S.SYNC_POD,    E.DELETED,            S.TERMINATING, "its owner wants it gone, with grace"),
        Row(S.SYNC_POD,    E.REMOVED,            S.TERMINATING, "what no source wants does not run"),
        Row(S.SYNC_POD,    E.PREEMPTED,          S.TERMINATING, "it failed: a critical pod takes its place"),
        Row(S.SYNC_POD,    E.EVICTED,            S.TERMINATING, "it failed: the node takes back what it uses"),
        Row(S.SYNC_POD,    E.NODE_SHUTDOWN,      S.TERMINATING, "it failed: the machine goes down"),

        Row(S.TERMINATING, E.CONTAINERS_STOPPED, S.TERMINATED,  "stopping is believed when it is seen", seen_stopped),
        Row(S.TERMINATING, E.GRACE_SHORTENED,    S.TERMINATING, "the stop in flight is made again with less time"),
        Row(S.TERMINATING, E.CHANGED,            S.TERMINATING, "only the grace period of a new spec counts now"),
        Row(S.TERMINATING, E.DELETED,            S.TERMINATING, "deleted while it ends, or deleted once more"),
        Row(S.TERMINATING, E.REMOVED,            S.TERMINATING, "a forced deletion: the object went first"),
        Row(S.TERMINATING, E.PREEMPTED,          S.TERMINATING, "the critical pod waits for the same end"),
        Row(S.TERMINATING, E.EVICTED,            S.TERMINATING, "it ends already; it may have less time now"),
        Row(S.TERMINATING, E.NODE_SHUTDOWN,      S.TERMINATING, "it ends already; it may have less time now"),

        Row(S.TERMINATED,  E.RELEASED,           S.RELEASED,    "it holds nothing that others could want"),
        Row(S.TERMINATED,  E.GRACE_SHORTENED,    S.TERMINATED,  "nothing runs that could be given less time"),
        Row(S.TERMINATED,  E.CHANGED,            S.TERMINATED,  "often the echo of the agent's own last status"),
        Row(S.TERMINATED,  E.DELETED,            S.TERMINATED,  "completed pods are deleted later: clean up goes on"),
        Row(S.TERMINATED,  E.REMOVED,            S.TERMINATED,  "clean up needs no object in the API"),
        Row(S.TERMINATED,  E.PREEMPTED,          S.TERMINATED,  "its place is free already"),
        Row(S.TERMINATED,  E.EVICTED,            S.TERMINATED,  "nothing of it runs; what it left on the disk goes"),
        Row(S.TERMINATED,  E.NODE_SHUTDOWN,      S.TERMINATED,  "nothing of it runs"),

        Row(S.RELEASED,    E.KEPT,               S.FINISHED,    "its source has it, still or again: logs can be read, restarts count on"),
        Row(S.RELEASED,    E.CLEANED,            S.FINISHED,    "nothing of it is left on the node"),
        Row(S.RELEASED,    E.GRACE_SHORTENED,    S.RELEASED,    "nothing runs that could be given less time"),
        Row(S.RELEASED,    E.CHANGED,            S.RELEASED,    "often the echo of the agent's own last status"),
        Row(S.RELEASED,    E.DELETED,            S.RELEASED,    "deleted once more, before its task has ended"),
        Row(S.RELEASED,    E.REMOVED,            S.RELEASED,    "its source lets it go: nothing is kept"),
        Row(S.RELEASED,    E.PREEMPTED,          S.RELEASED,    "its place is free already"),
        Row(S.RELEASED,    E.EVICTED,            S.RELEASED,    "nothing of it runs; what it left on the disk goes"),
        Row(S.RELEASED,    E.NODE_SHUTDOWN,      S.RELEASED,    "nothing of it runs"),
    ),
)
# fmt: on

FAILING_ENDINGS = frozenset(
    {E.REJECTED, E.DEADLINE_EXCEEDED, E.PREEMPTED, E.EVICTED, E.NODE_SHUTDOWN}
)
"""The endings after which the pod's phase is Failed whatever its containers' exit codes are."""


def may_have_running_containers(state: PodState) -> bool:
    """True if a container of the pod may be running: if not, its volumes may go."""
    return state in (S.SYNC_POD, S.TERMINATING)


def own_ending(*, phase_is_terminal: bool, deadline_exceeded: bool) -> PodEvent | None:
    """Return the event that a pod's own status implies, or None if the pod should run.

    The phase says more than the deadline, because it is already final.
    """
    if phase_is_terminal:
        return E.COMPLETED
    return E.DEADLINE_EXCEEDED if deadline_exceeded else None


def is_deadline_exceeded(
    *, active_deadline_seconds: int | None, started_at_ns: int | None, now_ns: int
) -> bool:
    """True if spec.activeDeadlineSeconds is over, counted from status.startTime.

    Times are in nanoseconds since the epoch. A pod without a deadline or a start time never
    exceeds it.
    """
    if active_deadline_seconds is None or started_at_ns is None:
        return False
    return now_ns - started_at_ns >= active_deadline_seconds * 1_000_000_000


def effective_grace_seconds(
    current: int | None, *requested: int | None, default: int = DEFAULT_GRACE_SECONDS
) -> int:
    """Return the grace period of a pod that is being stopped, in seconds. It only ever shrinks.

    `current` is what the pod was given so far (None: nothing yet), `requested` what is now asked
    for (metadata.deletionGracePeriodSeconds, the override of a preemption, ...; None: no
    wish), `default` is spec.terminationGracePeriodSeconds and counts only if nobody asked for
    anything. Never less than a second: a forced deletion (0) still lets the process see
    SIGTERM, and a grace period of 0 would mean "unset" to some runtimes.
    """
    wishes = [wish for wish in (current, *requested) if wish is not None]
    return max(min(wishes, default=default), MINIMUM_GRACE_SECONDS)
