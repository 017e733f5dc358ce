"""Machines with systemd join a cluster as docs/joining.md says."""

import json

from lab.guest.recipe import Kernel
from tests.cluster.machines import NAMES, MachineCluster
from tests.e2e.cluster import is_ready


def test_kubeadm_complains_of_nothing_but_a_kernel_without_cpusets(cluster: MachineCluster) -> None:
    expected = {
        Kernel.OWN: set(),
        Kernel.PACKAGED: {
            "SystemVerification]: unexpected kernel config: CONFIG_CPUSETS",
            "SystemVerification]: missing required cgroups: cpuset",
        },
    }
    for machine in cluster.machines.values():
        assert set(machine.failed_checks) == expected[machine.kernel]


def test_both_machines_are_nodes_and_the_agent_is_their_kubelet_service(
    cluster: MachineCluster,
) -> None:
    nodes = json.loads(cluster.kubectl("get", "nodes", "--output", "json"))["items"]
    assert {node["metadata"]["name"] for node in nodes} == set(NAMES)
    assert all(map(is_ready, nodes))
    for machine in cluster.machines.values():
        shown = machine.guest.run("systemctl", "status", "--no-pager", "kubelet")
        assert "/usr/bin/trio-kubelet run --bootstrap-kubeconfig=/etc/kubernetes" in shown
