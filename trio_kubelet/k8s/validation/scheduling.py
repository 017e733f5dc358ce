"""Affinity, tolerations and spreading."""

from collections.abc import Iterator

from trio_kubelet.k8s.errors import (
    FieldError,
    all_invalid,
    duplicate,
    forbidden,
    invalid,
    required,
    unsupported,
)
from trio_kubelet.k8s.meta import LabelSelector
from trio_kubelet.k8s.pod import PodSpec
from trio_kubelet.k8s.scheduling import (
    NodeAffinity,
    NodeInclusionPolicy,
    NodeSelectorOperator,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PodAffinity,
    PodAffinityTerm,
    PodAntiAffinity,
    TaintEffect,
    Toleration,
    TolerationOperator,
    TopologySpreadConstraint,
    UnsatisfiableConstraintAction,
)
from trio_kubelet.k8s.validation import formats
from trio_kubelet.k8s.validation.metadata import (
    check_label_selector,
    check_label_values,
    check_labels,
    check_selector_values,
)

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_COMPARES_INTEGERS = {NodeSelectorOperator.GT, NodeSelectorOperator.LT}
_FIELD_OPERATORS = {NodeSelectorOperator.IN, NodeSelectorOperator.NOT_IN}
_NODE_NAME_FIELD = "metadata.name"


def check_scheduling(spec: PodSpec) -> Iterator[FieldError]:
    """Check everything that the scheduler goes by."""
    yield from check_labels(spec.node_selector, "spec.nodeSelector")
    for index, toleration in enumerate(spec.tolerations):
        yield from _check_toleration(toleration, f"spec.tolerations[{index}]")
    yield from _check_spreading(spec.topology_spread_constraints, "spec.topologySpreadConstraints")
    yield from _check_gates(spec)
    if spec.affinity is None:
        return
    if spec.affinity.node_affinity is not None:
        yield from _check_node_affinity(spec.affinity.node_affinity, "spec.affinity.nodeAffinity")
    affinities = {
        "podAffinity": spec.affinity.pod_affinity,
        "podAntiAffinity": spec.affinity.pod_anti_affinity,
    }
    for name, affinity in affinities.items():
        if affinity is not None:
            yield from _check_pod_affinity(affinity, f"spec.affinity.{name}")


def _check_toleration(toleration: Toleration, path: str) -> Iterator[FieldError]:
    if toleration.key:
        yield from all_invalid(
            f"{path}.key", toleration.key, formats.qualified_name(toleration.key)
        )
    elif toleration.operator != TolerationOperator.EXISTS:
        detail = (
            'operator must be Exists when `key` is empty, which means "match all values'
            ' and all keys"'
        )
        yield invalid(f"{path}.operator", toleration.operator, detail)
    if toleration.toleration_seconds is not None and toleration.effect != TaintEffect.NO_EXECUTE:
        detail = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        yield invalid(f"{path}.effect", toleration.effect, detail)
    yield from _check_toleration_value(toleration, path)
    if toleration.effect and toleration.effect not in list(TaintEffect):
        yield unsupported(f"{path}.effect", toleration.effect, TaintEffect)


def _check_toleration_value(toleration: Toleration, path: str) -> Iterator[FieldError]:
    operator, value = toleration.operator, toleration.value
    if operator in ("", TolerationOperator.EQUAL):
        yield from all_invalid(f"{path}.value", value, formats.label_value(value))
    elif operator == TolerationOperator.EXISTS:
        if value:
            yield invalid(f"{path}.value", value, "value must be empty when `operator` is 'Exists'")
    elif operator not in list(TolerationOperator):
        yield unsupported(f"{path}.operator", operator, TolerationOperator)
    elif not _is_integer(value):
        yield invalid(f"{path}.value", value, "must be an integer when `operator` is 'Lt' or 'Gt'")


def _is_integer(value: str) -> bool:
    return value.removeprefix("-").isascii() and value.removeprefix("-").isdigit()


def _check_gates(spec: PodSpec) -> Iterator[FieldError]:
    for index, readiness in enumerate(spec.readiness_gates):
        where, name = f"spec.readinessGates[{index}].conditionType", readiness.condition_type
        yield from all_invalid(where, name, formats.qualified_name(name))
    seen: set[str] = set()
    for index, gate in enumerate(spec.scheduling_gates):
        where = f"spec.schedulingGates[{index}]"
        yield from all_invalid(where, gate.name, formats.qualified_name(gate.name))
        if gate.name in seen:
            yield duplicate(where, gate.name)
        seen.add(gate.name)


def _check_node_affinity(affinity: NodeAffinity, path: str) -> Iterator[FieldError]:
    selector = affinity.required_during_scheduling_ignored_during_execution
    if selector is not None:
        where = f"{path}.{_REQUIRED}.nodeSelectorTerms"
        if not selector.node_selector_terms:
            yield required(where, "must have at least one node selector term")
        for index, term in enumerate(selector.node_selector_terms):
            yield from _check_term(term, f"{where}[{index}]", check_values=True)
    preferred = affinity.preferred_during_scheduling_ignored_during_execution
    for index, wish in enumerate(preferred):
        where = f"{path}.{_PREFERRED}[{index}]"
        yield from _check_weight(wish.weight, where)
        yield from _check_term(wish.preference, f"{where}.preference", check_values=False)


def _check_weight(weight: int, path: str) -> Iterator[FieldError]:
    if not 1 <= weight <= 100:
        yield invalid(f"{path}.weight", weight, "must be in the range 1-100")


def _check_term(term: NodeSelectorTerm, path: str, check_values: bool) -> Iterator[FieldError]:
    """Check one term; wishes may have values that no label can have."""
    for index, one in enumerate(term.match_expressions):
        where = f"{path}.matchExpressions[{index}]"
        if one.operator in _COMPARES_INTEGERS:
            if len(one.values) != 1:
                detail = "must be specified single value when `operator` is 'Lt' or 'Gt'"
                yield required(f"{where}.values", detail)
        else:
            yield from check_selector_values(one.operator, one.values, where)
        yield from all_invalid(f"{where}.key", one.key, formats.qualified_name(one.key))
        if check_values:
            yield from check_label_values(one.values, f"{where}.values")
    for index, one in enumerate(term.match_fields):
        yield from _check_node_field(one, f"{path}.matchFields[{index}]")


def _check_node_field(one: NodeSelectorRequirement, path: str) -> Iterator[FieldError]:
    if one.operator not in _FIELD_OPERATORS:
        yield invalid(f"{path}.operator", one.operator, "not a valid selector operator")
    elif len(one.values) != 1:
        detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        yield required(f"{path}.values", detail)
    if one.key != _NODE_NAME_FIELD:
        yield invalid(f"{path}.key", one.key, "not a valid field selector key")
        return
    for index, value in enumerate(one.values):
        yield from all_invalid(f"{path}.values[{index}]", value, formats.dns_subdomain(value))


def _check_pod_affinity(affinity: PodAffinity | PodAntiAffinity, path: str) -> Iterator[FieldError]:
    for index, term in enumerate(affinity.required_during_scheduling_ignored_during_execution):
        yield from _check_affinity_term(term, f"{path}.{_REQUIRED}[{index}]")
    for index, wish in enumerate(affinity.preferred_during_scheduling_ignored_during_execution):
        where = f"{path}.{_PREFERRED}[{index}]"
        yield from _check_weight(wish.weight, where)
        yield from _check_affinity_term(wish.pod_affinity_term, f"{where}.podAffinityTerm")


def _check_affinity_term(term: PodAffinityTerm, path: str) -> Iterator[FieldError]:
    yield from check_label_selector(term.label_selector, f"{path}.labelSelector")
    yield from check_label_selector(term.namespace_selector, f"{path}.namespaceSelector")
    for index, namespace in enumerate(term.namespaces):
        problems = formats.dns_label(namespace)
        yield from all_invalid(f"{path}.namespaces[{index}]", namespace, problems)
    keys = {"matchLabelKeys": term.match_label_keys, "mismatchLabelKeys": term.mismatch_label_keys}
    for name, names in keys.items():
        yield from _check_label_keys(names, term.label_selector, f"{path}.{name}")
    for index, key in enumerate(term.match_label_keys):
        if key in term.mismatch_label_keys:
            detail = "exists in both matchLabelKeys and mismatchLabelKeys"
            yield invalid(f"{path}.matchLabelKeys[{index}]", key, detail)
    if not term.topology_key:
        yield required(f"{path}.topologyKey", "can not be empty")
    else:
        problems = formats.qualified_name(term.topology_key)
        yield from all_invalid(f"{path}.topologyKey", term.topology_key, problems)


def _check_label_keys(
    keys: tuple[str, ...], selector: LabelSelector | None, path: str
) -> Iterator[FieldError]:
    if keys and selector is None:
        yield forbidden(path, "must not be specified when labelSelector is not set")
    for index, key in enumerate(keys):
        yield from all_invalid(f"{path}[{index}]", key, formats.qualified_name(key))


def _check_spreading(
    constraints: tuple[TopologySpreadConstraint, ...], path: str
) -> Iterator[FieldError]:
    seen: set[tuple[str, str]] = set()
    for index, constraint in enumerate(constraints):
        where = f"{path}[{index}]"
        yield from _check_constraint(constraint, where)
        kind = (constraint.topology_key, constraint.when_unsatisfiable)
        if kind in seen:
            yield duplicate(
                f"{where}.{{topologyKey, whenUnsatisfiable}}", f"{{{kind[0]}, {kind[1]}}}"
            )
        seen.add(kind)


def _check_constraint(constraint: TopologySpreadConstraint, path: str) -> Iterator[FieldError]:
    if constraint.max_skew <= 0:
        yield invalid(f"{path}.maxSkew", constraint.max_skew, "must be greater than zero")
    if not constraint.topology_key:
        yield required(f"{path}.topologyKey", "can not be empty")
    action = constraint.when_unsatisfiable
    if action not in list(UnsatisfiableConstraintAction):
        yield unsupported(f"{path}.whenUnsatisfiable", action, UnsatisfiableConstraintAction)
    if constraint.min_domains is not None:
        where = f"{path}.minDomains"
        if constraint.min_domains <= 0:
            yield invalid(where, constraint.min_domains, "must be greater than zero")
        if action != UnsatisfiableConstraintAction.DO_NOT_SCHEDULE:
            detail = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
            yield invalid(where, constraint.min_domains, detail)
    policies = {
        "nodeAffinityPolicy": constraint.node_affinity_policy,
        "nodeTaintsPolicy": constraint.node_taints_policy,
    }
    for name, policy in policies.items():
        if policy and policy not in list(NodeInclusionPolicy):
            yield unsupported(f"{path}.{name}", policy, NodeInclusionPolicy)
    yield from check_label_selector(constraint.label_selector, f"{path}.labelSelector")
    where = f"{path}.matchLabelKeys"
    yield from _check_label_keys(constraint.match_label_keys, constraint.label_selector, where)
    selected = _selected_keys(constraint.label_selector)
    for index, key in enumerate(constraint.match_label_keys):
        if key in selected:
            detail = "exists in both matchLabelKeys and labelSelector"
            yield invalid(f"{where}[{index}]", key, detail)


def _selected_keys(selector: LabelSelector | None) -> set[str]:
    if selector is None:
        return set()
    return {*selector.match_labels, *(one.key for one in selector.match_expressions)}
