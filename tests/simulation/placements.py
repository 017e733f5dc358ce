"""What must be true of the CPUs and the memory that containers have for themselves.

No CPU is with two running containers, each container has as many as it asks for, none of those that
are reserved, and the same ones, with memory of the same NUMA nodes, for as long as its pod lives,
whatever agents there are in between. In a quiet phase all others run on the rest, the records have
what is given away and nothing else, and no pod is rejected: there is enough for all.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import trio
from attrs import define

from tests.apiserver.storage import Change
from tests.simulation.convergence import shown_pods
from tests.simulation.invariants import CUT_OFF_SECONDS
from tests.simulation.node import Node
from tests.simulation.policies import RESERVED, Policies
from tests.simulation.record import Kind, Life, Record, Wanted
from trio_kubelet.hollow.records import HollowSandbox
from trio_kubelet.k8s import PODS, TERMINAL_PHASES
from trio_kubelet.pod_source import CONFIG_MIRROR
from trio_kubelet.resource_managers.cpu_sets import CpuSet, cpu_list, parsed_cpus
from trio_kubelet.resource_managers.cpu_state import FILE as CPUS
from trio_kubelet.resource_managers.machine_topology import Level
from trio_kubelet.resource_managers.memory_state import FILE as BLOCKS
from trio_kubelet.rpc.stubs.runtime import v1 as cri

RUNNING = cri.ContainerState.CONTAINER_RUNNING
REJECTED = (
    "OutOfcpu",
    "OutOfmemory",
    "SMTAlignmentError",
    "TooManyResources",
    "TopologyAffinityError",
    "UnexpectedAdmissionError",
)
Entries = Mapping[str, Mapping[str, Any]]
"""What a record has, by the UID of a pod and the name of a container."""


@define(eq=False)
class PlacementRules:
    """Watches the CPUs and the memory of one node. `violated` is called as in `DeviceRules`."""

    node: Node
    record: Record
    policies: Policies
    violated: Callable[..., None]

    def on_event(self, kind: int, container_id: str, sandbox: HollowSandbox) -> None:
        """Observer of the runtime's events: the part of the machine of a container that starts."""
        uid = sandbox.config.metadata.uid
        wanted = self.record.wanted.get(uid)
        is_start = kind == Kind.CONTAINER_STARTED_EVENT and container_id != sandbox.id
        if wanted is None or not is_start:
            return
        life = self.record.lives[uid][container_id]
        if life.name in wanted.shape.cpu_limits and self.policies.gives_away:
            for problem in (*self._unkept(wanted, life), *self._unfit(wanted, life)):
                self.violated(life.name, "of pod", uid, problem)
        if life.name in wanted.shape.cpus:
            for other in self._sharers(life):
                self.violated(life.name, "of pod", uid, "and", other.name, "of", other.uid, "share")

    def on_write(self, change: Change) -> None:
        """Observer of the API server's storage: no pod is rejected for want of CPUs or memory."""
        if change.resource != (PODS.group, PODS.resource) or change.after is None:
            return
        metadata, status = change.after["metadata"], change.after.get("status", {})
        uid = metadata.get("annotations", {}).get(CONFIG_MIRROR, metadata["uid"])
        wanted = self.record.wanted.get(uid)
        if wanted is not None and wanted.shape.cpu_limits and status.get("reason") in REJECTED:
            self.violated("pod", metadata["name"], "is rejected:", status.get("message"))

    def spare_cores(self) -> list[CpuSet]:
        """The cores of which nobody has a CPU for himself, and that are not reserved."""
        taken = set(RESERVED)
        for containers in self._entries(CPUS).values():
            taken.update(*map(parsed_cpus, containers.values()))
        for wanted in self.record.wanted.values():
            taken.update(*(parsed_cpus(cpus) for _, cpus in wanted.placements.values()))
        cores = self.policies.machine.groups[Level.CORE].values()
        return [core for core in cores if core.isdisjoint(taken)]

    def unsettled(self) -> Iterator[str]:
        """What containers and records have in a quiet phase, and should not."""
        if not self.policies.gives_away:
            return
        cpus = {
            uid: {name: parsed_cpus(each) for name, each in containers.items()}
            for uid, containers in self._entries(CPUS).items()
        }
        blocks = self._entries(BLOCKS)
        for kind, entries in ("CPUs", cpus), ("memory", blocks):
            for uid in entries:
                wanted = self.record.wanted.get(uid)
                if wanted is None or wanted.deleted or not wanted.shape.cpu_limits:
                    yield f"pod {uid} is not there, and has {kind}"
        yield from self._wrong_tables(blocks)
        over = {
            uid for uid, pod in shown_pods(self.node).items() if pod.status.phase in TERMINAL_PHASES
        }
        given = [each for uid in cpus.keys() - over for each in cpus[uid].values()]
        rest = self.node.topology.all.difference(*given)
        rest -= RESERVED if self.policies.keeps_reserved else frozenset()
        for life in self._running():
            uid, resources = life.uid, life.container.resources
            right = cpu_list(cpus.get(uid, {}).get(life.name, rest))
            if resources.cpuset_cpus != right:
                has = resources.cpuset_cpus
                yield f"{life.name} of pod {uid} runs on the CPUs {has}, and has {right}"
            has_nodes = sorted(parsed_cpus(resources.cpuset_mems))
            if has_nodes != _nodes_of(blocks.get(uid, {}).get(life.name, ())):
                yield f"{life.name} of pod {uid} has memory of the NUMA nodes {has_nodes}"

    def _unkept(self, wanted: Wanted, life: Life) -> Iterator[str]:
        """Where a container has another part of the machine than before, while its pod lives."""
        resources = life.container.resources
        has = resources.cpuset_mems, _own_cpus(wanted, life)
        before = wanted.placements.setdefault(life.name, has)
        if has != before and self._is_kept(wanted):
            yield f"has nodes and CPUs {has}, and had {before}"

    def _unfit(self, wanted: Wanted, life: Life) -> Iterator[str]:
        """Where its part of the machine is not what a container has asked for."""
        nodes = parsed_cpus(life.container.resources.cpuset_mems)
        if not nodes or (self.policies.aligned and len(nodes) > 1 and self._is_kept(wanted)):
            yield f"has memory of the NUMA nodes {sorted(nodes)}"
        if life.name not in wanted.shape.cpus:
            return
        cpus, machine = _cpus_of(life), self.policies.machine
        if len(cpus) != wanted.shape.cpus[life.name] or cpus & RESERVED:
            yield f"asked for {wanted.shape.cpus[life.name]} CPUs and has {cpu_list(cpus)}"
        if self.policies.whole_cores and machine.of_whole_cores(cpus) != cpus:
            yield f"has threads of cores: {cpu_list(cpus)}"
        near = {machine.group_of[Level.NODE][cpu] for cpu in cpus}
        if self.policies.aligned and near != nodes and self._is_kept(wanted):
            yield f"has CPUs of the NUMA nodes {sorted(near)}, and memory of {sorted(nodes)}"

    def _sharers(self, life: Life) -> Iterator[Life]:
        """The running containers that have CPUs for themselves which one has, too.

        The call of an agent that was killed may start one later, whose pod has gone meanwhile.
        """
        if trio.current_time() - self.record.cut_off_at < CUT_OFF_SECONDS:
            return
        for other in self._running():
            wanted = self.record.wanted.get(other.uid)
            if other is life or wanted is None or other.name not in wanted.shape.cpus:
                continue
            if _cpus_of(other) & _cpus_of(life) and self._is_kept(wanted):
                yield other

    def _is_kept(self, wanted: Wanted) -> bool:
        """True if there was always room on the disk for the record of a pod."""
        return self.record.disk_full_until < wanted.made_at

    def _wrong_tables(self, blocks: Entries) -> Iterator[str]:
        """Where a node's table does not say what containers have of it: all is of single nodes."""
        held: Counter[int] = Counter()
        for block in (b for pod in blocks.values() for each in pod.values() for b in each):
            for node in block["numaAffinity"]:
                held[node] += block["size"]
        for node, state in self._content(BLOCKS)["machineState"].items():
            table = state["memoryMap"]["memory"]
            amounts = table["reserved"], table["allocatable"] - table["free"]
            if amounts != (held[int(node)],) * 2:
                yield f"of NUMA node {node} {amounts} bytes are given away, not {held[int(node)]}"

    def _running(self) -> Iterator[Life]:
        for lives in self.record.lives.values():
            for life in lives.values():
                if life.container.state == RUNNING and not life.removed:
                    yield life

    def _entries(self, file: str) -> Entries:
        entries: Entries = self._content(file).get("entries", {})
        return entries

    def _content(self, file: str) -> Mapping[str, Any]:
        path = self.node.root / "kubelet" / file
        content: Mapping[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return content


def _cpus_of(life: Life) -> CpuSet:
    return parsed_cpus(life.container.resources.cpuset_cpus)


def _own_cpus(wanted: Wanted, life: Life) -> str:
    """The list of the CPUs that a container has for itself; what it shares changes."""
    return life.container.resources.cpuset_cpus if life.name in wanted.shape.cpus else ""


def _nodes_of(blocks: Any) -> list[int]:
    return sorted({node for block in blocks for node in block["numaAffinity"]})
