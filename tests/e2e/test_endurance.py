"""A node of fifty pods that crash, end, are deleted and pulled all the time keeps its figures.

TRIO_KUBELET_ENDURANCE_MINUTES is how long (`nox -s endurance`: 40). Samples go to the file that
TRIO_KUBELET_ENDURANCE_FIGURES names, one a line, where those of earlier runs count, too: a node of
six hours may be nine runs.
"""

import json
import os
import time
from collections.abc import Iterator
from itertools import count, groupby
from pathlib import Path

import pytest

from lab.cluster_api import Json
from lab.images import BUSYBOX
from lab.processes import wait_until
from lab.registry import Registry
from tests.e2e.cluster import Namespace, is_ready, phase, shell, until_term
from tests.e2e.local import LocalCluster
from tests.growth import Sample, growth

MINUTES = float(os.environ.get("TRIO_KUBELET_ENDURANCE_MINUTES", "0"))
FIGURES = os.environ.get("TRIO_KUBELET_ENDURANCE_FIGURES", "")
WARM_UP_SECONDS = 15 * 60
"""Until then the agent's journal and caches fill: shorter runs say nothing."""
PODS = 50
PAUSE_SECONDS = 3.0
"""Between two pods that are replaced."""
MOST_UNSETTLED = 6
"""Pods that start or end while another one is replaced."""
SAMPLE_EVERY = 3
IMAGE_EVERY = 10
GROWTH = 0.05
GONE_SECONDS = 120

SETTINGS = {
    "featureGates": {"KubeletCrashLoopBackOffMax": True},
    "crashLoopBackOff": {"maxContainerRestartPeriod": "5s"},
    "imageMinimumGCAge": "30s",
    "imageMaximumGCAge": "1m",
}
VOLUMES = [
    {"name": "scratch", "emptyDir": {}},
    {"name": "settings", "configMap": {"name": "settings"}},
]
MOUNTS = [{"name": "scratch", "mountPath": "/scratch"}, {"name": "settings", "mountPath": "/etc/s"}]
KINDS = (
    (until_term("c"), "Always"),
    (shell("c", "sleep 1; exit 1"), "Always"),
    (until_term("c", "echo served"), "Always"),
    (until_term("c"), "Never"),
    (shell("c", "sleep 5; exit 3"), "Never"),
)
"""Container and restart policy of pods."""


@pytest.fixture
def registry(local_cluster: LocalCluster) -> Iterator[Registry]:
    containerd = local_cluster.containerd
    with Registry(containerd.folder / "images") as registry:
        registry.serve_to(containerd.registries)
        yield registry


@pytest.fixture
def figures(tmp_path: Path) -> Path:
    return Path(FIGURES) if FIGURES else tmp_path / "figures"


class Churn:
    """Pods of which the oldest is replaced again and again, and their images."""

    def __init__(self, cluster: LocalCluster, namespace: Namespace, registry: Registry) -> None:
        self._image = cluster.containerd.images[BUSYBOX]
        self._namespace = namespace
        self._registry = registry
        self._name = ""
        self._numbers = count()
        self.names: list[str] = []
        self.replaced = 0
        namespace.create("ConfigMap", "settings", {"data": {"a": "b"}})

    def push(self, number: int) -> None:
        """Have later pods ask for an image that no node has seen."""
        self._name = self._registry.push(self._image.marked(f"of {number}"), f"lab/app:{number}")

    def add(self) -> None:
        number = next(self._numbers)
        container, policy = KINDS[number % len(KINDS)]
        pulled = {"image": self._name, "imagePullPolicy": "Always", "volumeMounts": MOUNTS}
        name = f"pod-{number}"
        self._namespace.add(name, {**container, **pulled}, restartPolicy=policy, volumes=VOLUMES)
        self.names.append(name)

    def replace_oldest(self) -> None:
        self._namespace.api.delete(self._namespace.path("Pod", self.names.pop(0)))
        self.add()
        self.replaced += 1

    def is_kept_up_with(self) -> bool:
        """True unless many pods start or end just now.

        What a node holds depends on how many do, and a machine that is slow for a while is no leak.
        """
        pods = self._namespace.pods()
        settled = [
            pod
            for pod in pods
            if "deletionTimestamp" not in pod["metadata"] and phase(pod) not in ("", "Pending")
        ]
        return len(pods) - len(settled) <= MOST_UNSETTLED


def sample(cluster: LocalCluster, seconds: float) -> Sample:
    """What the agent's process holds, and the files that it keeps."""
    agent = cluster.agent
    process = Path(f"/proc/{agent.pid}")
    pages = int((process / "statm").read_text().split()[1])
    tasks = f"/api/v1/nodes/{cluster.node}/proxy/debug/pprof/goroutine"
    kept = (*os.walk(agent.root), *os.walk(agent.pod_logs))
    return Sample(
        seconds=seconds,
        figures={
            "resident_kib": pages * os.sysconf("SC_PAGE_SIZE") // 1024,
            "descriptors": len(list((process / "fd").iterdir())),
            "threads": len(list((process / "task").iterdir())),
            "tasks": len(cluster.kubectl("get", "--raw", tasks).splitlines()),
            "files": sum(len(folders) + len(files) for _, folders, files in kept),
        },
    )


def write(file: Path, run: str, taken: Sample) -> None:
    with file.open("a") as lines:
        lines.write(json.dumps({"run": run, "seconds": taken.seconds, **taken.figures}) + "\n")


def read(file: Path) -> list[list[Sample]]:
    """The samples of each run that has some after it got warm."""
    lines: list[Json] = [json.loads(line) for line in file.read_text().splitlines()]
    runs = []
    for _, found in groupby(lines, lambda line: line.pop("run")):
        warm = [
            Sample(seconds=seconds, figures=line)
            for line in found
            if (seconds := line.pop("seconds")) >= WARM_UP_SECONDS
        ]
        if len(warm) > 1:
            runs.append(warm)
    return runs


@pytest.mark.skipif(not MINUTES, reason="takes 40 minutes; nox -s endurance does it")
def test_a_node_under_churn_keeps_its_figures(
    local_cluster: LocalCluster, namespace: Namespace, registry: Registry, figures: Path
) -> None:
    local_cluster.restart_agent(**SETTINGS)
    local_cluster.wait_node_ready()
    churn = Churn(local_cluster, namespace, registry)
    churn.push(0)
    stays = namespace.run("stays", until_term("c"))
    for _ in range(PODS):
        churn.add()
    run, pid = time.strftime("%Y-%m-%dT%H:%M:%S"), local_cluster.agent.pid
    began = time.monotonic()
    for step in count(1):
        passed = time.monotonic() - began
        if passed > MINUTES * 60:
            break
        if step % IMAGE_EVERY == 0:
            churn.push(step)
        if churn.is_kept_up_with():
            churn.replace_oldest()
        if step % SAMPLE_EVERY == 0:
            write(figures, run, sample(local_cluster, passed))
        time.sleep(max(0.0, began + step * PAUSE_SECONDS - time.monotonic()))
    grown = {figure: growth(read(figures), figure) for figure in sample(local_cluster, 0).figures}
    print(f"{churn.replaced} pods replaced, turns: {local_cluster.agent.ask('/debug/turns')}")
    for figure, found in grown.items():
        print(figure, found, f"{found.share:.1%}")
    assert local_cluster.agent.pid == pid
    assert churn.replaced > MINUTES
    assert (
        namespace.pod("stays")["status"]["containerStatuses"]
        == (stays["status"]["containerStatuses"])
    )
    newest = next(name for name in reversed(churn.names) if int(name[4:]) % len(KINDS) in (0, 2, 3))
    namespace.wait(newest, is_ready, deadline_seconds=GONE_SECONDS)
    for name in churn.names:
        namespace.api.delete(namespace.path("Pod", name))
    wait_until(
        lambda: len(namespace.pods()) == 1,
        deadline_seconds=GONE_SECONDS,
        else_say=local_cluster.last_words,
    )
    assert {
        figure: f"{each.share:.1%}" for figure, each in grown.items() if each.share > GROWTH
    } == {}
