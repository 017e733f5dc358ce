"""Which nodes a pod asks for, a row a case."""

from typing import Any

import pytest

from tests.unit.sync.admission.pods_and_nodes import make_node, make_pod
from trio_kubelet.sync.admission.node_match import matches_node

HERE = make_node(labels={"zone": "a", "disk": "ssd", "cores": "8", "empty": ""})


def requiring(*terms: dict[str, Any]) -> dict[str, Any]:
    selector = {"nodeSelectorTerms": list(terms)}
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}
    }


def label(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ({}, True),
        ({"zone": "a"}, True),
        ({"zone": "a", "disk": "ssd"}, True),
        ({"zone": "b"}, False),
        ({"zone": "a", "disk": "hdd"}, False),
        ({"absent": ""}, False),
        ({"empty": ""}, True),
    ],
)
def test_a_node_selector_wants_all_its_labels(selector: dict[str, str], matches: bool) -> None:
    assert matches_node(make_pod(nodeSelector=selector), HERE) == matches


@pytest.mark.parametrize(
    ("requirement", "matches"),
    [
        (label("zone", "In", "a", "b"), True),
        (label("zone", "In", "b"), False),
        (label("absent", "In", "a"), False),
        (label("zone", "In"), False),
        (label("zone", "NotIn", "b"), True),
        (label("zone", "NotIn", "a", "b"), False),
        (label("absent", "NotIn", "a"), True),
        (label("zone", "NotIn"), False),
        (label("empty", "Exists"), True),
        (label("absent", "Exists"), False),
        (label("zone", "Exists", "a"), False),
        (label("absent", "DoesNotExist"), True),
        (label("zone", "DoesNotExist"), False),
        (label("absent", "DoesNotExist", "a"), False),
        (label("cores", "Gt", "4"), True),
        (label("cores", "Gt", "8"), False),
        (label("cores", "Lt", "16"), True),
        (label("cores", "Lt", "8"), False),
        (label("cores", "Gt", "-1"), True),
        (label("cores", "Gt", "9" * 5000), False),
        (label("cores", "Gt", "1_0"), False),
        (label("cores", "Gt", "4", "5"), False),
        (label("cores", "Lt", str(2**63)), False),
        (label("zone", "Gt", "4"), False),
        (label("absent", "Lt", "4"), False),
        (label("zone", "Like", "a"), False),
    ],
)
def test_a_required_label(requirement: dict[str, Any], matches: bool) -> None:
    pod = make_pod(**requiring({"matchExpressions": [requirement]}))
    assert matches_node(pod, HERE) == matches


@pytest.mark.parametrize(
    ("requirement", "matches"),
    [
        (label("metadata.name", "In", "here"), True),
        (label("metadata.name", "In", "there"), False),
        (label("metadata.name", "In", "here", "there"), False),
        (label("metadata.name", "NotIn", "there"), True),
        (label("metadata.name", "NotIn", "here"), False),
        (label("metadata.name", "Exists"), False),
        (label("metadata.namespace", "In", "ns"), False),
    ],
)
def test_a_required_field(requirement: dict[str, Any], matches: bool) -> None:
    pod = make_pod(**requiring({"matchFields": [requirement]}))
    assert matches_node(pod, HERE) == matches


IN_A, IN_B = label("zone", "In", "a"), label("zone", "In", "b")
NAMED_HERE, NAMED_THERE = (label("metadata.name", "In", name) for name in ("here", "there"))


@pytest.mark.parametrize(
    ("terms", "matches"),
    [
        ([{"matchExpressions": [IN_B]}, {"matchExpressions": [IN_A]}], True),
        ([{"matchExpressions": [IN_A, IN_B]}], False),
        ([{"matchExpressions": [IN_A], "matchFields": [NAMED_HERE]}], True),
        ([{"matchExpressions": [IN_A], "matchFields": [NAMED_THERE]}], False),
        ([{}], False),
        ([{}, {"matchFields": [NAMED_HERE]}], True),
        ([], False),
    ],
)
def test_one_term_must_hold_with_all_its_requirements(
    terms: list[dict[str, Any]], matches: bool
) -> None:
    assert matches_node(make_pod(**requiring(*terms)), HERE) == matches


def test_selector_and_affinity_must_both_hold() -> None:
    affinity = requiring({"matchExpressions": [IN_A]})
    assert matches_node(make_pod(nodeSelector={"disk": "ssd"}, **affinity), HERE)
    assert not matches_node(make_pod(nodeSelector={"disk": "hdd"}, **affinity), HERE)


def test_a_wish_rejects_nobody() -> None:
    wish = {"weight": 1, "preference": {"matchExpressions": [IN_B]}}
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}
    assert matches_node(make_pod(affinity=affinity), HERE)
