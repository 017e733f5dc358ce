"""The policies by which a day's node gives parts of its machine away, and pods that ask for some.

Days take turns: on every sixth nothing is given away, on the others whole CPUs and memory of NUMA
nodes are, by one set of policies each, of a machine with large nodes or of one with small ones.
`placements.py` has the rules.
"""

import random
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from attrs import evolve, field, frozen

from tests.simulation.shapes import Shape
from tests.unit.resource_managers.machines import Shape as MachineShape
from tests.unit.resource_managers.machines import machine
from trio_kubelet.config.parts import MemoryReservation
from trio_kubelet.k8s import Quantity
from trio_kubelet.resource_managers.cpu_sets import CpuSet
from trio_kubelet.resource_managers.machine_topology import MachineTopology

MACHINES = (
    machine(MachineShape(sockets=2, nodes_per_socket=2, cores_per_node=16, gib=4)),
    machine(MachineShape(sockets=2, nodes_per_socket=4, cores_per_node=8, gib=2)),
)
"""128 CPUs in four NUMA nodes, or in eight smaller ones: more than all pods of a day can have, even
while some are in trouble, and some CPUs are offline."""
RESERVED = frozenset({0, 64})
"""The CPUs that nobody is given: the two threads of the first core."""
MEMORY = ("48Mi", "64Mi")
"""What containers ask for that have CPUs; they use half of it."""
LIKELIHOOD = 0.65
"""Of a pod to ask for CPUs of its own, where the node gives some."""


@frozen(kw_only=True)
class Policies:
    """The policies of one node; by default nothing is given away.

    `settings` are fields of the configuration beside those that all have. With `whole_cores`
    containers have whole cores; `aligned` ones have their CPUs and their memory of one NUMA node;
    with `keeps_reserved` nobody at all runs on the reserved CPUs.
    """

    settings: Mapping[str, Any] = field(factory=dict)
    machine: MachineTopology = MACHINES[0]
    cpu_amounts: Sequence[str] = ("1", "2", "3", "500m")
    whole_cores: bool = False
    aligned: bool = False
    keeps_reserved: bool = False

    @property
    def gives_away(self) -> bool:
        """True if containers have parts of the machine for themselves."""
        return bool(self.settings)


def _static(*options: str, **settings: object) -> Mapping[str, Any]:
    """The settings of a node that gives CPUs by options of the CPU policy, and memory."""
    return {
        "cpu_manager_policy": "static",
        "cpu_manager_policy_options": dict.fromkeys(options, "true"),
        "reserved_system_cpus": ",".join(map(str, sorted(RESERVED))),
        "memory_manager_policy": "Static",
        # Just what the hard eviction threshold keeps.
        "reserved_memory": (MemoryReservation(limits={"memory": Quantity("100Mi")}),),
        **settings,
    }


POLICIES = (
    Policies(),
    Policies(settings=_static()),
    Policies(
        settings=_static("full-pcpus-only", topology_manager_policy="single-numa-node"),
        cpu_amounts=("2", "2", "4", "500m"),
        whole_cores=True,
        aligned=True,
    ),
    Policies(
        settings=_static(
            "distribute-cpus-across-numa",
            topology_manager_policy="best-effort",
            topology_manager_scope="pod",
        )
    ),
    Policies(
        settings=_static("strict-cpu-reservation", topology_manager_policy="restricted"),
        aligned=True,
        keeps_reserved=True,
    ),
    Policies(
        settings=_static(
            "align-by-socket",
            topology_manager_policy="best-effort",
            topology_manager_policy_options={"prefer-closest-numa-nodes": "true"},
        )
    ),
)


def policies_of(seed: int) -> Policies:
    """The policies of the day of a seed: with each of the machines in turns."""
    turn, number = divmod(seed, len(POLICIES))
    return evolve(POLICIES[number], machine=MACHINES[(turn + number) % len(MACHINES)])


def asking_for_cpus(shape: Shape, amounts: Sequence[str], chance: random.Random) -> Shape:
    """The pod, now and then as one that is Guaranteed and asks for some of these numbers of CPUs.

    Not one that has resources as a whole.
    """
    if "resources" in shape.document["spec"] or chance.random() >= LIKELIHOOD:
        return shape
    document = deepcopy(dict(shape.document))
    spec = document["spec"]
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        asked = {"cpu": chance.choice(amounts), "memory": chance.choice(MEMORY)}
        resources = container.setdefault("resources", {})
        for kind in ("requests", "limits"):
            resources[kind] = {**resources.get(kind, {}), **asked}
    return evolve(shape, document=document)


def without_cpus(topology: MachineTopology, offline: CpuSet) -> MachineTopology:
    """The machine while these CPUs are offline."""
    return evolve(topology, cpus=tuple(each for each in topology.cpus if each.id not in offline))
