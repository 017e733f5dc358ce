"""The options of the topology manager, and in which words others are refused."""

import pytest

from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.config.gates import resolve
from trio_kubelet.config.topology_policy import (
    max_numa_nodes,
    prefers_closest_nodes,
    validate_topology_manager,
)


def problems(options: dict[str, str], gates: dict[str, bool] | None = None) -> list[str]:
    configuration = KubeletConfiguration(topology_manager_policy_options=options)
    return list(validate_topology_manager(configuration, resolve(gates or {}).gates))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, []),
        ({"prefer-closest-numa-nodes": "true", "max-allowable-numa-nodes": "12"}, []),
        ({"max-allowable-numa-nodes": "8"}, []),
        (
            {"max-allowable-numa-nodes": "13"},
            ['option "max-allowable-numa-nodes" must not be more than 12'],
        ),
        (
            {"max-allowable-numa-nodes": "7"},
            ["the minimum value of max-allowable-numa-nodes must not be less than 8"],
        ),
        (
            {"max-allowable-numa-nodes": "many"},
            ['bad value for option "max-allowable-numa-nodes": "many" must be a number'],
        ),
        (
            {"prefer-closest-numa-nodes": "yes"},
            ['bad value for option "prefer-closest-numa-nodes": "yes" must be true or false'],
        ),
        ({"closest": "true"}, ['unknown Topology Manager Policy option: "closest"']),
    ],
)
def test_options_are_checked(options: dict[str, str], told: list[str]) -> None:
    assert problems(options) == told


def test_options_need_their_gate() -> None:
    (told,) = problems(
        {"prefer-closest-numa-nodes": "true"}, {"TopologyManagerPolicyOptions": False}
    )
    assert "requires feature gate TopologyManagerPolicyOptions" in told
    assert problems({}, {"TopologyManagerPolicyOptions": False}) == []


def test_options_have_their_defaults() -> None:
    assert max_numa_nodes({}) == 8
    assert max_numa_nodes({"max-allowable-numa-nodes": "12"}) == 12
    assert not prefers_closest_nodes({})
    assert prefers_closest_nodes({"prefer-closest-numa-nodes": "1"})
