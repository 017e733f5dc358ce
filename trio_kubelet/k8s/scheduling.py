"""The scheduler's fields. A node checks tolerations and node affinity at admission, too."""

from enum import StrEnum

from attrs import field, frozen

from trio_kubelet.k8s.base import ApiType, Int32, Int64, Mandatory
from trio_kubelet.k8s.meta import LabelSelector


class TaintEffect(StrEnum):
    """The effect of a taint on pods that do not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class TolerationOperator(StrEnum):
    """Comparisons of a taint's value; Lt and Gt compare integers."""

    EXISTS = "Exists"
    EQUAL = "Equal"
    LT = "Lt"
    GT = "Gt"


class NodeSelectorOperator(StrEnum):
    """Comparisons of a node's label."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


class UnsatisfiableConstraintAction(StrEnum):
    """The consequence when pods cannot be spread as asked."""

    DO_NOT_SCHEDULE = "DoNotSchedule"
    SCHEDULE_ANYWAY = "ScheduleAnyway"


class NodeInclusionPolicy(StrEnum):
    """True if affinity or taints narrow the nodes counted for spreading."""

    IGNORE = "Ignore"
    HONOR = "Honor"


@frozen(kw_only=True, repr=False, eq=False)
class Toleration(ApiType):
    """A taint that the pod puts up with; an empty key with Exists tolerates all."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: Int64 | None = None


@frozen(kw_only=True, repr=False, eq=False)
class NodeSelectorRequirement(ApiType):
    """One condition on a label or field of the node."""

    key: Mandatory[str] = ""
    operator: Mandatory[str] = ""
    values: tuple[str, ...] = ()


@frozen(kw_only=True, repr=False, eq=False)
class NodeSelectorTerm(ApiType):
    """Conditions that must all hold; a term without any matches no node."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


@frozen(kw_only=True, repr=False, eq=False)
class NodeSelector(ApiType):
    """Terms of which at least one must hold."""

    node_selector_terms: Mandatory[tuple[NodeSelectorTerm, ...]] = ()


@frozen(kw_only=True, repr=False, eq=False)
class PreferredSchedulingTerm(ApiType):
    """A wish with a weight (1 to 100)."""

    weight: Mandatory[Int32] = 0
    preference: Mandatory[NodeSelectorTerm] = field(factory=NodeSelectorTerm)


@frozen(kw_only=True, repr=False, eq=False)
class NodeAffinity(ApiType):
    """On which nodes the pod may, or would rather, run."""

    preferred_during_scheduling_ignored_during_execution: tuple[PreferredSchedulingTerm, ...] = ()
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


@frozen(kw_only=True, repr=False, eq=False)
class PodAffinityTerm(ApiType):
    """Pods near which (within the topology key) this one belongs, or does not."""

    topology_key: Mandatory[str] = ""
    label_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()


@frozen(kw_only=True, repr=False, eq=False)
class WeightedPodAffinityTerm(ApiType):
    """A wish with a weight (1 to 100)."""

    weight: Mandatory[Int32] = 0
    pod_affinity_term: Mandatory[PodAffinityTerm] = field(factory=PodAffinityTerm)


@frozen(kw_only=True, repr=False, eq=False)
class PodAffinity(ApiType):
    """Pods to be near to."""

    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] = ()
    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()


@frozen(kw_only=True, repr=False, eq=False)
class PodAntiAffinity(ApiType):
    """Pods to keep away from."""

    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] = ()
    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()


@frozen(kw_only=True, repr=False, eq=False)
class Affinity(ApiType):
    """All rules of nearness."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAntiAffinity | None = None


@frozen(kw_only=True, repr=False, eq=False)
class TopologySpreadConstraint(ApiType):
    """The spread of pods over a topology."""

    max_skew: Mandatory[Int32] = 0
    topology_key: Mandatory[str] = ""
    when_unsatisfiable: Mandatory[str] = ""
    label_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    min_domains: Int32 | None = None
    node_affinity_policy: str = ""
    node_taints_policy: str = ""
