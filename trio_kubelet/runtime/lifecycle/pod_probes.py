"""What the containers of a pod ask of its probes, and what they tell them."""

from collections.abc import Mapping
from typing import Protocol

from trio_kubelet.k8s import Container, Pod
from trio_kubelet.runtime.lifecycle.container_workers import ContainerWorkers
from trio_kubelet.runtime.observed import ObservedContainer


class PodProbes(Protocol):
    """The probes of one incarnation of a pod. Plain functions, called by its `PodContainers`."""

    def container_started(
        self, pod: Pod, container: Container, instance: ObservedContainer
    ) -> None:
        """An instance was seen to run, for the first time by this agent."""
        ...

    def container_ended(self, container_id: str) -> None:
        """An instance was seen not to run any more; its workers have been cancelled."""
        ...

    def pod_stops(self) -> None:
        """The pod is being stopped: no container of it is restarted any more."""
        ...

    def failed(self) -> Mapping[str, str]:
        """The probe that failed (`liveness`, `startup`), by the ids of containers to restart."""
        ...

    def unstarted(self) -> frozenset[str]:
        """The ids of running containers whose startup probe has not succeeded yet."""
        ...


class OpenProbes(Protocol):
    """Makes the probes of a new incarnation of a pod."""

    def __call__(self, pod: Pod, workers: ContainerWorkers) -> PodProbes:
        """Called once for each incarnation; `workers` run the probes of its containers."""
        ...
