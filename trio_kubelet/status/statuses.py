"""The newest status of each pod, and who wants to know of changes.

Each pod's own task reports what it sees; nothing here waits, so reports never interleave. For a
pod of which nothing was reported yet, the status that came with it counts as the one before:
after a restart of the agent, transition times and restart counts go on from what the API has.
"""

from collections.abc import Callable, Mapping

from attrs import evolve, field, frozen

from state_machines.probe import ProbeVerdict
from trio_kubelet.k8s import Pod, PodStatus, ResourceStatus
from trio_kubelet.runtime.handlers import RuntimeFeatures
from trio_kubelet.runtime.lifecycle.allocations import Allocations
from trio_kubelet.runtime.lifecycle.container_table import Reason
from trio_kubelet.runtime.lifecycle.resize_progress import ResizeProgress
from trio_kubelet.runtime.observed import ObservedPod
from trio_kubelet.status.context import Failure, NodeIdentity, PodStatusContext
from trio_kubelet.status.generate import pod_status
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.clock import Clock


class Statuses:
    """Owner of the newest status of each pod. `on_change` is called with pod and new status."""

    def __init__(self) -> None:
        self.on_change: Callbacks[[Pod, PodStatus]] = Callbacks()
        self._statuses: dict[str, PodStatus] = {}

    def get(self, uid: str) -> PodStatus | None:
        """The newest status of a pod, None if there was no report."""
        return self._statuses.get(uid)

    def with_status(self, pod: Pod) -> Pod:
        """The pod with its newest status; as it is if there was no report."""
        status = self._statuses.get(pod.metadata.uid)
        return pod if status is None else evolve(pod, status=status)

    def put(self, pod: Pod, status: PodStatus) -> None:
        """Store a pod's status, and tell of it if it is a new one."""
        previous = self._statuses.get(pod.metadata.uid, pod.status)
        self._statuses[pod.metadata.uid] = status
        if status != previous:
            self.on_change.call(pod, status)

    def forget(self, uid: str) -> None:
        """Drop the status of a pod that is gone."""
        self._statuses.pop(uid, None)


@frozen(kw_only=True)
class StatusReporter:
    """Makes the statuses of all pods of a node.

    `probed` is what the probes say by container id; its owner may change it at any time, and
    the next report shows it. `runtime_features` returns what the runtime said last of its handlers,
    `devices` the health of a pod's devices by container. `allocations` has what
    pods were allocated, `resizes` what is said of their change.
    """

    statuses: Statuses
    clock: Clock
    node: NodeIdentity
    allocations: Allocations
    resizes: ResizeProgress
    runtime_features: Callable[[], RuntimeFeatures] = RuntimeFeatures
    devices: Callable[[Pod], Mapping[str, tuple[ResourceStatus, ...]]] = lambda _pod: {}
    probed: Mapping[str, ProbeVerdict] = field(factory=dict)

    def make(
        self,
        pod: Pod,
        observed: ObservedPod,
        reasons: Mapping[str, Reason],
        failure: Failure | None,
        *,
        restarting: frozenset[str],
        stopped: bool,
    ) -> PodStatus:
        """Make the status as of now. The arguments are as in `PodStatusContext`."""
        uid = pod.metadata.uid
        allocated = self.allocations.allocated(pod)
        read_only = self.runtime_features().recursive_read_only
        return pod_status(
            allocated,
            observed,
            PodStatusContext(
                previous=self.statuses.get(uid) or pod.status,
                now_ns=self.clock.now_ns(),
                node=evolve(self.node, recursive_read_only=read_only),
                reasons=reasons,
                restarting=restarting,
                failure=failure,
                stopped=stopped,
                probed=self.probed,
                actuated=self.allocations.actuated(uid),
                devices=self.devices(pod),
                resize=self.resizes.status(uid),
            ),
        )

    def put(self, pod: Pod, status: PodStatus) -> None:
        """Store a status, and tell of it if it is a new one."""
        self.statuses.put(pod, status)

    def forget(self, uid: str) -> None:
        """Drop the status of a pod that is gone."""
        self.statuses.forget(uid)
