"""What volumes cost the start of a pod, and how soon an update is in them, beside the Go kubelet.

Both are nodes of one control plane, each with a containerd and a CSI driver of the lab, and do the
same in turn. Pods are bound to their node and their image is there; times are those of a watch at
the API server, but for updates of config maps, for which the files on the node are read.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from attrs import Factory, frozen

from benchmarks.figures import Figure, ratio_of_medians, spread
from benchmarks.manifests import manifest
from benchmarks.watched_pods import WatchedPods, kubeconfig_flags
from lab.agent import Json, LabAgent
from lab.cluster_api import ClusterApi
from lab.containerd import Containerd
from lab.control_plane import ControlPlane
from lab.csi_driver import NAME as DRIVER
from lab.go_kubelet import GoKubelet
from lab.processes import wait_until

NAME = "volumes"
ROUNDS = 15
ROUNDS_OF_AN_UPDATE = 5
"""So many rounds of single pods there are for one update; the Go kubelet needs a minute for it."""
MOUNTING_PODS = 50
CSI_VOLUMES = 20
PUBLISH_SECONDS = 0.1
"""The driver takes so long to publish a volume."""
PAUSE_SECONDS = 0.5
READ_SECONDS = 0.01
DEADLINE_SECONDS = 180.0
MAX_PODS = 200
GOAL_USUAL_MS, GOAL_CSI_MS, GOAL_UPDATE_SECONDS = 15.0, 300.0, 2.0

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
CONFIG_MAP = "benchmark"
CSI_DRIVERS = "/apis/storage.k8s.io/v1/csidrivers"

BARE = "without volumes"
USUAL = "with a token, a config map and an emptyDir"
CSI = f"with {CSI_VOLUMES} CSI volumes that take {PUBLISH_SECONDS * 1000:.0f} ms each"
UPDATE = f"an update of a config map is in {MOUNTING_PODS} pods"


@frozen
class VolumesNode:
    """A node under test, and what was measured of it, in seconds."""

    name: str
    kubelet: LabAgent
    pods: WatchedPods
    samples: Mapping[str, list[float]] = Factory(
        lambda: {name: [] for name in (BARE, USUAL, CSI, UPDATE)}
    )

    def more_ms(self, figure: str) -> float:
        """How much longer the median start took than that of a pod without volumes."""
        medians = (statistics.median(self.samples[name]) for name in (figure, BARE))
        return 1000 * (next(medians) - next(medians))


def measure(folder: Path, rounds: int, containerd: str) -> list[Figure]:
    """Measure both in turn. Blocks. Raises LabError; UnavailableError without programs or Go."""
    usual = rounds or ROUNDS
    with ControlPlane(folder / "control-plane") as plane, ExitStack() as stack:
        modes = {"volumeLifecycleModes": ["Ephemeral"], "attachRequired": False}
        plane.api.create(CSI_DRIVERS, {"metadata": {"name": DRIVER}, "spec": modes})
        _update(plane.api, "0")
        theirs, ours = (
            stack.enter_context(_node(plane, kind, folder / name, containerd))
            for name, kind in (("go", GoKubelet), ("trio", LabAgent))
        )
        for number in range(usual):
            for node in (theirs, ours) if number % 2 == 0 else (ours, theirs):
                for figure, make in ((BARE, bare_pod), (USUAL, usual_pod), (CSI, csi_pod)):
                    _start_one(node, figure, make(f"{node.name}-{number}-{len(figure)}"))
        for node in (theirs, ours):
            _measure_updates(plane.api, node, -(-usual // ROUNDS_OF_AN_UPDATE))
    return [
        *(
            Figure(
                benchmark=NAME,
                name=f"created to Ready {figure}, more than without",
                value=ours.more_ms(figure),
                unit="ms",
                goal=goal,
                how=f"{spread(ours.samples[figure])}; without {spread(ours.samples[BARE])}; "
                f"Go kubelet {theirs.more_ms(figure):.0f} ms more: "
                f"{spread(theirs.samples[figure])}, without {spread(theirs.samples[BARE])}",
            )
            for figure, goal in ((USUAL, GOAL_USUAL_MS), (CSI, GOAL_CSI_MS))
        ),
        Figure(
            benchmark=NAME,
            name=UPDATE,
            value=statistics.median(ours.samples[UPDATE]),
            unit="s",
            goal=GOAL_UPDATE_SECONDS,
            how=f"{spread(ours.samples[UPDATE])}; Go kubelet {spread(theirs.samples[UPDATE])}",
        ),
        Figure(
            benchmark=NAME,
            name=f"{UPDATE}, of the Go kubelet's",
            value=ratio_of_medians(ours.samples[UPDATE], theirs.samples[UPDATE]),
            unit="x",
        ),
    ]


def bare_pod(name: str) -> Json:
    """A pod without any volume, not even that of its token."""
    pod = manifest(name)
    pod["spec"]["automountServiceAccountToken"] = False
    return pod


def usual_pod(name: str) -> Json:
    """A pod with the volume that the API server gives it for its token, and two others."""
    return with_volumes(manifest(name), config={"configMap": {"name": CONFIG_MAP}}, files={})


def csi_pod(name: str) -> Json:
    """A pod with volumes that the driver makes for it."""
    volumes = {f"v{number}": {"csi": {"driver": DRIVER}} for number in range(CSI_VOLUMES)}
    return with_volumes(bare_pod(name), **volumes)


def mounting_pod(name: str) -> Json:
    """A pod with nothing but the config map."""
    return with_volumes(bare_pod(name), config={"configMap": {"name": CONFIG_MAP}})


def with_volumes(pod: Json, **sources: Json) -> Json:
    """Mount volumes into the pod's container; one without a source is an emptyDir."""
    pod["spec"]["volumes"] = [
        {"name": name, **(source or {"emptyDir": {}})} for name, source in sources.items()
    ]
    pod["spec"]["containers"][0]["volumeMounts"] = [
        {"name": name, "mountPath": f"/{name}"} for name in sources
    ]
    return pod


def _start_one(node: VolumesNode, figure: str, pod: Json) -> None:
    name = pod["metadata"]["name"]
    began_at = node.pods.create_from([pod])
    node.samples[figure].append(node.pods.wait_ready([name])[name] - began_at)
    node.pods.delete([name])
    node.pods.wait_gone([name])
    time.sleep(PAUSE_SECONDS)


def _measure_updates(api: ClusterApi, node: VolumesNode, updates: int) -> None:
    names = [f"{node.name}-mounts-{number}" for number in range(MOUNTING_PODS)]
    node.pods.create_from(map(mounting_pod, names))
    node.pods.wait_ready(names)
    pattern = "pods/*/volumes/kubernetes.io~configmap/config"
    volumes = list(node.kubelet.root.glob(pattern))
    for number in range(updates):
        text = f"{node.name} {number}"
        _update(api, text)
        began_at = time.monotonic()
        _wait_shown(volumes, text)
        node.samples[UPDATE].append(time.monotonic() - began_at)
    node.pods.delete(names)
    node.pods.wait_gone(names)


def _update(api: ClusterApi, text: str) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG_MAP}}
    apply = "application/apply-patch+yaml"
    path = f"{CONFIG_MAPS}/{CONFIG_MAP}?fieldManager=benchmark&force=true"
    api.patch(path, {**body, "data": {"text": text}}, apply)


def _wait_shown(volumes: Sequence[Path], text: str) -> None:
    left = list(volumes)
    end = time.monotonic() + DEADLINE_SECONDS

    def are_all() -> bool:
        left[:] = [each for each in left if (each / "text").read_text() != text]
        return not left

    while not are_all() and time.monotonic() < end:
        time.sleep(READ_SECONDS)
    wait_until(are_all, deadline_seconds=0, else_say=lambda: f"{len(left)} pods have it not")


@contextmanager
def _node(
    plane: ControlPlane, kind: Callable[..., LabAgent], folder: Path, containerd_version: str
) -> Iterator[VolumesNode]:
    name = f"bench-{folder.name}"
    with Containerd(containerd_version, folder / "containerd") as containerd:
        kubelet = kind(
            containerd.folder / "agent",
            endpoint=containerd.endpoint,
            settings={"maxPods": MAX_PODS},
            flags=kubeconfig_flags(plane.node_kubeconfig(name), name),
            cgroup_root=containerd.cgroup_root,
        )
        with kubelet, _driver(kubelet, name), WatchedPods(plane.api, name) as pods:
            for path, holds in (
                (f"/api/v1/nodes/{name}", _is_ready),
                (f"/apis/storage.k8s.io/v1/csinodes/{name}", _has_driver),
            ):
                plane.api.wait_for(path, holds, deadline_seconds=DEADLINE_SECONDS)
            yield VolumesNode(name, kubelet, pods)


def _is_ready(node: Json) -> bool:
    conditions = node.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _has_driver(csi_node: Json) -> bool:
    return any(each["name"] == DRIVER for each in csi_node["spec"].get("drivers") or ())


@contextmanager
def _driver(kubelet: LabAgent, node: str) -> Iterator[None]:
    """The lab's driver, a process of its own, registered with a kubelet."""
    folder = kubelet.folder / "csi"
    folder.mkdir()
    slow = {"NodePublishVolume": {"slow": PUBLISH_SECONDS}}
    (folder / "faults.json").write_text(json.dumps(slow))
    socket = kubelet.root / "plugins_registry" / "lab.sock"
    command = [sys.executable, "-m", "lab.csi_driver", "--folder", str(folder), "--mounts"]
    command += ["--registry-socket", str(socket), "--node-id", node]
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.kill()
