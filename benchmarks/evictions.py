"""Memory that runs out: how soon the pod that eats it is stopped, beside the Go kubelet.

The pods of a node have 400 MiB together. One writes to memory until the hard threshold is just
crossed, and waits; a watcher of our own reads the cgroup of all pods meanwhile, and has the
process of the pod tell of its end, which comes with SIGTERM. Both nodes do the same in turn.

Beside that, the CPU time of the looks from which evictions follow (`eviction_pass.py`).
"""

import os
import select
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import trio
from attrs import Factory, frozen

from benchmarks import eviction_pass
from benchmarks.figures import Figure, ratio_of_medians, spread
from benchmarks.watched_pods import PODS, kubeconfig_flags
from lab import LabError
from lab.agent import Json, LabAgent, pod_manifest
from lab.cluster_api import ClusterApi
from lab.containerd import Containerd
from lab.control_plane import ControlPlane
from lab.go_kubelet import GoKubelet
from lab.images import BUSYBOX
from trio_kubelet.kernel.mountinfo import mount_points
from trio_kubelet.resources import CgroupDriver, CgroupTree
from trio_kubelet.resources.cgroup_names import kubepods_name
from trio_kubelet.stats.cgroup_reader import CgroupReader, Stopwatch
from trio_kubelet.stats.kernel_text import meminfo

NAME = "evictions"
ROUNDS = 5
GOAL_SECONDS = 2.0

MI = 1 << 20
LEFT_TO_PODS_MIB, THRESHOLD_MIB = 400, 100
# Almost to the threshold at 50 MiB a second; then beyond it at once, and SIGTERM is obeyed at once.
EAT = (
    "trap 'exit 143' TERM; for n in $(seq 28); do dd if=/dev/zero of=/m/$n bs=1M count=10; "
    "sleep .2; done; dd if=/dev/zero of=/m/last bs=1M count=40; sleep 1000000 & wait"
)
LOOK_SECONDS = 0.002
DEADLINE_SECONDS = 120.0


@frozen
class EvictingNode:
    """A node under test. `crossed_to_stopped` are seconds."""

    name: str
    api: ClusterApi
    reader: CgroupReader
    crossed_to_stopped: list[float] = Factory(list)


def measure(folder: Path, rounds: int, containerd: str) -> list[Figure]:
    """Measure both in turn. Blocks. Raises LabError; UnavailableError without programs or Go."""
    with ControlPlane(folder / "control-plane") as plane, ExitStack() as stack:
        theirs, ours = (
            stack.enter_context(_node(plane, kind, folder / name, containerd))
            for name, kind in (("go", GoKubelet), ("trio", LabAgent))
        )
        for number in range(rounds or ROUNDS):
            for node in (theirs, ours) if number % 2 == 0 else (ours, theirs):
                node.crossed_to_stopped.append(_evict_one(node, f"{node.name}-{number}"))
    how = f"{spread(ours.crossed_to_stopped)}; Go kubelet {spread(theirs.crossed_to_stopped)}"
    version = CgroupTree.find(mount_points()).version
    return [
        Figure(
            benchmark=NAME,
            name=f"memory crosses a hard threshold to the pod's SIGTERM, cgroup v{version}",
            value=statistics.median(ours.crossed_to_stopped),
            unit="s",
            goal=GOAL_SECONDS,
            how=how,
        ),
        Figure(
            benchmark=NAME,
            name="the same, of the Go kubelet's",
            value=ratio_of_medians(ours.crossed_to_stopped, theirs.crossed_to_stopped),
            unit="x",
        ),
        *trio.run(eviction_pass.measure, NAME, folder),
    ]


def settings() -> Mapping[str, object]:
    """What leaves pods little memory, and a threshold in it."""
    total = meminfo(Path("/proc/meminfo").read_bytes())["MemTotal"]
    return {
        "systemReserved": {"memory": str(total - LEFT_TO_PODS_MIB * MI)},
        "evictionHard": {"memory.available": f"{THRESHOLD_MIB}Mi"},
        "enforceNodeAllocatable": ["pods"],
        "evictionPressureTransitionPeriod": "1s",
        "imageMinimumGCAge": "24h",
    }


@contextmanager
def _node(
    plane: ControlPlane, kind: type[LabAgent], folder: Path, containerd_version: str
) -> Iterator[EvictingNode]:
    name = f"bench-{folder.name}"
    with Containerd(containerd_version, folder / "containerd") as containerd:
        kubelet = kind(
            containerd.folder / "agent",
            endpoint=containerd.endpoint,
            settings=settings(),
            flags=kubeconfig_flags(plane.node_kubeconfig(name), name),
            cgroup_root=containerd.cgroup_root,
        )
        with kubelet:
            tree = CgroupTree.find(mount_points())
            reader = CgroupReader(tree=tree, cgroup_root=containerd.cgroup_root)
            node = EvictingNode(name, plane.api, reader)
            _wait_usable(node)
            yield node


def _wait_usable(node: EvictingNode) -> None:
    """Wait until the node is ready, and not under pressure."""
    wanted = {"Ready": "True", "MemoryPressure": "False"}
    node.api.wait_for(
        f"/api/v1/nodes/{node.name}",
        lambda seen: (
            wanted.items()
            <= {
                each["type"]: each["status"] for each in seen["status"].get("conditions", ())
            }.items()
        ),
        deadline_seconds=DEADLINE_SECONDS,
    )


def _evict_one(node: EvictingNode, name: str) -> float:
    """Let one pod eat until it is stopped; the seconds since the threshold was crossed."""
    _wait_usable(node)
    node.api.create(PODS, eater(node.name, name))
    process = _wait_process(node)
    crossed_at = _wait_crossed(node)
    stopped_at = _wait_ended(process)
    node.api.wait_for(
        f"{PODS}/{name}",
        lambda pod: pod["status"].get("reason") == "Evicted",
        deadline_seconds=DEADLINE_SECONDS,
    )
    node.api.delete(f"{PODS}/{name}")
    node.api.wait_gone(f"{PODS}/{name}", deadline_seconds=DEADLINE_SECONDS)
    return stopped_at - crossed_at


def eater(node: str, name: str) -> Json:
    """A pod that is bound to a node and eats its memory."""
    container = {
        "name": "c",
        "image": BUSYBOX,
        "command": ["sh", "-c", EAT],
        "volumeMounts": [{"name": "m", "mountPath": "/m"}],
        "resources": {"requests": {"memory": "10Mi"}},
    }
    volume = {"name": "m", "emptyDir": {"medium": "Memory"}}
    body = pod_manifest(name, container, volumes=[volume], nodeName=node)
    body["metadata"]["namespace"] = "default"
    return body


def _wait_crossed(node: EvictingNode) -> float:
    """Wait until pods have left less than the threshold; `time.monotonic` then."""
    limit = (LEFT_TO_PODS_MIB - THRESHOLD_MIB) * MI
    end = time.monotonic() + DEADLINE_SECONDS
    while (now := time.monotonic()) < end:
        pods = node.reader.read_node(Stopwatch(time.time_ns())).pods
        if pods is not None and pods.memory is not None and pods.memory.working_set > limit:
            return now
        time.sleep(LOOK_SECONDS)
    raise LabError(f"{node.name}: nobody eats the memory")


def _wait_process(node: EvictingNode) -> int:
    """Wait for the pod's main process, in the cgroups of pods."""
    assert node.reader.tree is not None
    pods = kubepods_name(node.reader.cgroup_root).path(CgroupDriver.CGROUPFS)
    memory = node.reader.tree.hierarchies["memory"]
    end = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < end:
        for file in Path(f"{memory}{pods}").rglob("cgroup.procs"):
            for pid in file.read_text().split():
                with suppress(OSError):
                    if EAT in Path(f"/proc/{pid}/cmdline").read_text():
                        return int(pid)
        time.sleep(LOOK_SECONDS)
    raise LabError(f"{node.name}: the pod does not start")


def _wait_ended(pid: int) -> float:
    """Wait until a process has ended; `time.monotonic` then."""
    descriptor = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(DEADLINE_SECONDS * 1000):
            raise LabError("the pod was not stopped")
        return time.monotonic()
    finally:
        os.close(descriptor)
