"""What a pod's task is asked to do, and how requests that come in faster than it works add up.

A request says any of: here is a newer spec, look at the runtime again, end the pod. A mailbox
holds at most one: `merge` folds a new request into the one that waits. The newest spec wins; an
ending is sticky and its first cause stays; a grace period only shrinks; everyone who waits for
the end is remembered. Pure: `pod_task.py` owns the box and wakes the task.
"""

from typing import Protocol

from attrs import evolve, frozen

from state_machines.pod import DEFAULT_GRACE_SECONDS, PodEvent, effective_grace_seconds
from trio_kubelet.k8s import Pod


class Waiter(Protocol):
    """Somebody who waits for a pod's end; a `trio.Event` in practice."""

    def set(self) -> object:
        """Called once the pod's containers have stopped."""
        ...


@frozen(kw_only=True)
class Ending:
    """Why and how a pod ends.

    `causes` are the events of the pod machine in the order in which they came; the first is
    what the status reports. `grace_seconds` overrides terminationGracePeriodSeconds; None
    leaves it. `reason` and `message` go into a status whose phase becomes Failed; they are
    empty when the end is no failure. `disruption` is the message of the condition
    DisruptionTarget, empty where the end is no disruption. `delete_remains`: the pod's object
    is gone or going, so its containers, logs and folders go as well.
    """

    causes: tuple[PodEvent, ...]
    grace_seconds: int | None = None
    reason: str = ""
    message: str = ""
    disruption: str = ""
    delete_remains: bool = False

    @property
    def cause(self) -> PodEvent:
        """The event that ended the pod."""
        return self.causes[0]


@frozen(kw_only=True)
class Request:
    """One request to a pod's task. `why` tells the journal who asked, without repeats."""

    pod: Pod | None = None
    ending: Ending | None = None
    waiters: tuple[Waiter, ...] = ()
    why: tuple[str, ...] = ()


def merge(pending: Request | None, new: Request) -> Request:
    """One request that asks for all that `pending` and then `new` asked for."""
    if pending is None:
        return new
    return Request(
        pod=pending.pod if new.pod is None else new.pod,
        ending=merge_endings(pending.ending, new.ending),
        waiters=pending.waiters + new.waiters,
        why=pending.why + tuple(why for why in new.why if why not in pending.why),
    )


def merge_endings(first: Ending | None, second: Ending | None) -> Ending | None:
    """The ending that satisfies both: the first one's cause and words, the shorter grace."""
    if first is None or second is None:
        return first or second
    return evolve(
        first,
        causes=first.causes + tuple(c for c in second.causes if c not in first.causes),
        grace_seconds=_shorter(first.grace_seconds, second.grace_seconds),
        delete_remains=first.delete_remains or second.delete_remains,
    )


def with_grace_of(pod: Pod, ending: Ending) -> Ending:
    """The ending with the grace period that its pod gives it, if nobody gave it one.

    From then on later endings can only shorten it.
    """
    if ending.grace_seconds is not None:
        return ending
    own = pod.spec.termination_grace_period_seconds
    grace_seconds = effective_grace_seconds(
        None,
        pod.metadata.deletion_grace_period_seconds,
        default=DEFAULT_GRACE_SECONDS if own is None else own,
    )
    return evolve(ending, grace_seconds=grace_seconds)


def _shorter(first: int | None, second: int | None) -> int | None:
    """The smaller of two grace periods; None leaves the pod's own."""
    given = [grace for grace in (first, second) if grace is not None]
    return min(given, default=None)
