"""The agent beside the Go kubelet, each as a node of a real control plane.

Pods are bound to their node when they are created, and their image is there. Times are those of
a watch at the API server. Both have a containerd of their own and run in turn: the Go kubelet is
measured first, then the agent with the same pods.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import trio
from attrs import frozen

from benchmarks.figures import Figure, ratio_of_medians, spread
from benchmarks.idle import cpu_percent, cpu_seconds, resident_mib
from benchmarks.watched_pods import WatchedPods, kubeconfig_flags
from lab.agent import Agent
from lab.containerd import Containerd
from lab.control_plane import ControlPlane
from lab.go_kubelet import GoKubelet

NAME = "cluster"
ROUNDS = 15
PAUSE_SECONDS = 0.5
SETTLE_SECONDS = 10.0
IDLE_SECONDS = 30.0
MANY, MOST = 50, 100
READY_DEADLINE_SECONDS = 120.0
MAX_PODS = 200

GOALS: Mapping[str, float] = {
    "created to Ready": 0.5,
    "deleted to gone": 0.3,
    "50 at once, all Ready": 0.75,
    "50 at once, the median pod": 0.45,
    "100 at once, all Ready": 0.65,
    "100 at once, the median pod": 0.4,
    "100 at once, all gone": float("inf"),
    "CPU for a pod": 1.0,
    "CPU with 100 idle pods": 0.5,
    "memory with 100 pods": 0.9,
}
"""The largest ratio to the Go kubelet that is good enough."""


@frozen
class Samples:
    """What was measured of one figure, and its unit: `s`, `%` of a core, `MiB`."""

    values: Sequence[float]
    unit: str = "s"

    def __str__(self) -> str:
        if self.unit == "s":
            return spread(self.values)
        return f"{statistics.median(self.values):.1f} {self.unit}"


def measure(folder: Path, rounds: int, containerd: str) -> list[Figure]:
    """Measure both in turn. Blocks. Raises LabError; UnavailableError without programs or Go."""
    usual = rounds or ROUNDS
    with ControlPlane(folder / "control-plane") as plane:
        theirs = _measure_one(plane, GoKubelet, "go", folder, usual, containerd)
        ours = _measure_one(plane, Agent, "trio", folder, usual, containerd)
    return [_figure(name, ours[name], theirs[name]) for name in GOALS]


def _figure(name: str, ours: Samples, theirs: Samples) -> Figure:
    goal = GOALS[name]
    return Figure(
        benchmark=NAME,
        name=f"{name}, of the Go kubelet's",
        value=ratio_of_medians(ours.values, theirs.values),
        unit="x",
        goal=None if goal == float("inf") else goal,
        how=f"{ours}; Go kubelet {theirs}",
    )


def _measure_one(
    plane: ControlPlane,
    kind: type[Agent],
    name: str,
    folder: Path,
    rounds: int,
    version: str,
) -> Mapping[str, Samples]:
    node = f"bench-{name}"
    with Containerd(version, folder / name / "containerd") as containerd:
        kubelet = kind(
            containerd.folder / "agent",
            endpoint=containerd.endpoint,
            settings={"maxPods": MAX_PODS},
            flags=kubeconfig_flags(plane.node_kubeconfig(node), node),
            cgroup_root=containerd.cgroup_root,
        )
        with kubelet, WatchedPods(plane.api, node) as pods:
            plane.api.wait_for(
                f"/api/v1/nodes/{node}", _is_ready, deadline_seconds=READY_DEADLINE_SECONDS
            )
            time.sleep(SETTLE_SECONDS)
            return {
                **_one_after_another(pods, rounds),
                **_at_once(pods, MANY, kubelet.pid),
                **_at_once(pods, MOST, kubelet.pid),
            }


def _is_ready(node: Mapping[str, Mapping[str, list[Mapping[str, str]]]]) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _one_after_another(pods: WatchedPods, rounds: int) -> Mapping[str, Samples]:
    ready, gone = [], []
    for number in range(rounds):
        name = f"single-{number}"
        began_at = pods.create([name])
        ready.append(pods.wait_ready([name])[name] - began_at)
        time.sleep(PAUSE_SECONDS)
        began_at = pods.delete([name])
        gone.append(pods.wait_gone([name])[name] - began_at)
        time.sleep(PAUSE_SECONDS)
    return {"created to Ready": Samples(ready), "deleted to gone": Samples(gone)}


def _at_once(pods: WatchedPods, count: int, pid: int) -> dict[str, Samples]:
    """Start so many pods; with most of them, look at what they cost, too."""
    names = [f"of-{count}-{number}" for number in range(count)]
    used = cpu_seconds(pid)
    began_at = pods.create(names)
    times = [at - began_at for at in pods.wait_ready(names).values()]
    figures = {
        f"{count} at once, all Ready": Samples([max(times)]),
        f"{count} at once, the median pod": Samples([statistics.median(times)]),
    }
    if count == MOST:
        figures["CPU for a pod"] = Samples([(cpu_seconds(pid) - used) / count])
        time.sleep(SETTLE_SECONDS)
        percent = trio.run(cpu_percent, pid, IDLE_SECONDS)
        figures["CPU with 100 idle pods"] = Samples([percent], "%")
        figures["memory with 100 pods"] = Samples([resident_mib(pid)], "MiB")
    began_at = pods.delete(names)
    gone = [at - began_at for at in pods.wait_gone(names).values()]
    if count == MOST:
        figures[f"{count} at once, all gone"] = Samples([max(gone)])
    time.sleep(SETTLE_SECONDS)
    return figures
