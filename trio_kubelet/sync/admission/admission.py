"""The checks in their order, and which of them need to know what.

Without an API server there is no node object: what needs one (selectors, taints) is not checked
then. What the agent itself knows of its limits goes before what the node object says, which may
be from before a restart.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from attrs import frozen

from trio_kubelet.errors import UNEXPECTED_ADMISSION_ERROR
from trio_kubelet.k8s import Node, NodeFeatures, Pod, PodPhase, Quantity, TaintEffect
from trio_kubelet.pod_source import is_critical, is_static
from trio_kubelet.runtime.config.security import NO_USER_NAMESPACE
from trio_kubelet.sync.admission.admission_result import (
    AdmissionResult,
    Rejection,
    Shortage,
    predicate_failed,
)
from trio_kubelet.sync.admission.node_features import (
    missing_user_namespace,
    too_many_items,
    undeclared_features,
    unenforceable_apparmor,
    unknown_runtime_class,
    unsupported_groups_policy,
    wrong_os,
)
from trio_kubelet.sync.admission.node_match import matches_node, untolerated
from trio_kubelet.sync.admission.preemption import preempt
from trio_kubelet.sync.admission.resource_fit import PODS, ports_taken, shortages
from trio_kubelet.sync.admission.sysctls import forbidden_sysctl

NODE_AFFINITY = predicate_failed(
    "NodeAffinity", "node(s) didn't match Pod's node affinity/selector"
)
NODE_NAME = predicate_failed("NodeName", "node(s) didn't match the requested node name")
TAINT_TOLERATION = predicate_failed(
    "TaintToleration", "node(s) had taints that the pod didn't tolerate"
)

NODE_SHUTDOWN = Rejection(
    reason="NodeShutdown", message="Pod was rejected as the node is shutting down."
)


@frozen(kw_only=True)
class Admission:
    """Decides on pods by the node's limits.

    Call it with the pod and all others that hold resources.
    """

    max_pods: int
    """The most pods that the node takes (maxPods)."""
    allowed_sysctls: tuple[str, ...] = ()
    """The names and patterns of allowedUnsafeSysctls."""
    allocatable: Callable[[], Mapping[str, Quantity]]
    """Returns what pods may ask for in all, as far as the agent knows (Node.status.allocatable)."""
    node: Callable[[], Node | None] = lambda: None
    """Returns the Node object, None where there is none."""
    runtime_classes: bool = False
    """An API server tells of runtime classes."""
    apparmor: bool = True
    """The kernel enforces AppArmor profiles."""
    runtime_features: Callable[[], NodeFeatures | None] = lambda: None
    """Returns the features that the runtime tells of, None while it tells of none."""
    declared_features: Callable[[], Collection[str]] = tuple
    """Returns the features that the node declares."""
    no_user_namespace: Callable[[Pod], str] = lambda _pod: NO_USER_NAMESPACE
    """Returns why a pod cannot have a user namespace of its own, "" if it can."""
    compare_taints: bool = False
    """The gate TaintTolerationComparisonOperators."""
    under_pressure: Callable[[Pod], Rejection | None] = lambda _pod: None
    """Rejects pods that a node under pressure does not take."""
    goes_down: Callable[[], bool] = lambda: False
    """Returns True while the machine is being shut down."""
    devices: Callable[[Pod, Sequence[Pod]], str] = lambda _pod, _others: ""
    """Returns why a pod cannot have the devices that it needs beside others, "" if it can."""
    is_device: Callable[[str], bool] = lambda _name: False
    """True for resources that are counted by `devices`."""

    def __call__(self, pod: Pod, active: Iterable[Pod]) -> AdmissionResult:
        """None admits the pod.

        That it does not fit comes before what the node cannot do, as in the Go kubelet; but no
        pod is made to go for one that would be rejected all the same.
        """
        others, node = tuple(active), self.node()
        if rejection := self._refused(pod) or self._without_devices(pod, others):
            return rejection
        short = self._shortages(pod, others, node)
        unfit = self._unfit(pod, others, node)
        if short and not is_critical(pod):
            return short[0].rejection
        rejection = unfit or self._unable(pod)
        if rejection or not short:
            return rejection
        return preempt(pod, others, short)

    def fits(self, pod: Pod, others: Iterable[Pod]) -> bool:
        """True if a pod that may run here fits beside others, its ports of the host included."""
        beside = tuple(others)
        short = self._shortages(pod, beside, self.node()) or self._without_devices(pod, beside)
        return not short and ports_taken(pod, beside) is None

    def wants_newer_node(self, pod: Pod) -> bool:
        """True if a pod does not match the node; it may be here before the node's newest labels."""
        node = self.node()
        return node is not None and not matches_node(pod, node)

    def _refused(self, pod: Pod) -> Rejection | None:
        """The rejection that stays true however many pods go, and is told first."""
        return (
            too_many_items(pod)
            or (NODE_SHUTDOWN if self.goes_down() else None)
            or self.under_pressure(pod)
            or forbidden_sysctl(pod, self.allowed_sysctls)
            or (None if self.runtime_classes else unknown_runtime_class(pod))
            or wrong_os(pod)
            or unsupported_groups_policy(pod, self.runtime_features())
        )

    def _without_devices(self, pod: Pod, others: Sequence[Pod]) -> Rejection | None:
        message = self.devices(pod, others)
        return Rejection(reason=UNEXPECTED_ADMISSION_ERROR, message=message) if message else None

    def _shortages(
        self, pod: Pod, others: Sequence[Pod], node: Node | None
    ) -> tuple[Shortage, ...]:
        """The shortages. The agent's own numbers go before the node object's."""
        told = node.status.allocatable if node is not None else {}
        limits = {**told, PODS: Quantity(self.max_pods), **self.allocatable()}
        claimed = {
            resource
            for container in pod.spec.admitted_containers
            for resource in pod.status.claimed_resources(container.name)
        }
        limits = {
            name: amount
            for name, amount in limits.items()
            if name not in claimed and not self.is_device(name)
        }
        return shortages(pod, others, limits, limits_are_complete=node is not None)

    def _unfit(self, pod: Pod, others: Sequence[Pod], node: Node | None) -> Rejection | None:
        """The scheduler's reasons to reject; a static pod runs whatever the taints."""
        if node is not None and not matches_node(pod, node):
            return NODE_AFFINITY
        if node is not None and pod.spec.node_name not in ("", node.metadata.name):
            return NODE_NAME
        if taken := ports_taken(pod, others):
            return taken
        if node is None or is_static(pod):
            return None
        taint = untolerated(
            pod, node.spec.taints, effect=TaintEffect.NO_EXECUTE, compare=self.compare_taints
        )
        return None if taint is None else TAINT_TOLERATION

    def _unable(self, pod: Pod) -> Rejection | None:
        """The rejection for what the machine and the agent cannot do."""
        return (
            unenforceable_apparmor(pod, enabled=self.apparmor)
            or undeclared_features(pod, self.declared_features())
            or missing_user_namespace(pod, self.no_user_namespace(pod))
        )


def was_admitted(pod: Pod, *, runs: bool) -> bool:
    """True if an agent of this node admitted the pod once; then it is not asked again.

    `runs`: something of it runs. Else its status tells: only who admitted a pod gives it a start
    time. One that was rejected is over, which nobody has to decide again either.
    """
    status = pod.status
    return runs or status.start_time is not None or status.phase not in ("", PodPhase.PENDING)
