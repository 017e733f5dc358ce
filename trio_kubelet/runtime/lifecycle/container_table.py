"""The containers of one pod: where each stands in its machine, and why it waits.

What was seen of a container and what was decided about it become steps of the machine
(`state_machines/container.py`) here and nowhere else, so that the journal tells the whole story:
why it waits, when it ran, how it ended, what followed. None of it outlives the agent, and an
agent that was restarted needs nothing of it.
"""

from collections.abc import Mapping

import structlog
from attrs import evolve, frozen

from state_machines.backoff import Backoff, BackoffPolicy, next_backoff
from state_machines.container import CONTAINER, ContainerEvent, ContainerStage, ExitEvidence
from trio_kubelet.k8s import Pod
from trio_kubelet.restarts import restart_terms
from trio_kubelet.runtime.lifecycle.actions import StartContainer
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState
from trio_kubelet.telemetry import Journal

log = structlog.get_logger("containers")

_SEEN = {
    ObservedState.CREATED: (ContainerEvent.CREATED, ContainerStage.CREATED),
    ObservedState.RUNNING: (ContainerEvent.STARTED, ContainerStage.RUNNING),
    ObservedState.EXITED: (ContainerEvent.EXITED, ContainerStage.EXITED),
    ObservedState.UNKNOWN: (ContainerEvent.LOST, ContainerStage.UNKNOWN),
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
    """What is known of one container.

    `left_behind` are the ids of earlier instances, whose end was taken note of already. `reason`
    is its last failed action, `backoff` how long it must wait after its next exit.
    """

    state: ContainerStage = ContainerStage.WAITING
    left_behind: frozenset[str] = frozenset()
    reason: Reason | None = None
    backoff: Backoff | None = None


@frozen(kw_only=True)
class Seen:
    """What an observation showed for the first time: instances that run, ids of some that ended."""

    started: tuple[ObservedContainer, ...] = ()
    ended: frozenset[str] = frozenset()


_UNKNOWN_YET = ContainerRecord()


class ContainerTable:
    """The records of one pod's containers, by name. Owned by its `PodContainers`."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._records: dict[str, ContainerRecord] = {}
        self._running: set[str] = set()

    def __getitem__(self, name: str) -> ContainerRecord:
        return self._records.get(name, _UNKNOWN_YET)

    @property
    def reasons(self) -> Mapping[str, Reason]:
        """Why containers wait, by name: the last failed action of each."""
        return {name: r.reason for name, r in self._records.items() if r.reason is not None}

    @property
    def backoffs(self) -> Mapping[str, Backoff]:
        """How long containers must wait after their next exits, by name."""
        return {name: r.backoff for name, r in self._records.items() if r.backoff is not None}

    def waits(self, name: str, reason: Reason) -> bool:
        """Take note of why a container waits; whether that is news."""
        is_news = self[name].reason != reason
        self._records[name] = evolve(self[name], reason=reason)
        return is_news

    def started(self, name: str) -> None:
        """It runs: nothing is the matter with it any more."""
        self._records[name] = evolve(self[name], reason=None)

    def attempt(self, order: StartContainer, policy: BackoffPolicy, now_ns: int) -> None:
        """Each start after an exit lengthens the back-off that the next exit will meet."""
        name, last = order.container.name, order.predecessor
        if last is None or last.state is not ObservedState.EXITED:
            return
        backoff = next_backoff(
            self[name].backoff, policy, failed_at_ns=last.finished_at, now_ns=now_ns
        )
        self._records[name] = evolve(self[name], backoff=backoff)

    def observe(self, pod: Pod, observed: ObservedPod) -> Seen:
        """Take note of what the runtime shows of the newest container of each name."""
        started: list[ObservedContainer] = []
        for container in {c.name: c for c in reversed(observed.containers)}.values():
            known = self[container.name]
            event, state = _SEEN[container.state]
            if container.id in known.left_behind or known.state is state:
                continue
            self._step(pod, container.name, event, cause=_cause(container))
            if state is ContainerStage.RUNNING:
                started.append(container)
                self._running.add(container.id)
        running = {c.id for c in observed.containers if c.state is ObservedState.RUNNING}
        ended, self._running = self._running - running, self._running & running
        present = frozenset(container.id for container in observed.containers)
        for name, known in self._records.items():
            self._records[name] = evolve(known, left_behind=known.left_behind & present)
        return Seen(started=tuple(started), ended=frozenset(ended))

    def decide(self, pod: Pod, order: StartContainer) -> None:
        """A new instance is to take the place of the last one, if there was one.

        One that ended by itself is restarted, one that was stopped for it is replaced.
        """
        name, last = order.container.name, order.predecessor
        known = self[name]
        if last is None or known.state is ContainerStage.WAITING:
            return
        terms = restart_terms(pod, order.container, order.role)
        evidence = ExitEvidence(exit_code=last.exit_code, terms=terms)
        restarted = last.state is ObservedState.EXITED and CONTAINER.allows(
            known.state, ContainerEvent.RESTARTED, evidence
        )
        event = ContainerEvent.RESTARTED if restarted else ContainerEvent.REPLACED
        self._step(pod, name, event, evidence, cause=f"exit code {last.exit_code}")
        self._records[name] = evolve(self[name], left_behind=known.left_behind | {last.id})

    def _step(
        self,
        pod: Pod,
        name: str,
        event: ContainerEvent,
        evidence: ExitEvidence | None = None,
        *,
        cause: str = "",
    ) -> None:
        known = self[name]
        key = f"{pod.metadata.namespace}/{pod.metadata.name}/{name}"
        if CONTAINER.allows(known.state, event, evidence):
            target = CONTAINER.step(known.state, event, evidence)
        else:
            # The runtime contradicts what it showed before: what it shows now is what is.
            log.error("container state transition refused", container=key, state=str(known.state))
            target = next(state for seen, state in _SEEN.values() if seen is event)
        self._journal.transition(
            CONTAINER.name, key, source=known.state, event=event, target=target, cause=cause
        )
        self._records[name] = evolve(known, state=target)


def _cause(container: ObservedContainer) -> str:
    if container.state is not ObservedState.EXITED:
        return container.id
    reason = f" ({container.reason})" if container.reason else ""
    return f"exit code {container.exit_code}{reason}"
