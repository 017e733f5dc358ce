"""The agent beside the Go kubelet, each as a node of a real control plane.

Pods are bound to their node when they are created, and their image is there. Times are those of
a watch at the API server. Both nodes are up all the time, each with a containerd of its own, and
do the same in turn, again and again: a host that gets slower does so for both. So do bare calls
to a third containerd, without a node and a control plane: what no agent can do without.
"""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import trio
from attrs import Factory, frozen

from benchmarks.figures import Figure, ratio_of_medians, spread
from benchmarks.idle import cpu_percent, cpu_seconds, resident_mib
from benchmarks.real_node import open_real_node, private_containerd
from benchmarks.watched_pods import WatchedPods, kubeconfig_flags
from lab.agent import Agent
from lab.containerd import Containerd
from lab.control_plane import ControlPlane
from lab.go_kubelet import GoKubelet

NAME = "cluster"
ROUNDS = 15
BURST_EACH = 5
"""So many rounds of single pods there are for one of bursts."""

PAUSE_SECONDS = 0.5
SETTLE_SECONDS = 10.0
IDLE_SECONDS = 30.0
MANY, MOST = 50, 100
BARE_WIDTH = 4
"""So many pods bare calls start at a time; the benchmark `burst` has other widths, too."""

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

    unit: str = "s"
    values: list[float] = Factory(list)

    def __str__(self) -> str:
        if self.unit == "s":
            return spread(self.values)
        return f"{statistics.median(self.values):.1f} {self.unit}"


UNITS: Mapping[str, str] = {"CPU with 100 idle pods": "%", "memory with 100 pods": "MiB"}
"""Of what is not in seconds."""


@frozen
class Node:
    """A node under test, and what was measured of it."""

    name: str
    kubelet: Agent
    pods: WatchedPods
    samples: Mapping[str, Samples] = Factory(
        lambda: {name: Samples(UNITS.get(name, "s")) for name in GOALS}
    )

    def note(self, figure: str, value: float) -> None:
        """Add a measured value."""
        self.samples[figure].values.append(value)


def measure(folder: Path, rounds: int, containerd: str) -> list[Figure]:
    """Measure both in turn. Blocks. Raises LabError; UnavailableError without programs or Go."""
    usual = rounds or ROUNDS
    with ControlPlane(folder / "control-plane") as plane, ExitStack() as stack:
        theirs, ours = nodes = [
            stack.enter_context(_node(plane, kind, folder / name, containerd))
            for name, kind in (("go", GoKubelet), ("trio", Agent))
        ]
        bare = stack.enter_context(private_containerd(containerd, folder / "bare"))
        bare_samples = {count: Samples() for count in (MANY, MOST)}
        time.sleep(SETTLE_SECONDS)
        for number in range(usual):
            for node in _in_turn(nodes, number):
                _one(node, f"{node.name}-single-{number}")
        for number in range(-(-usual // BURST_EACH)):
            for count in (MANY, MOST):
                for node in _in_turn(nodes, number):
                    _at_once(node, count, number)
                bare_samples[count].values.append(trio.run(_bare_burst, bare, folder, count))
    return [
        *(_figure(name, ours.samples[name], theirs.samples[name]) for name in GOALS),
        *(
            _bare_figure(count, samples, theirs.samples[f"{count} at once, all Ready"])
            for count, samples in bare_samples.items()
        ),
    ]


def _in_turn(nodes: Sequence[Node], number: int) -> Sequence[Node]:
    """Each is first every other time: what one leaves to be done is done beside the next."""
    return nodes if number % 2 == 0 else nodes[::-1]


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


def _bare_figure(count: int, bare: Samples, theirs: Samples) -> Figure:
    return Figure(
        benchmark=NAME,
        name=f"{count} by bare calls, all running, of the Go kubelet's all Ready",
        value=ratio_of_medians(bare.values, theirs.values),
        unit="x",
        how=f"{bare}; Go kubelet {theirs}",
    )


async def _bare_burst(containerd: Containerd, folder: Path, count: int) -> float:
    async with open_real_node(containerd, folder / "bare", rounds=1) as node:
        return await node.bare_burst(count, BARE_WIDTH)


@contextmanager
def _node(
    plane: ControlPlane, kind: type[Agent], folder: Path, containerd_version: str
) -> Iterator[Node]:
    name = f"bench-{folder.name}"
    with Containerd(containerd_version, folder / "containerd") as containerd:
        kubelet = kind(
            containerd.folder / "agent",
            endpoint=containerd.endpoint,
            settings={"maxPods": MAX_PODS},
            flags=kubeconfig_flags(plane.node_kubeconfig(name), name),
            cgroup_root=containerd.cgroup_root,
        )
        with kubelet, WatchedPods(plane.api, name) as pods:
            plane.api.wait_for(
                f"/api/v1/nodes/{name}", _is_ready, deadline_seconds=READY_DEADLINE_SECONDS
            )
            yield Node(name, kubelet, pods)


def _is_ready(node: Mapping[str, Mapping[str, list[Mapping[str, str]]]]) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _one(node: Node, name: str) -> None:
    """Start and delete one pod."""
    began_at = node.pods.create([name])
    node.note("created to Ready", node.pods.wait_ready([name])[name] - began_at)
    time.sleep(PAUSE_SECONDS)
    began_at = node.pods.delete([name])
    node.note("deleted to gone", node.pods.wait_gone([name])[name] - began_at)
    time.sleep(PAUSE_SECONDS)


def _at_once(node: Node, count: int, number: int) -> None:
    """Start so many pods; with most of them, look at what they cost, too."""
    pods, pid = node.pods, node.kubelet.pid
    names = [f"{node.name}-{number}-of-{count}-{each}" for each in range(count)]
    used = cpu_seconds(pid)
    began_at = pods.create(names)
    times = [at - began_at for at in pods.wait_ready(names).values()]
    node.note(f"{count} at once, all Ready", max(times))
    node.note(f"{count} at once, the median pod", statistics.median(times))
    if count == MOST:
        node.note("CPU for a pod", (cpu_seconds(pid) - used) / count)
        time.sleep(SETTLE_SECONDS)
        if number == 0:
            node.note("CPU with 100 idle pods", trio.run(cpu_percent, pid, IDLE_SECONDS))
            node.note("memory with 100 pods", resident_mib(pid))
    began_at = pods.delete(names)
    gone = [at - began_at for at in pods.wait_gone(names).values()]
    if count == MOST:
        node.note(f"{count} at once, all gone", max(gone))
    time.sleep(SETTLE_SECONDS)
