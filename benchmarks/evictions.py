"""Memory that runs out: how soon the pod that eats it is stopped, beside the Go kubelet.

`evictions` has both on this host, and beside that the CPU time of the looks from which evictions
follow (`eviction_pass.py`); `evictions-guest` has them on machines of the lab, with systemd and
cgroup v2 (`eviction_guests.py`). Both nodes do the same in turn (`eviction_watch.py`).
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import trio
from attrs import Factory, frozen

from benchmarks import eviction_pass
from benchmarks.eviction_watch import DEADLINE_SECONDS, EAT, seconds_to_stop, settings
from benchmarks.figures import Figure, ratio_of_medians, spread
from benchmarks.watched_pods import PODS, kubeconfig_flags
from lab.agent import Json, LabAgent, pod_manifest
from lab.cluster_api import ClusterApi
from lab.containerd import Containerd
from lab.control_plane import ControlPlane
from lab.go_kubelet import GoKubelet
from lab.images import BUSYBOX
from lab.processes import wait_until
from trio_kubelet.kernel.mountinfo import mount_points
from trio_kubelet.resources import CgroupTree
from trio_kubelet.stats.cgroup_reader import CgroupReader
from trio_kubelet.stats.kernel_text import meminfo

NAME = "evictions"
ROUNDS = 5
GOAL_SECONDS = 2.0
MEMINFO = Path("/proc/meminfo")


@frozen
class EvictingNode:
    """A node under test.

    `watch` makes the file `watches`, waits for a pod that eats, and returns the seconds from
    crossing the threshold to its end; `crossed_to_stopped` are those of all rounds.
    """

    name: str
    api: ClusterApi
    watch: Callable[[], float]
    watches: Path
    crossed_to_stopped: list[float] = Factory(list)


def measure(folder: Path, rounds: int, containerd: str) -> list[Figure]:
    """Measure both in turn. Blocks. Raises LabError; UnavailableError without programs or Go."""
    with ControlPlane(folder / "control-plane") as plane, ExitStack() as stack:
        theirs, ours = (
            stack.enter_context(_node(plane, kind, folder / name, containerd))
            for name, kind in (("go", GoKubelet), ("trio", LabAgent))
        )
        evict_in_turn(ours, theirs, rounds)
    version = CgroupTree.find(mount_points()).version
    return [
        *figures(NAME, ours, theirs, f"cgroup v{version}"),
        *trio.run(eviction_pass.measure, NAME, folder),
    ]


def evict_in_turn(ours: EvictingNode, theirs: EvictingNode, rounds: int) -> None:
    """Let both nodes evict a pod, one after the other, so many times or as often as usual."""
    for number in range(rounds or ROUNDS):
        for node in (theirs, ours) if number % 2 == 0 else (ours, theirs):
            node.crossed_to_stopped.append(_evict_one(node, f"{node.name}-{number}"))


@contextmanager
def _node(
    plane: ControlPlane, kind: type[LabAgent], folder: Path, containerd_version: str
) -> Iterator[EvictingNode]:
    name = f"bench-{folder.name}"
    with Containerd(containerd_version, folder / "containerd") as containerd:
        kubelet = kind(
            containerd.folder / "agent",
            endpoint=containerd.endpoint,
            settings=settings(meminfo(MEMINFO.read_bytes())["MemTotal"]),
            flags=kubeconfig_flags(plane.node_kubeconfig(name), name),
            cgroup_root=containerd.cgroup_root,
        )
        with kubelet:
            reader = CgroupReader(
                tree=CgroupTree.find(mount_points()), cgroup_root=containerd.cgroup_root
            )
            watches = folder / "watches"
            watch = partial(seconds_to_stop, reader, watches)
            yield EvictingNode(name, plane.api, watch, watches)


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
    node.watches.unlink(missing_ok=True)
    with ThreadPoolExecutor(1) as thread:
        watching = thread.submit(node.watch)
        wait_until(
            lambda: watching.done() or node.watches.exists(),
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: f"{node.name} is not watched",
        )
        node.api.create(PODS, eater(node.name, name))
        seconds = watching.result()
    node.api.wait_for(
        f"{PODS}/{name}",
        lambda pod: pod["status"].get("reason") == "Evicted",
        deadline_seconds=DEADLINE_SECONDS,
    )
    node.api.delete(f"{PODS}/{name}")
    node.api.wait_gone(f"{PODS}/{name}", deadline_seconds=DEADLINE_SECONDS)
    return seconds


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


def figures(
    benchmark: str, ours: EvictingNode, theirs: EvictingNode, where: str
) -> Sequence[Figure]:
    """How soon both have stopped the pod."""
    how = f"{spread(ours.crossed_to_stopped)}; Go kubelet {spread(theirs.crossed_to_stopped)}"
    return [
        Figure(
            benchmark=benchmark,
            name=f"memory crosses a hard threshold to the pod's SIGTERM, {where}",
            value=statistics.median(ours.crossed_to_stopped),
            unit="s",
            goal=GOAL_SECONDS,
            how=how,
        ),
        Figure(
            benchmark=benchmark,
            name="the same, of the Go kubelet's",
            value=ratio_of_medians(ours.crossed_to_stopped, theirs.crossed_to_stopped),
            unit="x",
        ),
    ]
