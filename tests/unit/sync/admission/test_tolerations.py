"""Which taints are tolerated, a row a case."""

import pytest

from tests.unit.sync.admission.pods_and_nodes import make_pod
from trio_kubelet.k8s import Taint, Toleration
from trio_kubelet.sync.admission.node_match import tolerates, untolerated

TAINT = Taint(key="gpu", value="a100", effect="NoExecute")


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        (Toleration(key="gpu", operator="Equal", value="a100", effect="NoExecute"), True),
        (Toleration(key="gpu", value="a100"), True),
        (Toleration(key="gpu", operator="Equal", value="h100"), False),
        (Toleration(key="gpu", operator="Exists"), True),
        (Toleration(key="gpu", operator="Exists", effect="NoSchedule"), False),
        (Toleration(key="cpu", operator="Exists"), False),
        (Toleration(operator="Exists"), True),
        (Toleration(operator="Exists", effect="NoExecute"), True),
        (Toleration(key="gpu", operator="Like", value="a100"), False),
    ],
)
def test_a_toleration_covers_a_taint(toleration: Toleration, tolerated: bool) -> None:
    assert tolerates(toleration, TAINT) == tolerated


@pytest.mark.parametrize(
    ("taint", "operator", "toleration", "tolerated"),
    [
        ("950", "Gt", "900", True),
        ("900", "Gt", "900", False),
        ("850", "Lt", "900", True),
        ("900", "Lt", "900", False),
        ("-1", "Lt", "0", True),
        ("high", "Gt", "900", False),
        ("950", "Gt", "high", False),
    ],
)
def test_numbers_are_compared_where_the_gate_is_on(
    taint: str, operator: str, toleration: str, tolerated: bool
) -> None:
    numbered = Taint(key="sla", value=taint, effect="NoExecute")
    wanted = Toleration(key="sla", operator=operator, value=toleration)
    assert tolerates(wanted, numbered, compare=True) == tolerated
    assert not tolerates(wanted, numbered)


def test_the_first_taint_of_the_effect_that_nothing_covers_is_found() -> None:
    taints = (
        Taint(key="soft", effect="NoSchedule"),
        Taint(key="gpu", effect="NoExecute"),
        Taint(key="down", effect="NoExecute"),
    )
    pod = make_pod(tolerations=[{"key": "gpu", "operator": "Exists"}])
    assert untolerated(pod, taints, effect="NoExecute") == taints[2]
    assert untolerated(pod, taints[:2], effect="NoExecute") is None
