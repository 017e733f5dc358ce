"""Decisions on resizes: which pods may have the resources of their newest specs.

A pod whose spec asks for other resources than it is allocated is decided at once. What does not
fit now waits, and all that wait are decided again in their order when resources may have become
free, because pods have ended or ask for less, and every three minutes: not whenever any pod
changes, which its author may do fifty times a second. Then the containers of those that wait are
not looked at again. A pod of which nothing is decided keeps what it has, also over a restart of the
agent, which decides as soon as all sources have spoken: before, pods that hold resources may not be
known yet.

Plain methods that decide; the sync loop is the owner.
"""

from collections.abc import Iterable, Sequence

import structlog
from attrs import define, field

from trio_kubelet.k8s import TERMINAL_PHASES, Pod, PodConditionType, Quantity
from trio_kubelet.resources import pod_requests
from trio_kubelet.runtime.lifecycle.allocations import Allocations
from trio_kubelet.runtime.lifecycle.resize_progress import INFEASIBLE, ResizeProgress
from trio_kubelet.sources import PodOperation
from trio_kubelet.status import Statuses
from trio_kubelet.status.container_parts import resize_message
from trio_kubelet.sync.admission.resize_fit import (
    RESIZABLE,
    Amounts,
    ResizeAdmission,
    resize_order,
    shrinks,
)
from trio_kubelet.sync.store import PodStore
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.telemetry import EventRecorder, EventType

log = structlog.get_logger("sync")

ADDED, UPDATED, REMOVED = "pods_added", "pod_updated", "pods_removed"
TERMINATED, PERIODIC = "pod_terminated", "periodic_retry"
"""Why pending resizes are decided, in the words of the Go kubelet's metric."""

TRIGGERS = {
    PodOperation.ADD: ADDED,
    PodOperation.UPDATE: UPDATED,
    PodOperation.DELETE: UPDATED,
    PodOperation.REMOVE: REMOVED,
}
"""The updates of sources after which resizes are decided."""

FREEING = frozenset({REMOVED, TERMINATED, PERIODIC})
"""The occasions on which resources may have become free."""


@define(kw_only=True)
class ResizeDecisions:
    """Decides on the resizes of all pods.

    `on_decided` is called with each pod whose resize was granted, postponed or refused, for its
    task to act and to tell. For who counts: `on_asked` is called with a pod before and after its
    spec changed, `on_refused` with the detail of a refusal, `on_deferred_granted` with what was the
    occasion.
    """

    _resizes: ResizeProgress
    _allocations: Allocations
    _statuses: Statuses
    _store: PodStore
    _admission: ResizeAdmission
    _recorder: EventRecorder
    on_decided: Callbacks[[Pod]] = field(init=False, factory=Callbacks)
    on_asked: Callbacks[[Pod, Pod]] = field(init=False, factory=Callbacks)
    on_refused: Callbacks[[str]] = field(init=False, factory=Callbacks)
    on_deferred_granted: Callbacks[[str]] = field(init=False, factory=Callbacks)

    def ask(self, pod: Pod, before: Pod | None = None) -> None:
        """Take note of what an admitted pod asks for; `before` is the former version of it."""
        self._resizes.ask(pod)
        if before is not None and before.spec != pod.spec:
            self.on_asked.call(before, pod)

    def decide(self, trigger: str) -> None:
        """Decide on what was asked and, if resources may be free now, on what was postponed."""
        pending = self._pending(trigger)
        if not pending:
            return
        used = _sums(self._allocations.allocated(each.pod) for each in self._store.active())
        for pod in sorted(pending, key=self._order):
            try:
                used = self._decide_one(pod, used, trigger)
            except Exception:
                log.exception("resize decision failed", pod=pod.metadata.key)

    def _pending(self, trigger: str) -> Sequence[Pod]:
        stored = (self._store.get(uid) for uid in self._resizes.undecided())
        pending = [each.pod for each in stored if each is not None and _may_change(each.pod)]
        if trigger in FREEING:
            return pending
        asked = [pod for pod in pending if self._resizes.is_proposed(pod.metadata.uid)]
        if any(shrinks(pod, self._allocations.allocated(pod)) for pod in asked):
            return pending
        return asked

    def forget(self, uid: str) -> None:
        """Drop what is known of a pod that has ended."""
        self._resizes.forget(uid)

    def _order(self, pod: Pod) -> tuple[object, ...]:
        status = self._statuses.get(pod.metadata.uid) or pod.status
        since = next(
            (
                condition.last_transition_time.ns
                for condition in status.conditions
                if condition.type == PodConditionType.RESIZE_PENDING
                and condition.last_transition_time is not None
            ),
            None,
        )
        return resize_order(pod, self._allocations.allocated(pod), since)

    def _decide_one(self, pod: Pod, used: Amounts, trigger: str) -> Amounts:
        """Decide on one pod; return what pods hold together after that."""
        allocated = self._allocations.allocated(pod)
        others = _without(used, allocated)
        refusal = None
        if self._resizes.is_proposed(pod.metadata.uid):
            refusal = self._admission.infeasible(pod, allocated)
        refusal = refusal or self._admission.unfit(pod, allocated, others)
        if refusal is None:
            if self._is_deferred(pod):
                self.on_deferred_granted.call(trigger)
            self._resizes.grant(pod, trigger)
            self._event(pod, EventType.NORMAL, "ResizeStarted", resize_message(pod, "started"))
            self.on_decided.call(pod)
            return _with(others, pod)
        reason, why = refusal.reason, refusal.message
        if reason != INFEASIBLE and trigger != PERIODIC and self._is_deferred(pod):
            return used  # How much others hold by now is told at times: they may change often.
        if reason == INFEASIBLE:
            self.on_refused.call(refusal.detail)
        if self._resizes.put_off(pod, reason, why):
            event = "ResizeInfeasible" if reason == INFEASIBLE else "ResizeDeferred"
            self._event(pod, EventType.WARNING, event, resize_message(pod, reason, why))
            self.on_decided.call(pod)
        return used

    def _is_deferred(self, pod: Pod) -> bool:
        return self._resizes.is_deferred(pod.metadata.uid)

    def _event(self, pod: Pod, kind: EventType, reason: str, message: str) -> None:
        self._recorder.pod(pod, kind, reason, message)


def _may_change(pod: Pod) -> bool:
    """True unless the pod is to go, or is over: it keeps what it has to its end."""
    return pod.metadata.deletion_timestamp is None and pod.status.phase not in TERMINAL_PHASES


def _sums(pods: Iterable[Pod]) -> Amounts:
    total: Amounts = {}
    for pod in pods:
        total = _with(total, pod)
    return total


def _with(amounts: Amounts, pod: Pod) -> Amounts:
    requests = pod_requests(pod)
    zero = Quantity(0)
    return {name: amounts.get(name, zero) + requests.get(name, zero) for name in RESIZABLE}


def _without(amounts: Amounts, pod: Pod) -> Amounts:
    requests = pod_requests(pod)
    zero = Quantity(0)
    return {name: amounts.get(name, zero) - requests.get(name, zero) for name in RESIZABLE}
