"""The values that a status is made of beside the pod and what the runtime shows: values only."""

from collections.abc import Mapping
from functools import cached_property

from attrs import field, frozen

from state_machines.probe import ProbeVerdict
from trio_kubelet.k8s import Pod, PodStatus, ResourceRequirements, ResourceStatus
from trio_kubelet.runtime.lifecycle.container_table import Reason
from trio_kubelet.runtime.lifecycle.resize_progress import ResizeStatus
from trio_kubelet.runtime.observed import ObservedPod, ObservedState

POD_REJECTED = "Pod was rejected: "
"""The beginning of the message of a pod that was not admitted."""


@frozen(kw_only=True)
class Failure:
    """The words of the status of a pod that was rejected, disrupted, or over its deadline.

    `rejected`: nothing of it was ever to run here. `disruption` is the message of its condition
    DisruptionTarget (KEP-3329), empty where the failure was no disruption.
    """

    reason: str
    message: str = ""
    rejected: bool = False
    disruption: str = ""


@frozen(kw_only=True)
class NodeIdentity:
    """The node's facts in statuses.

    `host_ips`: its addresses, the primary one first; at most one more, of the other family.
    `runtime_name`: what stands before container ids. `recursive_read_only` names the
    runtime handlers that make read-only mounts recursively so (KEP-3857).
    """

    host_ips: tuple[str, ...] = ()
    runtime_name: str = "containerd"
    recursive_read_only: frozenset[str] = frozenset()
    tells_image_digests: bool = False
    """Statuses tell the digests of image volumes (gate ImageVolumeWithDigest)."""


@frozen(kw_only=True)
class PodStatusContext:
    """The facts that `pod_status` needs beside the pod and what the runtime shows of it."""

    previous: PodStatus
    """The status before this one."""
    now_ns: int
    """Nanoseconds since the epoch."""
    node: NodeIdentity
    reasons: Mapping[str, Reason] = field(factory=dict)
    """Why containers wait, by name."""
    restarting: frozenset[str] = frozenset()
    """The names of containers that are to run, whatever they ended with."""
    failure: Failure | None = None
    """Why the pod failed if it was not for its containers."""
    stopped: bool = False
    """Nothing of the pod runs, nor ever will."""
    probed: Mapping[str, ProbeVerdict] = field(factory=dict)
    """What probes say, by container id."""
    actuated: Mapping[str, ResourceRequirements] = field(factory=dict)
    """The resources that containers have, by name, where not those that they were allocated."""
    devices: Mapping[str, tuple[ResourceStatus, ...]] = field(factory=dict)
    """The health of the devices of containers, by name."""
    resize: ResizeStatus = field(factory=ResizeStatus)
    """How far the pod is on the way to the resources that its source wants it to have."""


@frozen(kw_only=True)
class StatusContext:
    """The facts that are the same for the statuses of all containers of a pod."""

    pod: Pod
    observed: ObservedPod
    of_pod: PodStatusContext
    recursive_read_only: bool
    """The pod's containers will get such mounts."""

    @cached_property
    def any_regular_made(self) -> bool:
        """True if the runtime has a regular container: then the init containers are through."""
        names = {container.name for container in self.pod.spec.containers}
        return any(
            container.name in names and container.state is not ObservedState.UNKNOWN
            for container in self.observed.containers
        )
