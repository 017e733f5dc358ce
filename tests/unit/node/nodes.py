"""A node to test with: four cores, 8 GiB, 100 GiB of disk."""

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from trio_kubelet.config import KubeletConfiguration, Settings
from trio_kubelet.config.eviction import Signal, ThresholdValue
from trio_kubelet.config.gates import resolve
from trio_kubelet.config.model import NodeOptions
from trio_kubelet.k8s import Node, NodeCondition, NodeStatus, ObjectMeta, Time
from trio_kubelet.node.allocatable import Reservations, machine_capacity, node_amounts
from trio_kubelet.node.machine import MachineInfo, MachineSize
from trio_kubelet.node.observer import Observation
from trio_kubelet.node.profile import NodeProfile
from trio_kubelet.resource_managers.machine_topology import flat_topology

NOW = Time.parse("2026-03-01T12:00:00Z")
LATER = Time.parse("2026-03-01T12:05:00Z")
GIB = 1 << 30
NAME = "node-1"


def a_machine(**changes: Any) -> MachineInfo:
    machine = MachineInfo(
        machine_id="3d1219c7",
        system_uuid="4c4c4544-0042",
        boot_id="boot-1",
        kernel_version="6.12.1",
        os_image="Debian GNU/Linux 13 (trixie)",
        architecture="amd64",
        size=MachineSize(cpu_milli=4000, memory_bytes=8 * GIB, hugepages={2 << 20: 0}),
        topology=flat_topology(2),
        storage_bytes=100 * GIB,
    )
    return evolve(machine, **changes)


def a_profile(
    machine: MachineInfo | None = None,
    *,
    gates: Mapping[str, bool] | None = None,
    options: NodeOptions | None = None,
    **configuration: Any,
) -> NodeProfile:
    machine = machine or a_machine()
    return NodeProfile(
        name=NAME,
        settings=Settings(
            configuration=KubeletConfiguration(**configuration),
            options=options or NodeOptions(),
            gates=resolve(gates or {}).gates,
        ),
        machine=machine,
        resources=node_amounts(
            machine_capacity(machine, max_pods=110),
            Reservations(eviction={Signal.MEMORY: ThresholdValue.parse("100Mi")}),
        ),
    )


def seen(**fields: Any) -> Observation:
    return Observation(**{"addresses": ("10.0.0.7",), "runtime": "containerd://2.1.4", **fields})


def a_node(status: NodeStatus | None = None, **metadata: Any) -> Node:
    return Node(
        metadata=ObjectMeta(name=NAME, uid="node-uid", **metadata), status=status or NodeStatus()
    )


def condition(status: NodeStatus, kind: str) -> NodeCondition:
    (found,) = (c for c in status.conditions if c.type == kind)
    return found
