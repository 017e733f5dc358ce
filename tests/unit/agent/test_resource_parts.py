"""From the words of a configuration to what pods are given: each option has the effect it names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.devices.nodes import no_devices
from tests.unit.resource_managers.machines import (
    FOUR_NODES,
    SPLIT_CACHES,
    Shape,
    machine,
)
from tests.unit.resource_managers.pods import a_pod
from trio_kubelet.agent.resource_parts import make_resource_managers
from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.config.parts import MemoryReservation
from trio_kubelet.config.settings import Settings
from trio_kubelet.errors import StartError
from trio_kubelet.k8s import Quantity
from trio_kubelet.node.machine import MachineInfo, MachineSize
from trio_kubelet.node.resources import node_resources
from trio_kubelet.resource_managers import ResourceManagers

RESTRICTED = {"topology_manager_policy": "restricted"}
CLOSEST = {"topology_manager_policy_options": {"prefer-closest-numa-nodes": "true"}}
FAR_NEIGHBOURS = Shape(sockets=3, cores_per_node=2, far=((0, 1),))
"""CPUs 0-1 and 6-7 in the first node, far from 2-3 and 8-9 in the second; 4-5 and 10-11 are near
both."""
NINE_NODES = Shape(sockets=9, cores_per_node=1)


def managers_by(shape: Shape, root: Path, **fields: Any) -> ResourceManagers:
    """The managers of a node whose configuration has these fields beside the static policy."""
    configuration = KubeletConfiguration(
        **{
            "cpu_manager_policy": "static",
            "reserved_system_cpus": "0",
            "eviction_hard": {},
            **fields,
        }
    )
    topology = machine(shape)
    size = MachineSize(cpu_milli=1000 * len(topology.cpus), memory_bytes=40 << 30)
    settings = Settings(configuration=configuration)
    resources = node_resources(settings, MachineInfo(size=size, topology=topology))
    return make_resource_managers(settings, topology, resources, root, no_devices())


def cpu_option(name: str) -> Mapping[str, Any]:
    return {"cpu_manager_policy_options": {name: "true"}}


BY_POD = {**RESTRICTED, "topology_manager_scope": "pod"}
NO_LIST = {"reserved_system_cpus": ""}
BY_SOCKET = cpu_option("align-by-socket")


def up_to(nodes: str) -> Mapping[str, Any]:
    return {"topology_manager_policy_options": {"max-allowable-numa-nodes": nodes}}


@pytest.mark.parametrize(
    ("shape", "fields", "wanted", "cpus"),
    [
        (FOUR_NODES, {"cpu_manager_policy": "none"}, "2", ""),
        (FOUR_NODES, {}, "2", "1,17"),
        (FOUR_NODES, {"reserved_system_cpus": "0-3"}, "2", "4,20"),
        (FOUR_NODES, {**NO_LIST, "system_reserved": {"cpu": "2500m"}}, "2", "2,18"),
        # One CPU option each, beside what the same pod gets without it
        (FOUR_NODES, {}, "3", "1,16-17"),
        (FOUR_NODES, cpu_option("full-pcpus-only"), "3", "SMTAlignmentError"),
        (FOUR_NODES, cpu_option("distribute-cpus-across-cores"), "3", "1-2,16"),
        (FOUR_NODES, {}, "9", "4-7,16,20-23"),
        (FOUR_NODES, cpu_option("distribute-cpus-across-numa"), "9", "4-6,8-9,20-21,24-25"),
        (SPLIT_CACHES, {}, "4", "1-2,9-10"),
        (SPLIT_CACHES, cpu_option("prefer-align-cpus-by-uncorecache"), "4", "2-3,10-11"),
        (FOUR_NODES, RESTRICTED, "8 9", "4-7,20-23 8-11,16,24-27"),
        (FOUR_NODES, {**RESTRICTED, **BY_SOCKET}, "8 9", "4-7,20-23 8-12,24-27"),
        # Policies, scopes and options of the topology
        (FOUR_NODES, {"topology_manager_policy": "single-numa-node"}, "9", "TopologyAffinityError"),
        (FOUR_NODES, RESTRICTED, "4 5", "1-2,17-18 4-6,20-21"),
        (
            FOUR_NODES,
            {**RESTRICTED, "topology_manager_scope": "pod"},
            "4 5",
            "1-2,17-18 3-4,16,19-20",
        ),
        (FAR_NEIGHBOURS, RESTRICTED, "5", "2-3,6,8-9"),
        (FAR_NEIGHBOURS, {**RESTRICTED, **CLOSEST}, "5", "4-6,10-11"),
        (NINE_NODES, {**RESTRICTED, **up_to("9")}, "2", "1,10"),
    ],
)
def test_a_pod_has_cpus_by_what_the_configuration_says(
    tmp_path: Path, shape: Shape, fields: Mapping[str, Any], wanted: str, cpus: str
) -> None:
    at = managers_by(shape, tmp_path, **fields)
    each = wanted.split()
    refusal = at.reserve(a_pod("u", *each), lambda _uid: False)
    if refusal is not None:
        assert refusal.reason == cpus
        return
    assert " ".join(at.placement("u", f"c{n}").cpuset_cpus for n in range(len(each))) == cpus


@pytest.mark.parametrize(
    ("fields", "shared"),
    [({}, "0-31"), (cpu_option("strict-cpu-reservation"), "1-31")],
)
def test_others_run_on_reserved_cpus_unless_these_are_kept(
    tmp_path: Path, fields: Mapping[str, Any], shared: str
) -> None:
    assert managers_by(FOUR_NODES, tmp_path, **fields).placement("", "").cpuset_cpus == shared


@pytest.mark.parametrize("fields", [{}, up_to("8")])
def test_more_numa_nodes_than_are_allowed_stop_the_start(
    tmp_path: Path, fields: Mapping[str, Any]
) -> None:
    with pytest.raises(StartError, match="more than 8 NUMA Nodes: this one has 9"):
        managers_by(NINE_NODES, tmp_path, **RESTRICTED, **fields)
    managers_by(NINE_NODES, tmp_path, **fields)  # Without a policy nobody compares them.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reserved_system_cpus": "40"}, r"\[cpumanager\] unable to reserve CPUs 40: "),
        (
            {
                "memory_manager_policy": "Static",
                "reserved_memory": (MemoryReservation(limits={"memory": Quantity("1Gi")}),),
            },
            r"\[memorymanager\] the total amount",
        ),
    ],
)
def test_reservations_that_the_machine_cannot_keep_stop_the_start(
    tmp_path: Path, fields: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(StartError, match=message):
        managers_by(FOUR_NODES, tmp_path, **fields)
