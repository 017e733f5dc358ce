"""The sum of a pod's endings, and the work that they cut short.

Many things can end a pod, several of them at once (`pod.py`). The first cause stays and is what
the status reports, a grace period only shrinks, and what goes with the pod goes. A pod that should
run is left in the middle of whatever is done for it; one that is stopped only for less time than
it was given.

The order among incarnations is here as well: those of one UID never overlap, and static pods of
one name take turns.
"""

from dataclasses import dataclass, replace

from state_machines.pod import (
    DEFAULT_GRACE_SECONDS,
    PodEvent,
    PodState,
    effective_grace_seconds,
    may_have_running_containers,
)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Why and how a pod ends."""

    causes: tuple[PodEvent, ...]
    """Events of the pod machine in the order in which they came; the status reports the first."""
    grace_seconds: int | None = None
    """Overrides terminationGracePeriodSeconds; None leaves it."""
    reason: str = ""
    """For a status whose phase becomes Failed; empty when the end is no failure."""
    message: str = ""
    """As `reason`."""
    disruption: str = ""
    """The message of the condition DisruptionTarget, empty where the end is no disruption."""
    delete_remains: bool = False
    """The pod's object is gone or going, so its containers, logs and folders go as well."""
    delete_content: bool = False
    """They go at once although the object stays, because the node needs the room."""

    @property
    def cause(self) -> PodEvent:
        """The event that ended the pod."""
        return self.causes[0]


def merge_endings(first: Ending | None, second: Ending | None) -> Ending | None:
    """Return the ending that satisfies both: the first one's cause and words, the shorter grace."""
    if first is None or second is None:
        return first or second
    return replace(
        first,
        causes=first.causes + tuple(c for c in second.causes if c not in first.causes),
        grace_seconds=_shorter(first.grace_seconds, second.grace_seconds),
        delete_remains=first.delete_remains or second.delete_remains,
        delete_content=first.delete_content or second.delete_content,
    )


def with_grace(
    ending: Ending, *, deletion_grace_seconds: int | None, own_grace_seconds: int | None
) -> Ending:
    """Return the ending with the grace period that its pod gives it, if nobody gave it one.

    `deletion_grace_seconds` is metadata.deletionGracePeriodSeconds, `own_grace_seconds` is
    spec.terminationGracePeriodSeconds. From then on later endings can only shorten it.
    """
    if ending.grace_seconds is not None:
        return ending
    default = DEFAULT_GRACE_SECONDS if own_grace_seconds is None else own_grace_seconds
    grace_seconds = effective_grace_seconds(None, deletion_grace_seconds, default=default)
    return replace(ending, grace_seconds=grace_seconds)


def new_events(known: Ending, merged: Ending) -> tuple[PodEvent, ...]:
    """Return what a pod that ends already takes note of when its ending became `merged`."""
    shortened = known.grace_seconds != merged.grace_seconds
    return merged.causes[len(known.causes) :] + (PodEvent.GRACE_SHORTENED,) * shortened


def cuts_work_short(state: PodState, known: Ending | None, new: Ending | None) -> bool:
    """True if a new ending makes what is under way for the pod pointless.

    `known` is all that was asked for before. What is done for a pod that should run is; a stop
    that is under way is only where it has less time now; what gives back what a pod held never.
    """
    if new is None:
        return False
    if state is PodState.SYNC_POD:
        return True
    merged = merge_endings(known, new)
    shortened = known and merged and known.grace_seconds != merged.grace_seconds
    return state is PodState.TERMINATING and bool(shortened)


def takes_turns(state: PodState, *, is_static: bool) -> bool:
    """True if an incarnation that begins in this state waits for those that had its name.

    A static pod does until they are released. One that only clears away what is left of a pod
    takes nothing that others of its name could want.
    """
    return is_static and may_have_running_containers(state)


def _shorter(first: int | None, second: int | None) -> int | None:
    """Return the smaller of two grace periods; None leaves the pod's own."""
    known = [grace for grace in (first, second) if grace is not None]
    return min(known, default=None)
