"""The CPU time of giving new pods their CPUs and memory, on a machine of 512 CPUs and 8 NUMA nodes.

Pods of two containers come until half of the CPUs are given away: the first ones find an empty
machine, the last ones a fragmented one, on which hints are given for most sets of nodes.
"""

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import structlog
import trio

from benchmarks.figures import Figure, spread
from trio_kubelet.config.cpu_policy import CpuPolicyOptions
from trio_kubelet.devices import DeviceManager, DevicePlugins, DeviceRecords
from trio_kubelet.k8s import Container, ObjectMeta, Pod, PodSpec, Quantity, ResourceRequirements
from trio_kubelet.resource_managers import ResourceManagers
from trio_kubelet.resource_managers.cpu_draft import static_cpu_policy
from trio_kubelet.resource_managers.cpu_manager import CpuManager
from trio_kubelet.resource_managers.machine_topology import Cpu, MachineTopology, NumaNode
from trio_kubelet.resource_managers.memory_draft import static_memory_policy
from trio_kubelet.resource_managers.memory_manager import MemoryManager
from trio_kubelet.resource_managers.topology_manager import TopologyPolicy
from trio_kubelet.tasks.clock import SystemClock
from trio_kubelet.telemetry import Journal

NAME = "placement"
NODES, CORES_PER_NODE, THREADS = 8, 32, 2
CORES = NODES * CORES_PER_NODE
CORES_PER_CACHE = 8
NODE_BYTES = 64 << 30
PODS = 64
SIZES = (1, 3, 2, 5)
"""CPUs of containers, in turn."""
GOAL_MILLISECONDS = 5.0
MOST = 57
"""Containers of one pod: no more are given CPUs and memory at nodes of such a machine."""
GOAL_OF_LARGEST_MILLISECONDS = 50.0


async def measure(folder: Path, rounds: int) -> list[Figure]:
    """Measure the admission of a pod by the policies that work most."""
    await trio.lowlevel.checkpoint()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    figures = []
    for what, options in (
        ("packed", CpuPolicyOptions()),
        ("across NUMA nodes", CpuPolicyOptions(distribute_cpus_across_numa=True)),
        ("by cache", CpuPolicyOptions(prefer_align_cpus_by_uncorecache=True)),
    ):
        pods = [_pod(f"p{n}", [SIZES[n % len(SIZES)]] * 2) for n in range(rounds or PODS)]
        seconds = sorted(_admissions(_managers(folder, options), pods))
        figures.append(
            Figure(
                benchmark=NAME,
                name=f"admission of a pod of two containers, CPUs {what}",
                value=seconds[len(seconds) * 9 // 10] * 1000,
                unit="ms",
                goal=GOAL_MILLISECONDS,
                how=f"CPU time, nine of ten take less; {spread(seconds)}",
            )
        )
    (seconds_of_largest,) = _admissions(
        _managers(folder, CpuPolicyOptions()), [_pod("p", [1] * MOST)]
    )
    figures.append(
        Figure(
            benchmark=NAME,
            name=f"admission of a pod of {MOST} containers",
            value=seconds_of_largest * 1000,
            unit="ms",
            goal=GOAL_OF_LARGEST_MILLISECONDS,
            how="CPU time, of one turn of the event loop",
        )
    )
    return figures


def _admissions(managers: ResourceManagers, pods: Sequence[Pod]) -> list[float]:
    seconds = []
    for number, pod in enumerate(pods):
        began = time.process_time()
        refusal = managers.reserve(pod, lambda _uid: False)
        seconds.append(time.process_time() - began)
        assert refusal is None, refusal
        if number % 3 == 1:
            managers.release(f"p{number - 1}")
    return seconds


def _managers(folder: Path, options: CpuPolicyOptions) -> ResourceManagers:
    topology = MachineTopology(
        tuple(
            Cpu(
                id=thread * CORES + core,
                core=core,
                cache=core // CORES_PER_CACHE,
                node=core // CORES_PER_NODE,
                socket=core // (CORES // 2),
            )
            for thread in range(THREADS)
            for core in range(CORES)
        ),
        tuple(NumaNode(id=node, memory_bytes=NODE_BYTES) for node in range(NODES)),
    )
    limiter = trio.CapacityLimiter(1)
    cpus = static_cpu_policy(topology, options, reserved_cpus="0,256", reserved_milli=0)
    return ResourceManagers(
        CpuManager(cpus, folder, limiter),
        MemoryManager(static_memory_policy(topology, (), {}), folder, limiter),
        DeviceManager(DevicePlugins(Journal(SystemClock())), DeviceRecords(folder), wait_seconds=0),
        TopologyPolicy(topology=topology, name="best-effort"),
    )


def _pod(name: str, cpus: Sequence[int]) -> Pod:
    """A pod with a container for each number of CPUs."""
    containers = []
    for number, count in enumerate(cpus):
        amounts = {"cpu": Quantity(count), "memory": Quantity("1Gi")}
        resources = ResourceRequirements(requests=amounts, limits=amounts)
        containers.append(Container(name=f"c{number}", image="i", resources=resources))
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=name),
        spec=PodSpec(containers=tuple(containers)),
    )
