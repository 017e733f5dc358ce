"""Where the processes of pods are counted and what they are held to, read off the kernel."""

from pathlib import Path

import pytest

from lab import host
from lab.agent import Json, is_running, pod_manifest
from tests.integration.pods import (
    CGROUPS,
    Node,
    conditions,
    container_ids,
    one_shot,
    shell,
    status_of,
    until_term,
)

MIB = 1 << 20

RESOURCES: dict[str, Json] = {
    "guaranteed": {"limits": {"cpu": "200m", "memory": "64Mi"}},
    "burstable": {"requests": {"cpu": "100m"}, "limits": {"cpu": "500m", "memory": "128Mi"}},
    "best-effort": {},
}
PARENTS = {
    "guaranteed": "kubepods",
    "burstable": "kubepods/burstable",
    "best-effort": "kubepods/besteffort",
}
QOS_CLASSES = {
    "guaranteed": "Guaranteed",
    "burstable": "Burstable",
    "best-effort": "BestEffort",
}
SHARES = {"guaranteed": 204, "burstable": 102, "best-effort": 2}
QUOTAS = {"guaranteed": 20_000, "burstable": 50_000, "best-effort": -1}
MEMORY = {"guaranteed": 64 * MIB, "burstable": 128 * MIB, "best-effort": None}


class Cgroup:
    """One cgroup, on either version of the hierarchy; `path` is as in the API, without slash."""

    def __init__(self, path: str) -> None:
        self._path = path.lstrip("/")
        self._unified = host.cgroup_version() == 2

    def memory_limit(self) -> int | None:
        text = self._read("memory", "memory.limit_in_bytes", "memory.max")
        return None if text == "max" or int(text) > 1 << 60 else int(text)

    def cpu_quota(self) -> int:
        """Microseconds of each 100 ms, -1 for no limit."""
        text = self._read("cpu", "cpu.cfs_quota_us", "cpu.max").split()[0]
        return -1 if text == "max" else int(text)

    def cpu_weight_fits(self, shares: int) -> bool:
        """Whether the weight stands for so many of the API's shares; rough on version 2."""
        weight = int(self._read("cpu", "cpu.shares", "cpu.weight"))
        return 1 <= weight <= max(10, shares) if self._unified else weight == shares

    def processes(self) -> set[int]:
        return {int(line) for line in self._read("memory", "cgroup.procs", "cgroup.procs").split()}

    def _read(self, controller: str, file: str, unified_file: str) -> str:
        folder = CGROUPS if self._unified else CGROUPS / controller
        return (folder / self._path / (unified_file if self._unified else file)).read_text().strip()


@pytest.mark.parametrize("kind", RESOURCES)
def test_a_pod_of_each_class_is_where_it_belongs_with_its_limits(node: Node, kind: str) -> None:
    pod = node.run(pod_manifest(kind, until_term("c", resources=RESOURCES[kind])))
    assert pod["status"]["qosClass"] == QOS_CLASSES[kind]
    parent = f"{node.agent.cgroup_root}/{PARENTS[kind]}/pod{pod['metadata']['uid']}"
    identifier = container_ids(pod)["c"]
    for path in (parent, f"{parent}/{identifier}"):
        cgroup = Cgroup(path)
        assert cgroup.memory_limit() == MEMORY[kind], path
        assert cgroup.cpu_quota() == QUOTAS[kind], path
        assert cgroup.cpu_weight_fits(SHARES[kind]), path
    tasks = node.containerd.ctr("tasks", "ps", identifier).splitlines()[1:]
    pids = {int(line.split()[0]) for line in tasks}
    assert pids
    assert pids <= Cgroup(f"{parent}/{identifier}").processes()
    node.remove(kind)


def test_the_limit_of_a_pod_is_that_of_all_its_containers(node: Node) -> None:
    limits = {"limits": {"cpu": "100m", "memory": "32Mi"}}
    pod = node.run(
        pod_manifest("sum", until_term("a", resources=limits), until_term("b", resources=limits))
    )
    cgroup = Cgroup(f"{node.agent.cgroup_root}/kubepods/pod{pod['metadata']['uid']}")
    assert cgroup.memory_limit() == 64 * MIB
    assert cgroup.cpu_quota() == 20_000
    node.remove("sum")


UID = "6f1d4b1e-0000-4000-8000-0000000000ca"


def asking(limits: Json, **labels: str) -> Json:
    """A pod with a UID of its own, which stays the same pod when its manifest changes."""
    manifest = pod_manifest("resized", until_term("c", resources={"limits": limits}))
    manifest["metadata"] |= {"uid": UID, "labels": labels}
    return manifest


def shown_limits(pod: Json) -> Json:
    limits: Json = status_of(pod, "c")["resources"]["limits"]
    return limits


def test_a_pod_keeps_what_it_was_allocated_and_says_that_it_is_not_resized(node: Node) -> None:
    small, large = {"cpu": "100m", "memory": "32Mi"}, {"cpu": "300m", "memory": "96Mi"}
    before = node.run(asking(small))
    parent = f"{node.agent.cgroup_root}/kubepods/pod{UID}"

    def limits_of(pod: Json) -> list[tuple[int, int | None]]:
        paths = (parent, f"{parent}/{container_ids(pod)['c']}")
        return [(Cgroup(path).cpu_quota(), Cgroup(path).memory_limit()) for path in paths]

    assert shown_limits(before) == small
    assert limits_of(before) == [(10_000, 32 * MIB)] * 2
    node.add(asking(large))
    resized = node.wait("resized", lambda pod: "PodResizePending" in conditions(pod))
    (pending,) = (c for c in resized["status"]["conditions"] if c["type"] == "PodResizePending")
    assert (pending["status"], pending["reason"]) == ("True", "Infeasible")
    assert pending["message"] == "In-place resize of static-pods is not supported"
    assert shown_limits(resized) == status_of(resized, "c")["allocatedResources"] == small
    assert [reason for reason, _ in node.events("resized")].count("ResizeInfeasible") == 1

    node.agent.stop()
    node.agent.start()
    node.containerd.ctr("tasks", "kill", "-s", "KILL", container_ids(resized)["c"])
    restarted = node.wait(
        "resized",
        lambda pod: is_running(pod) and container_ids(pod) != container_ids(before),
    )
    assert limits_of(restarted) == [(10_000, 32 * MIB)] * 2
    assert shown_limits(restarted) == small
    assert "PodResizePending" in conditions(restarted)

    node.add(asking(small, back="yes"))
    node.wait("resized", lambda pod: "PodResizePending" not in conditions(pod))
    node.remove("resized")
    node.wait_gone("resized")
    assert UID not in (node.agent.root / "allocated_pods_state").read_text()


def test_who_takes_more_memory_than_allowed_is_killed_and_the_status_says_so(node: Node) -> None:
    hungry = shell("c", "exec tail /dev/zero", resources={"limits": {"memory": "24Mi"}})
    pod = node.finish(one_shot("hungry", hungry))
    end = status_of(pod, "c")["state"]["terminated"]
    assert (end["reason"], end["exitCode"]) == ("OOMKilled", 137)
    node.remove("hungry")


def test_the_oom_killer_takes_the_least_important_first(node: Node) -> None:
    scores = {}
    for kind in RESOURCES:
        container = shell("c", "cat /proc/self/oom_score_adj", resources=RESOURCES[kind])
        pod = node.finish(one_shot(f"score-{kind}", container))
        (scores[kind],) = map(int, node.output(pod, "c"))
        node.remove(f"score-{kind}")
    if not host.can_lower_oom_score_adj():
        scores.pop("guaranteed")
    else:
        assert scores["guaranteed"] == -997
    assert scores["best-effort"] == 1000
    assert 3 <= scores["burstable"] <= 999


def test_a_memory_volume_counts_and_is_a_file_system_of_its_own(node: Node) -> None:
    mount = {"name": "m", "mountPath": "/m"}
    pod = node.finish(
        one_shot(
            "memory",
            shell("c", "grep ' /m ' /proc/mounts; df -m /m | tail -1", volumeMounts=[mount]),
            volumes=[{"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}}],
        )
    )
    mounted, size = node.output(pod, "c")
    assert mounted.split()[2] == "tmpfs"
    assert size.split()[1] == "8"
    assert not Path(node.agent.root, "m").exists()
    node.remove("memory")
