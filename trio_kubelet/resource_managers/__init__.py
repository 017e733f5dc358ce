"""Exclusive resources of the node: CPUs and memory that a container has for itself, and where.

    sysfs → MachineTopology (machine_topology.py)
    a pod + what is free → hints (hints.py) → NUMA nodes (topology_manager.py)
                         → CPUs (cpu_draft.py), memory (memory_draft.py),
                           devices (device_draft.py)
    a pod with resources of its own → one part, divided (pod_level.py)
    what was assigned → cpu_manager_state (cpu_manager.py, cpu_state.py)
                      → memory_manager_state (memory_manager.py, memory_state.py)
    CPUs that come or go → MachineTopology, others assigned (cpu_watch.py)

Decisions are pure functions of such values. `ResourceManagers` owns what was assigned: admission
asks it to reserve, the configs of containers read what it says, the end of a pod releases.
"""

from trio_kubelet.resource_managers.managers import ResourceManagers
from trio_kubelet.resource_managers.placement import ContainerPlacement, Refusal, RefusedError

__all__ = [
    "ContainerPlacement",
    "Refusal",
    "RefusedError",
    "ResourceManagers",
]
