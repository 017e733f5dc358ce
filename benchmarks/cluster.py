"""The agent beside the Go kubelet, each as a node of a real control plane.

Pods are bound to their node when they are created, and their image is there. Times are those of
a watch at the API server. Both nodes are up all the time, each with a containerd of its own, and
do the same in turn, again and again: a host that gets slower does so for both. So do bare calls
to a third containerd, without a node and a control plane: what no agent can do without. What a
node removes only after its pods are gone is waited for, so that nothing is done beside the next.
"""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import trio
from attrs import Factory, evolve, frozen

from benchmarks.figures import Figure, ratio_of_medians, spread
from benchmarks.idle import cpu_percent, cpu_seconds, resident_mib
from benchmarks.real_node import open_real_node, private_containerd
from benchmarks.watched_pods import WatchedPods, kubeconfig_flags
from lab import LabError
from lab.agent import Json, LabAgent
from lab.containerd import Containerd
from lab.control_plane import ControlPlane
from lab.go_kubelet import GoKubelet
from lab.ports import LOOPBACK
from trio_kubelet.rpc import Channel, open_rpc_loop
from trio_kubelet.runtime.client import RuntimeClient

NAME = "cluster"
ENDS_NAME, SINGLE_NAME = "cluster-ends", "cluster-single"
ROUNDS = 15
ENDS_ROUNDS = 1
BURST_EACH = 5
"""So many rounds of single pods there are for one of bursts."""

PAUSE_SECONDS = 0.5
SETTLE_SECONDS = 10.0
IDLE_SECONDS = 30.0
MANY, MOST = 50, 100
BARE_WIDTH = 4
"""So many pods bare calls start at a time; the benchmark `burst` has other widths, too."""

READY_DEADLINE_SECONDS = 120.0
CLEAN_DEADLINE_SECONDS = 180.0
"""The Go kubelet removes what dead pods leave once a minute."""
CLEAN_CHECK_SECONDS = 0.5
MAX_PODS = 200

GOALS: Mapping[str, float] = {
    "created to Ready": 0.5,
    "deleted to gone": 0.3,
    "50 at once, all Ready": 0.75,
    "50 at once, all Ready and told": 1.0,
    "50 at once, the median pod": 0.45,
    "100 at once, all Ready": 0.65,
    "100 at once, all Ready and told": 1.0,
    "100 at once, the median pod": 0.4,
    "50 at once, all gone": 1.0,
    "100 at once, all gone": 1.0,
    "CPU for a pod": 1.0,
    "CPU for a whole life": 1.0,
    "CPU with 100 idle pods": 0.5,
    "memory with 100 pods": 0.9,
}
"""The largest ratio to the Go kubelet that is good enough."""

PROBED = "created to Ready with a readiness probe"
GOAL_PROBED_MS = 30.0
"""How much later a pod may be Ready whose probe succeeds at once."""

ENDS = (
    "50 at once, all Ready",
    "50 at once, all Ready and told",
    "100 at once, all Ready",
    "100 at once, all Ready and told",
    "50 at once, all gone",
    "100 at once, all gone",
    "CPU for a pod",
    "CPU for a whole life",
)
"""The figures of `cluster-ends`."""
SINGLE = ("created to Ready", "deleted to gone")
"""The figures of `cluster-single`, beside that of a pod with a probe."""


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
class BenchmarkedNode:
    """A node under test, and what was measured of it.

    `idle_cores` is the CPU time that its kubelet uses in a second when there are no pods, `probe`
    one that succeeds at once.
    """

    name: str
    kubelet: LabAgent
    containerd: Containerd
    pods: WatchedPods
    probe: Json
    idle_cores: float = 0.0
    samples: Mapping[str, Samples] = Factory(
        lambda: {name: Samples(UNITS.get(name, "s")) for name in (*GOALS, PROBED)}
    )

    def note(self, figure: str, value: float) -> None:
        """Add a measured value."""
        self.samples[figure].values.append(value)

    def busy_seconds(self, used: float, began_at: float) -> float:
        """CPU time of the kubelet since it had used so much, without what it uses when idle."""
        idle = self.idle_cores * (time.monotonic() - began_at)
        return cpu_seconds(self.kubelet.pid) - used - idle

    def wait_clean(self) -> None:
        """Wait until nothing of any pod is left in the runtime. Raises LabError."""
        end = time.monotonic() + CLEAN_DEADLINE_SECONDS
        while trio.run(_count_in_runtime, self.containerd.endpoint):
            if time.monotonic() > end:
                raise LabError(f"{self.name}: pods that are gone are still in the runtime")
            time.sleep(CLEAN_CHECK_SECONDS)


def measure(folder: Path, rounds: int, containerd: str) -> list[Figure]:
    """Measure both in turn. Blocks. Raises LabError; UnavailableError without programs or Go."""
    usual = rounds or ROUNDS
    bare_samples = {count: Samples() for count in (MANY, MOST)}
    with (
        _nodes(folder, containerd) as (theirs, ours),
        private_containerd(containerd, folder / "bare") as bare,
    ):
        nodes = (theirs, ours)
        _singles(nodes, usual)
        for number in range(-(-usual // BURST_EACH)):
            for count in (MANY, MOST):
                for node in _in_turn(nodes, number):
                    _at_once(node, count, number)
                bare_samples[count].values.append(trio.run(_bare_burst, bare, folder, count))
    return [
        *(_figure(NAME, name, ours, theirs) for name in GOALS),
        _probed_figure(NAME, ours, theirs),
        *(
            _bare_figure(count, samples, theirs.samples[f"{count} at once, all Ready"])
            for count, samples in bare_samples.items()
        ),
    ]


def measure_ends(folder: Path, rounds: int, containerd: str) -> list[Figure]:
    """Measure the ends of many pods alone, in minutes. Blocks. Raises as `measure`."""
    with _nodes(folder, containerd) as (theirs, ours):
        for number in range(rounds or ENDS_ROUNDS):
            for turn, count in enumerate((MANY, MOST), start=number):
                for node in _in_turn((theirs, ours), turn):
                    _at_once(node, count, number, is_whole=False)
    return [_figure(ENDS_NAME, name, ours, theirs) for name in ENDS]


def measure_single(folder: Path, rounds: int, containerd: str) -> list[Figure]:
    """Measure pods that start and go alone, in minutes. Blocks. Raises as `measure`."""
    with _nodes(folder, containerd) as (theirs, ours):
        _singles((theirs, ours), rounds or ROUNDS)
    single = [_figure(SINGLE_NAME, name, ours, theirs) for name in SINGLE]
    return [*single, _probed_figure(SINGLE_NAME, ours, theirs)]


@contextmanager
def _nodes(folder: Path, containerd: str) -> Iterator[tuple[BenchmarkedNode, BenchmarkedNode]]:
    """The Go kubelet's node and the agent's, both idle."""
    with ControlPlane(folder / "control-plane") as plane, ExitStack() as stack:
        theirs, ours = (
            stack.enter_context(_node(plane, kind, folder / name, containerd))
            for name, kind in (("go", GoKubelet), ("trio", LabAgent))
        )
        time.sleep(SETTLE_SECONDS)
        used = [(node, cpu_seconds(node.kubelet.pid)) for node in (theirs, ours)]
        time.sleep(SETTLE_SECONDS)
        theirs, ours = (
            evolve(node, idle_cores=(cpu_seconds(node.kubelet.pid) - before) / SETTLE_SECONDS)
            for node, before in used
        )
        yield theirs, ours


def _in_turn(nodes: Sequence[BenchmarkedNode], number: int) -> Sequence[BenchmarkedNode]:
    """Each is first every other time."""
    return nodes if number % 2 == 0 else nodes[::-1]


def _figure(
    benchmark: str, name: str, our_node: BenchmarkedNode, their_node: BenchmarkedNode
) -> Figure:
    ours, theirs = our_node.samples[name], their_node.samples[name]
    return Figure(
        benchmark=benchmark,
        name=f"{name}, of the Go kubelet's",
        value=ratio_of_medians(ours.values, theirs.values),
        unit="x",
        goal=GOALS[name],
        how=f"{ours}; Go kubelet {theirs}",
    )


def _probed_figure(
    benchmark: str, our_node: BenchmarkedNode, their_node: BenchmarkedNode
) -> Figure:
    ours, theirs = (
        1000
        * (
            statistics.median(node.samples[PROBED].values)
            - statistics.median(node.samples["created to Ready"].values)
        )
        for node in (our_node, their_node)
    )
    return Figure(
        benchmark=benchmark,
        name=f"{PROBED}, more than without",
        value=ours,
        unit="ms",
        goal=GOAL_PROBED_MS,
        how=f"Go kubelet {theirs:.0f} ms",
    )


def _bare_figure(count: int, bare: Samples, theirs: Samples) -> Figure:
    return Figure(
        benchmark=NAME,
        name=f"{count} by bare calls, all running, of the Go kubelet's all Ready",
        value=ratio_of_medians(bare.values, theirs.values),
        unit="x",
        how=f"{bare}; Go kubelet {theirs}",
    )


async def _count_in_runtime(endpoint: str) -> int:
    """How many sandboxes and containers there are."""
    async with open_rpc_loop():
        client = RuntimeClient(Channel(endpoint))
        return len(await client.list_pod_sandboxes()) + len(await client.list_containers())


async def _bare_burst(containerd: Containerd, folder: Path, count: int) -> float:
    async with open_real_node(containerd, folder / "bare", rounds=1) as node:
        return await node.bare_burst(count, BARE_WIDTH)


@contextmanager
def _node(
    plane: ControlPlane, kind: type[LabAgent], folder: Path, containerd_version: str
) -> Iterator[BenchmarkedNode]:
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
            # The API server listens on the host, which is where tcpSocket probes come from.
            action = {"tcpSocket": {"host": LOOPBACK, "port": plane.port}}
            yield BenchmarkedNode(name, kubelet, containerd, pods, {**action, "periodSeconds": 1})


def _is_ready(node: Mapping[str, Mapping[str, list[Mapping[str, str]]]]) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _singles(nodes: Sequence[BenchmarkedNode], rounds: int) -> None:
    """Start and delete pods one by one, in turn, without and with a probe."""
    for number in range(rounds):
        for node in _in_turn(nodes, number):
            _one(node, f"{node.name}-single-{number}")
            _one_probed(node, f"{node.name}-probed-{number}")


def _one(node: BenchmarkedNode, name: str) -> None:
    """Start and delete one pod."""
    began_at = node.pods.create([name])
    node.note("created to Ready", node.pods.wait_ready([name])[name] - began_at)
    time.sleep(PAUSE_SECONDS)
    began_at = node.pods.delete([name])
    node.note("deleted to gone", node.pods.wait_gone([name])[name] - began_at)
    time.sleep(PAUSE_SECONDS)


def _one_probed(node: BenchmarkedNode, name: str) -> None:
    """Start and delete one pod whose readiness probe succeeds at once."""
    began_at = node.pods.create([name], probe=node.probe)
    node.note(PROBED, node.pods.wait_ready([name])[name] - began_at)
    node.pods.delete([name])
    node.pods.wait_gone([name])
    time.sleep(PAUSE_SECONDS)


def _at_once(node: BenchmarkedNode, count: int, number: int, *, is_whole: bool = True) -> None:
    """Start so many pods and delete them; if it is a whole run, look at most of them idle, too.

    A whole life is that from the creation until all is settled, and from the deletion until
    nothing is left in the runtime; what the kubelet uses without any pods is not counted in it.
    """
    pods, pid = node.pods, node.kubelet.pid
    names = [f"{node.name}-{number}-of-{count}-{each}" for each in range(count)]
    used = cpu_seconds(pid)
    began_at = pods.create(names)
    times = [at - began_at for at in pods.wait_ready(names).values()]
    node.note(f"{count} at once, all Ready", max(times))
    node.note(f"{count} at once, the median pod", statistics.median(times))
    told = [at - began_at for at in pods.wait_told(names).values()]
    node.note(f"{count} at once, all Ready and told", max(*times, *told))
    if count == MOST:
        node.note("CPU for a pod", (cpu_seconds(pid) - used) / count)
    time.sleep(SETTLE_SECONDS)
    life = node.busy_seconds(used, began_at)
    if count == MOST and number == 0 and is_whole:
        node.note("CPU with 100 idle pods", trio.run(cpu_percent, pid, IDLE_SECONDS))
        node.note("memory with 100 pods", resident_mib(pid))
    used = cpu_seconds(pid)
    began_at = pods.delete(names)
    gone = [at - began_at for at in pods.wait_gone(names).values()]
    node.note(f"{count} at once, all gone", max(gone))
    node.wait_clean()
    life += node.busy_seconds(used, began_at)
    node.note("CPU for a whole life", life / count)
