"""Requests to a pod's task, and how those that come in faster than it works add up.

A request says any of: here is a newer spec, look at the runtime again, end the pod. A mailbox
holds at most one: `merge` folds a new request into the one that waits. The newest spec wins,
endings add up (`state_machines/pod_ending.py`), everyone who waits for the end is remembered.
Pure: `pod_task.py` owns the box and wakes the task.
"""

import trio
from attrs import frozen

from state_machines.pod_ending import Ending, merge_endings
from trio_kubelet.k8s import Pod


@frozen(kw_only=True)
class PodRequest:
    """One request to a pod's task. `why`: who asked, without repeats, for the journal."""

    pod: Pod | None = None
    ending: Ending | None = None
    waiters: tuple[trio.Event, ...] = ()
    why: tuple[str, ...] = ()


def merge(pending: PodRequest | None, new: PodRequest) -> PodRequest:
    """One request that asks for all that `pending` and then `new` asked for."""
    if pending is None:
        return new
    return PodRequest(
        pod=pending.pod if new.pod is None else new.pod,
        ending=merge_endings(pending.ending, new.ending),
        waiters=pending.waiters + new.waiters,
        why=pending.why + tuple(why for why in new.why if why not in pending.why),
    )
