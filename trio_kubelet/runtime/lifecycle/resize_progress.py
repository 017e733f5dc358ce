"""The progress of each pod's resize: what it waits for, and how far it is.

The sync loop decides (`sync/resize_decisions.py`), the pod's task acts (`resizer.py`), the status
tells. All three go by the two walks of a pod through `state_machines/resize.py`. An agent that
starts finds out anew: what is pending is decided again, and what is in progress is the difference
of the two records of allocations. Plain methods, no waiting.
"""

from collections.abc import Iterable

from attrs import define, evolve, field, frozen

from state_machines.resize import (
    RESIZE,
    RESIZE_REQUEST,
    ResizeEvent,
    ResizeRequestEvent,
    ResizeRequestState,
    ResizeState,
)
from trio_kubelet.k8s import Pod, PodCondition, PodConditionType
from trio_kubelet.runtime.lifecycle.allocations import Allocations
from trio_kubelet.telemetry import Journal, Walk

DEFERRED, INFEASIBLE = "Deferred", "Infeasible"
"""The reasons of the condition PodResizePending."""
ERROR = "Error"
"""The reason of the condition PodResizeInProgress if the last try did not work."""

_UNDECIDED = frozenset({ResizeRequestState.PROPOSED, ResizeRequestState.DEFERRED})


@frozen(kw_only=True)
class ResizeCondition:
    """Reason, message and observed generation of a condition, as far as it has them."""

    reason: str = ""
    message: str = ""
    generation: int | None = None


@frozen(kw_only=True)
class ResizeStatus:
    """The conditions PodResizePending and PodResizeInProgress of a pod; None where not true."""

    pending: ResizeCondition | None = None
    in_progress: ResizeCondition | None = None


@define(kw_only=True)
class _ResizeRecord:
    """One pod whose resources have been asked to change."""

    request: Walk[ResizeRequestState, ResizeRequestEvent, None]
    actuation: Walk[ResizeState, ResizeEvent, None]
    asked: Pod | None = None
    status: ResizeStatus = field(factory=ResizeStatus)
    told: ResizeCondition | None = None
    """The word of an earlier agent on a pending resize."""


class ResizeProgress:
    """Owner of the resizes of all pods."""

    def __init__(self, allocations: Allocations, journal: Journal) -> None:
        self._allocations = allocations
        self._journal = journal
        self._pods: dict[str, _ResizeRecord] = {}

    def ask(self, pod: Pod) -> None:
        """Take note of what the spec of an admitted pod asks for."""
        uid, allocated = pod.metadata.uid, self._allocations.allocated(pod)
        known = self._pods.get(uid)
        if known is None:
            if allocated is pod and self._allocations.is_actuated(uid):
                return
            known = self._pods[uid] = self._begin(pod)
        if allocated is pod:
            known.request.step(ResizeRequestEvent.WITHDRAWN)
            known.status, known.told = evolve(known.status, pending=None), None
        elif known.asked is None or known.asked.spec != pod.spec:
            known.request.step(ResizeRequestEvent.ASKED)
        known.asked = pod

    def undecided(self) -> Iterable[str]:
        """Return the UIDs of the pods whose requests can be decided now."""
        return [uid for uid, each in self._pods.items() if each.request.state in _UNDECIDED]

    def is_proposed(self, uid: str) -> bool:
        """True if nothing was decided yet on what a pod asks for."""
        known = self._pods.get(uid)
        return known is not None and known.request.state is ResizeRequestState.PROPOSED

    def is_deferred(self, uid: str) -> bool:
        """True if a pod waits for what others hold."""
        known = self._pods.get(uid)
        return known is not None and known.request.state is ResizeRequestState.DEFERRED

    def grant(self, pod: Pod, trigger: str) -> None:
        """Allocate what a pod asks for. `trigger`: why it was decided now."""
        known = self._pods[pod.metadata.uid]
        known.request.step(ResizeRequestEvent.GRANTED, trigger=trigger)
        self._allocations.resize(pod)
        known.actuation.step(ResizeEvent.ALLOCATED)
        progress = ResizeCondition(generation=pod.metadata.generation)
        known.status, known.told = ResizeStatus(in_progress=progress), None

    def put_off(self, pod: Pod, reason: str, message: str) -> bool:
        """Keep a pod waiting, or refuse it; True if the status has not said so yet."""
        known = self._pods[pod.metadata.uid]
        event = ResizeRequestEvent.POSTPONED
        if reason == INFEASIBLE:
            event = ResizeRequestEvent.REFUSED
        known.request.step(event, cause=message)
        pending = ResizeCondition(
            reason=reason, message=message, generation=pod.metadata.generation
        )
        before, known.told = known.status.pending or known.told, None
        known.status = evolve(known.status, pending=pending)
        return pending != before

    def fail(self, uid: str, message: str) -> ResizeCondition | None:
        """A try has failed: return how the status says so, None if it does already."""
        known = self._pods.get(uid)
        if known is None or known.status.in_progress is None:
            return None
        known.actuation.step(ResizeEvent.FAILED, cause=message)
        failing = evolve(known.status.in_progress, reason=ERROR, message=message)
        if failing == known.status.in_progress:
            return None
        known.status = evolve(known.status, in_progress=failing)
        return failing

    def complete(self, uid: str) -> ResizeCondition | None:
        """Take note that a pod has what it is allocated, if it has.

        Return the condition that holds no more; None if none did, or still does.
        """
        known = self._pods.get(uid)
        if known is None or known.status.in_progress is None:
            return None
        if not self._allocations.is_actuated(uid):
            return None
        known.actuation.step(ResizeEvent.COMPLETED)
        done, known.status = known.status.in_progress, evolve(known.status, in_progress=None)
        return done

    def status(self, uid: str) -> ResizeStatus:
        """Return what the status of a pod says of its resize."""
        known = self._pods.get(uid)
        return known.status if known is not None else ResizeStatus()

    def counts(self) -> tuple[dict[str, int], int]:
        """Return how many resizes are pending, by reason, and how many are in progress."""
        statuses = [each.status for each in self._pods.values()]
        pending = {
            reason: sum(
                each.pending is not None and each.pending.reason == reason for each in statuses
            )
            for reason in (DEFERRED, INFEASIBLE)
        }
        return pending, sum(each.in_progress is not None for each in statuses)

    def forget(self, uid: str) -> None:
        """Drop what is known of a pod that has ended."""
        self._pods.pop(uid, None)

    def _begin(self, pod: Pod) -> _ResizeRecord:
        """The state in which a pod is found whose spec, allocation and containers differ."""
        is_actuated = self._allocations.is_actuated(pod.metadata.uid)
        state = ResizeState.ACTUATED if is_actuated else ResizeState.IN_PROGRESS
        key = pod.metadata.key
        progress = _told(pod, PodConditionType.RESIZE_IN_PROGRESS)
        generation = progress.generation if progress is not None else pod.metadata.generation
        return _ResizeRecord(
            request=Walk(RESIZE_REQUEST, ResizeRequestState.MET, self._journal, key),
            actuation=Walk(RESIZE, state, self._journal, key),
            status=ResizeStatus(
                in_progress=None if is_actuated else ResizeCondition(generation=generation)
            ),
            told=_told(pod, PodConditionType.RESIZE_PENDING),
        )


def _told(pod: Pod, kind: PodConditionType) -> ResizeCondition | None:
    """A condition as the API has it."""
    told: PodCondition | None = next((c for c in pod.status.conditions if c.type == kind), None)
    if told is None:
        return None
    return ResizeCondition(
        reason=told.reason, message=told.message, generation=told.observed_generation
    )
