"""Resizes of a running pod: how soon its cgroups have what was asked for, beside the Go kubelet.

A pod on each of two nodes of one control plane gets more CPU and memory, and less again, in turn.
The time is that from the request to the API server until the CPU quotas and the memory limits of
the container and of the pod are the new ones, as the kernel has them.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from attrs import Factory, frozen

from benchmarks.figures import Figure, ratio_of_medians, spread
from benchmarks.manifests import CONTAINER, manifest
from benchmarks.watched_pods import PODS, kubeconfig_flags
from lab import LabError
from lab.agent import Json, LabAgent
from lab.cluster_api import ClusterApi
from lab.containerd import Containerd
from lab.control_plane import ControlPlane
from lab.go_kubelet import GoKubelet
from trio_kubelet.kernel.mountinfo import mount_points
from trio_kubelet.resources import CgroupTree

NAME = "resizes"
ROUNDS = 10
GOAL_SECONDS = 1.0
LOOK_SECONDS = 0.002
PAUSE_SECONDS = 0.5
DEADLINE_SECONDS = 180.0
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"

MI = 1 << 20
PERIOD = 100_000
UP, DOWN = (200, 64), (100, 32)
"""CPU in thousandths and memory in MiB; the pod begins with the lesser ones."""


@frozen
class ResizingNode:
    """A node with a pod that is resized, and the seconds that each resize took.

    `cgroups` are the folders with CPU quotas and with memory limits, of container and pod.
    """

    name: str
    api: ClusterApi
    tree: CgroupTree
    cgroups: tuple[tuple[Path, Path], ...]
    ups: list[float] = Factory(list)
    downs: list[float] = Factory(list)

    def resize(self, size: tuple[int, int]) -> float:
        """Resize the pod and wait until the kernel has it; returns the seconds."""
        began_at = time.monotonic()
        body = {"spec": {"containers": [{"name": CONTAINER, **resources(size)}]}}
        self.api.patch(f"{PODS}/{self.name}/resize", body, STRATEGIC_MERGE_PATCH)
        while self._sizes() != {size}:
            if time.monotonic() - began_at > DEADLINE_SECONDS:
                raise LabError(f"{self.name}: the pod is not resized: {self._sizes()}")
            time.sleep(LOOK_SECONDS)
        seconds = time.monotonic() - began_at
        self.api.wait_for(f"{PODS}/{self.name}", _is_settled, deadline_seconds=DEADLINE_SECONDS)
        time.sleep(PAUSE_SECONDS)
        return seconds

    def _sizes(self) -> set[tuple[int, int]]:
        quota, limit = (
            ("cpu.cfs_quota_us", "memory.limit_in_bytes")
            if self.tree.version == 1
            else ("cpu.max", "memory.max")
        )
        return {
            (
                int((cpu / quota).read_text().split()[0]) * 1000 // PERIOD,
                int((memory / limit).read_text()) // MI,
            )
            for cpu, memory in self.cgroups
        }


def measure(folder: Path, rounds: int, containerd: str) -> list[Figure]:
    """Measure both in turn. Blocks. Raises LabError; UnavailableError without programs or Go."""
    with ControlPlane(folder / "control-plane") as plane, ExitStack() as stack:
        theirs, ours = (
            stack.enter_context(_node(plane, kind, folder / name, containerd))
            for name, kind in (("go", GoKubelet), ("trio", LabAgent))
        )
        for number in range(rounds or ROUNDS):
            for node in (theirs, ours) if number % 2 == 0 else (ours, theirs):
                node.ups.append(node.resize(UP))
                node.downs.append(node.resize(DOWN))
    return [
        *_figures("more", ours.tree, ours.ups, theirs.ups),
        *_figures("less", ours.tree, ours.downs, theirs.downs),
    ]


def _figures(
    change: str, tree: CgroupTree, ours: Sequence[float], theirs: Sequence[float]
) -> Sequence[Figure]:
    name = f"{change} CPU and memory is in the cgroups, cgroup v{tree.version}"
    return (
        Figure(
            benchmark=NAME,
            name=name,
            value=statistics.median(ours),
            unit="s",
            goal=GOAL_SECONDS,
            how=f"{spread(ours)}; Go kubelet {spread(theirs)}",
        ),
        Figure(
            benchmark=NAME,
            name="the same, of the Go kubelet's",
            value=ratio_of_medians(ours, theirs),
            unit="x",
        ),
    )


@contextmanager
def _node(
    plane: ControlPlane, kind: type[LabAgent], folder: Path, containerd_version: str
) -> Iterator[ResizingNode]:
    name = f"bench-{folder.name}"
    tree = CgroupTree.find(mount_points())
    with Containerd(containerd_version, folder / "containerd") as containerd:
        kubelet = kind(
            containerd.folder / "agent",
            endpoint=containerd.endpoint,
            flags=kubeconfig_flags(plane.node_kubeconfig(name), name),
            cgroup_root=containerd.cgroup_root,
        )
        with kubelet:
            plane.api.create(PODS, _pod(name))
            pod = plane.api.wait_for(
                f"{PODS}/{name}", _is_settled, deadline_seconds=DEADLINE_SECONDS
            )
            yield ResizingNode(name, plane.api, tree, _cgroups(tree, pod))
            plane.api.delete(f"{PODS}/{name}")
            plane.api.wait_gone(f"{PODS}/{name}", deadline_seconds=DEADLINE_SECONDS)


def _pod(node: str) -> Json:
    """A pod that is bound to a node and has its name."""
    body = manifest(node)
    body["metadata"]["namespace"] = "default"
    body["spec"]["nodeName"] = node
    body["spec"]["containers"][0] |= resources(DOWN)
    return body


def resources(size: tuple[int, int]) -> Json:
    """The field of a container that may use so much."""
    cpu, memory = size
    limits = {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}
    return {"resources": {"limits": limits, "requests": limits}}


def _is_settled(pod: Json) -> bool:
    """True if the pod is Ready, and has all that was asked for."""
    conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", ())}
    resizing = {"PodResizePending", "PodResizeInProgress"} & conditions.keys()
    return conditions.get("Ready") == "True" and not resizing


def _cgroups(tree: CgroupTree, pod: Json) -> tuple[tuple[Path, Path], ...]:
    """The cgroups of the pod's container and of the pod."""
    container = pod["status"]["containerStatuses"][0]["containerID"].partition("://")[2]
    cpu, memory = (
        next(tree.hierarchies[controller].rglob(f"*{container}*"))
        for controller in ("cpu", "memory")
    )
    return ((cpu, memory), (cpu.parent, memory.parent))
