"""Node selectors: the nodes that a pod, or a volume, can be on. Pure.

Terms are alternatives, the requirements of a term must all hold, and a term without any holds
nowhere. A requirement that is malformed (no values, no number) never holds.

API: NodeSelector, in a pod's required node affinity and in a volume's `nodeAffinity`.
"""

import re
from collections.abc import Callable, Mapping

from trio_kubelet.k8s.node import Node
from trio_kubelet.k8s.scheduling import (
    NodeSelector,
    NodeSelectorOperator,
    NodeSelectorRequirement,
    NodeSelectorTerm,
)

_INTEGER = re.compile(r"[+-]?\d{1,100}", re.ASCII)
_LARGEST = 2**63 - 1

Values = tuple[str, ...]


def selects_node(selector: NodeSelector, node: Node) -> bool:
    """True if one of the selector's terms holds on a node."""
    return any(_term_holds(term, node) for term in selector.node_selector_terms)


def _term_holds(term: NodeSelectorTerm, node: Node) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    return all(
        _label_holds(requirement, node.metadata.labels) for requirement in term.match_expressions
    ) and all(_field_holds(requirement, node) for requirement in term.match_fields)


def _label_holds(requirement: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    holds = _OPERATORS.get(requirement.operator)
    return holds is not None and holds(labels.get(requirement.key), requirement.values)


def _field_holds(requirement: NodeSelectorRequirement, node: Node) -> bool:
    """Fields know only In and NotIn with one value; the only field of a node is its name."""
    if len(requirement.values) != 1 or requirement.operator not in _FIELD_OPERATORS:
        return False
    actual = node.metadata.name if requirement.key == "metadata.name" else ""
    return _OPERATORS[requirement.operator](actual, requirement.values)


def integer(text: str) -> int | None:
    """Read a whole number of 64 bits; None for anything else."""
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -_LARGEST - 1 <= number <= _LARGEST else None


def _compared(compare: Callable[[int, int], bool]) -> Callable[[str | None, Values], bool]:
    def holds(actual: str | None, values: Values) -> bool:
        if actual is None or len(values) != 1:
            return False
        label, bound = integer(actual), integer(values[0])
        return label is not None and bound is not None and compare(label, bound)

    return holds


_OPERATORS: Mapping[str, Callable[[str | None, Values], bool]] = {
    NodeSelectorOperator.IN: lambda actual, values: actual in values,
    NodeSelectorOperator.NOT_IN: lambda actual, values: bool(values) and actual not in values,
    NodeSelectorOperator.EXISTS: lambda actual, values: not values and actual is not None,
    NodeSelectorOperator.DOES_NOT_EXIST: lambda actual, values: not values and actual is None,
    NodeSelectorOperator.GT: _compared(int.__gt__),
    NodeSelectorOperator.LT: _compared(int.__lt__),
}
_FIELD_OPERATORS = (NodeSelectorOperator.IN, NodeSelectorOperator.NOT_IN)
