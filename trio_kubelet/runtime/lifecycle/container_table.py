"""The containers of one pod: where each stands in its machine, and why it waits.

What was seen of a container and what was decided about it become steps of the machine
(`state_machines/container.py`) here and nowhere else, so that the journal tells the whole story:
why it waits, when it ran, how it ended, what followed. An event that the table refuses is a bug:
it raises, and changes nothing. None of it outlives the agent: one that was restarted adopts what
it finds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import structlog
from attrs import evolve, frozen

from state_machines.backoff import Backoff, BackoffPolicy, next_backoff
from state_machines.container import (
    CONTAINER,
    FOLLOWED,
    LIVING,
    ContainerEvent,
    ContainerStage,
    RestartEvidence,
)
from trio_kubelet.k8s import Pod
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState
from trio_kubelet.telemetry import Journal, Walk

log = structlog.get_logger("containers")

CRASH_LOOP_BACK_OFF = "CrashLoopBackOff"
"""Why a container waits that is restarted, when its back-off is not over."""
SEEN = {
    ObservedState.CREATED: ContainerEvent.CREATED,
    ObservedState.RUNNING: ContainerEvent.STARTED,
    ObservedState.EXITED: ContainerEvent.EXITED,
    ObservedState.UNKNOWN: ContainerEvent.LOST,
}


@frozen(kw_only=True)
class Reason:
    """Why a container waits, in the words that its status shows.

    `until_ns`: before that time (nanoseconds since the epoch) trying again is no use; None where
    nobody knows.
    """

    reason: str
    message: str = ""
    until_ns: int | None = None


@frozen(kw_only=True)
class ContainerRecord:
    """The record of one container."""

    state: ContainerStage = ContainerStage.WAITING
    instance: ObservedContainer | None = None
    """The newest one, as it was seen last."""
    left_behind: frozenset[str] = frozenset()
    """The ids of earlier instances that are still listed."""
    is_restart: bool = False
    """The restart policy asked for what follows the newest instance: it waits for its back-off."""
    was_stopped: bool = False
    """The newest instance did not end by itself, it was stopped for its successor."""
    reason: Reason | None = None
    """The last failed action."""
    backoff: Backoff | None = None
    """The container's wait after its next exit."""

    @property
    def runs(self) -> bool:
        """True if the instance runs as far as is known."""
        return (
            self.state in LIVING - {ContainerStage.UNKNOWN}
            and self.instance is not None
            and self.instance.state is ObservedState.RUNNING
        )


@frozen(kw_only=True)
class Decision:
    """A decision on a container: an event that the table must allow.

    `is_restart` is as in `ContainerRecord`; `cause` tells the journal why.
    """

    name: str
    event: ContainerEvent
    evidence: RestartEvidence | None = None
    is_restart: bool = False
    cause: str = ""


@frozen(kw_only=True)
class InstanceChanges:
    """The news of an observation: instances that run, ids of some that ended."""

    started: tuple[ObservedContainer, ...] = ()
    ended: frozenset[str] = frozenset()


UNTOUCHED = ContainerRecord()
"""Of a container that nothing was seen of or decided about yet."""


class ContainerTable:
    """The records of one pod's containers, by name. Owned by its `PodContainers`."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._records: dict[str, ContainerRecord] = {}

    def __getitem__(self, name: str) -> ContainerRecord:
        return self._records.get(name, UNTOUCHED)

    @property
    def records(self) -> Mapping[str, ContainerRecord]:
        """All records as they are now."""
        return dict(self._records)

    @property
    def reasons(self) -> Mapping[str, Reason]:
        """Why containers wait, by name: the last failed action of each."""
        return {name: r.reason for name, r in self._records.items() if r.reason is not None}

    @property
    def restarting(self) -> frozenset[str]:
        """The names of containers that are to run, whatever their last instances ended with."""
        return frozenset(name for name, r in self._records.items() if r.state in FOLLOWED)

    def waits(self, name: str, reason: Reason) -> bool:
        """Record why a container waits; returns whether that is new."""
        is_news = self[name].reason != reason
        self._records[name] = evolve(self[name], reason=reason)
        return is_news

    def started(self, name: str, now_ns: int) -> None:
        """Record that a container was started: it has no reason to wait any more.

        Only from now on may it run so well that its back-off is forgotten.
        """
        known = self[name]
        backoff = known.backoff and replace(known.backoff, decided_at_ns=now_ns)
        self._records[name] = evolve(known, reason=None, backoff=backoff)

    def attempt(self, name: str, policy: BackoffPolicy, now_ns: int) -> None:
        """Each start after an exit lengthens the back-off that the next exit will meet."""
        known = self[name]
        if not known.is_restart or known.instance is None:
            return
        backoff = next_backoff(
            known.backoff, policy, failed_at_ns=known.instance.finished_at, now_ns=now_ns
        )
        self._records[name] = evolve(known, backoff=backoff)

    def observe(self, pod: Pod, observed: ObservedPod) -> InstanceChanges:
        """Step each container by what the runtime shows of it. Raises IllegalTransition."""
        running = {r.instance.id for r in self._records.values() if r.runs and r.instance}
        listed: dict[str, list[ObservedContainer]] = {name: [] for name in self._records}
        for container in observed.containers:
            listed.setdefault(container.name, []).append(container)
        for name, instances in listed.items():
            if not CONTAINER.is_terminal(self[name].state):
                self._observe(pod, name, instances)
        now = {r.instance.id: r.instance for r in self._records.values() if r.runs and r.instance}
        return InstanceChanges(
            started=tuple(each for id_, each in now.items() if id_ not in running),
            ended=frozenset(running - now.keys()),
        )

    def decide(self, pod: Pod, decisions: Iterable[Decision]) -> None:
        """Check decisions, then step by them. Raises IllegalTransition if one is refused."""
        decisions = tuple(decisions)
        for each in decisions:
            CONTAINER.row(self[each.name].state, each.event, each.evidence)
        for each in decisions:
            self._step(pod, each.name, each.event, each.evidence, cause=each.cause)
            self._records[each.name] = evolve(
                self[each.name],
                is_restart=each.is_restart,
                was_stopped=each.event is ContainerEvent.REPLACED,
            )

    def start_over(self) -> None:
        """Take no instance for one of the present sandbox any more: all containers restart.

        No state changes here: the decisions of the same plan have stepped the containers. What
        else is known of their last instances stays: how often they were started, and when.
        """
        for name, known in self._records.items():
            if known.instance is not None:
                instance = evolve(known.instance, sandbox_id="")
                self._records[name] = evolve(known, instance=instance)

    def stop(self, pod: Pod) -> None:
        """The pod is being stopped: nothing takes the place of what still runs."""
        living = [name for name, known in self._records.items() if known.state in LIVING]
        self.decide(pod, (Decision(name=name, event=ContainerEvent.STOPPED) for name in living))

    def remove(self, pod: Pod) -> None:
        """The pod is over: its records go. Raises IllegalTransition while something may run."""
        left = [n for n, known in self._records.items() if not CONTAINER.is_terminal(known.state)]
        self.decide(pod, (Decision(name=name, event=ContainerEvent.REMOVED) for name in left))

    def _observe(self, pod: Pod, name: str, instances: list[ObservedContainer]) -> None:
        """Step one container; `instances` are those that are listed, newest first."""
        known = self[name]
        ids = frozenset(each.id for each in instances)
        newest = instances[0] if instances and instances[0].id not in known.left_behind else None
        left_behind = (known.left_behind & ids) | {each.id for each in instances[1:]}
        known = self._records[name] = evolve(known, left_behind=left_behind)
        if known.state is not ContainerStage.WAITING and known.instance is not None:
            if known.instance.id not in ids:
                self._step(pod, name, ContainerEvent.GONE, cause=known.instance.id)
            elif newest is None:
                return
            if newest is not None and newest.id != known.instance.id:
                self._begin_anew(pod, newest)
        if newest is not None:
            self._records[name] = evolve(self[name], instance=newest)
            self._step(pod, name, SEEN[newest.state], cause=_cause(newest))

    def _begin_anew(self, pod: Pod, newest: ObservedContainer) -> None:
        """Another agent has made an instance: the container gets a new record, which begins anew.

        What was decided about an earlier instance says nothing of this one. The back-off and the
        last failure are the container's, and stay.
        """
        known, key = self[newest.name], _key(pod, newest.name)
        if known.state is ContainerStage.WAITING:
            return
        log.warning("container made by another agent found", container=key, id=newest.id)
        self._journal.note(CONTAINER.name, key, "MadeByAnother", cause=newest.id)
        self._records[newest.name] = ContainerRecord(
            left_behind=known.left_behind, reason=known.reason, backoff=known.backoff
        )

    def _step(
        self,
        pod: Pod,
        name: str,
        event: ContainerEvent,
        evidence: RestartEvidence | None = None,
        *,
        cause: str = "",
    ) -> None:
        known = self[name]
        walk = Walk(CONTAINER, known.state, self._journal, _key(pod, name))
        if not walk.step(event, evidence, cause=cause):
            return
        known = evolve(known, state=walk.state)
        if walk.state is ContainerStage.WAITING and known.instance is not None:
            known = _done_with(known, known.instance)
        self._records[name] = known


def _done_with(known: ContainerRecord, instance: ObservedContainer) -> ContainerRecord:
    """The record when another instance is to follow.

    One that never ran is forgotten: should it still be listed, it is found anew.
    """
    if instance.state is ObservedState.CREATED:
        return evolve(known, instance=None)
    return evolve(known, left_behind=known.left_behind | {instance.id})


def _key(pod: Pod, name: str) -> str:
    return f"{pod.metadata.key}/{name}"


def _cause(container: ObservedContainer) -> str:
    if container.state is not ObservedState.EXITED:
        return container.id
    reason = f" ({container.reason})" if container.reason else ""
    return f"exit code {container.exit_code}{reason}"
