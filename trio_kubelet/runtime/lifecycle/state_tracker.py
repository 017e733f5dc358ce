"""Each container's place in its machine (`state_machines/container.py`), and its journal.

What was seen of a container and what was decided about it become steps here and nowhere else,
so that the journal tells the whole story: why it waits, when it ran, how it ended, what followed.
"""

import structlog
from attrs import evolve, frozen

from state_machines.container import CONTAINER, ContainerEvent, ContainerStage, ExitEvidence
from trio_kubelet.k8s import Pod
from trio_kubelet.restarts import restart_terms
from trio_kubelet.runtime.lifecycle.actions import StartContainer
from trio_kubelet.runtime.lifecycle.memory import ContainerMemory, PodMemory
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState
from trio_kubelet.telemetry import Journal

log = structlog.get_logger("containers")

_SEEN = {
    ObservedState.CREATED: (ContainerEvent.CREATED, ContainerStage.CREATED),
    ObservedState.RUNNING: (ContainerEvent.STARTED, ContainerStage.RUNNING),
    ObservedState.EXITED: (ContainerEvent.EXITED, ContainerStage.EXITED),
    ObservedState.UNKNOWN: (ContainerEvent.LOST, ContainerStage.UNKNOWN),
}


@frozen
class ContainerStateTracker:
    """The states of one pod's containers, kept in its memory."""

    journal: Journal
    pod: Pod
    memory: PodMemory

    def observe(self, observed: ObservedPod) -> None:
        """Take note of what the runtime shows of the newest container of each name."""
        for container in {c.name: c for c in reversed(observed.containers)}.values():
            known = self._known(container.name)
            event, state = _SEEN[container.state]
            if container.id in known.left_behind or known.state is state:
                continue
            self._step(container.name, event, cause=_cause(container), container_id=container.id)
        present = frozenset(container.id for container in observed.containers)
        for name, known in self.memory.containers.items():
            self.memory.containers[name] = evolve(known, left_behind=known.left_behind & present)

    def decide(self, order: StartContainer) -> None:
        """A new instance is to take the place of the last one, if there was one.

        One that ended by itself is restarted, one that was stopped for it is replaced.
        """
        name, last = order.container.name, order.predecessor
        known = self._known(name)
        if last is None or known.state is ContainerStage.WAITING:
            return
        terms = restart_terms(self.pod, order.container, order.role)
        evidence = ExitEvidence(exit_code=last.exit_code, terms=terms)
        restarted = last.state is ObservedState.EXITED and CONTAINER.allows(
            known.state, ContainerEvent.RESTARTED, evidence
        )
        event = ContainerEvent.RESTARTED if restarted else ContainerEvent.REPLACED
        self._step(name, event, evidence, cause=f"exit code {last.exit_code}")
        self.memory.containers[name] = ContainerMemory(
            state=self._known(name).state, left_behind=known.left_behind | {last.id}
        )

    def _known(self, name: str) -> ContainerMemory:
        return self.memory.containers.get(name, ContainerMemory())

    def _step(
        self,
        name: str,
        event: ContainerEvent,
        evidence: ExitEvidence | None = None,
        *,
        cause: str = "",
        container_id: str = "",
    ) -> None:
        known = self._known(name)
        meta = self.pod.metadata
        key = f"{meta.namespace}/{meta.name}/{name}"
        if CONTAINER.allows(known.state, event, evidence):
            target = CONTAINER.step(known.state, event, evidence)
        else:
            # The runtime contradicts what it showed before: what it shows now is what is.
            log.error("container state transition refused", container=key, state=str(known.state))
            target = next(state for seen, state in _SEEN.values() if seen is event)
        self.journal.transition(
            CONTAINER.name,
            key,
            source=known.state,
            event=event,
            target=target,
            cause=cause or container_id,
        )
        self.memory.containers[name] = ContainerMemory(state=target, left_behind=known.left_behind)


def _cause(container: ObservedContainer) -> str:
    if container.state is not ObservedState.EXITED:
        return container.id
    reason = f" ({container.reason})" if container.reason else ""
    return f"exit code {container.exit_code}{reason}"
