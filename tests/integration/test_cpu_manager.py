"""Exclusive CPUs on a real containerd, read off the kernel. One CPU is reserved."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import host
from lab.agent import Json, LabAgent, pod_manifest
from lab.containerd import Containerd
from lab.processes import wait_until
from tests.integration.pods import CGROUPS, Node, container_ids, is_over, shell, until_term
from tests.missing import do_without
from trio_kubelet.resource_managers.cpu_sets import cpu_list, parsed_cpus

END_SECONDS = 60
ALL = parsed_cpus(cpu_list(os.sched_getaffinity(0)))
RESERVED, *OTHERS = sorted(ALL)
ONE_CPU: Json = {"limits": {"cpu": "1", "memory": "64Mi"}}
SAME_UID = "6f1d4b1e-0000-4000-8000-0000000000cb"


@pytest.fixture(scope="module")
def node(containerd: Containerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    if len(ALL) < 2:
        do_without("a machine with two CPUs")
    agent = LabAgent(tmp_path_factory.mktemp("node"), endpoint=containerd.endpoint)
    agent.folder.mkdir(exist_ok=True)
    agent.settings = {
        "cpuManagerPolicy": "static",
        "reservedSystemCPUs": str(RESERVED),
        "cpuManagerReconcilePeriod": "1h",
    }
    with agent:
        yield Node(agent=agent, containerd=containerd)


class PodCgroup:
    """The cgroup of a Guaranteed pod, or of a best-effort one, and those of its containers."""

    def __init__(self, node: Node, pod: Json) -> None:
        kind = "" if pod["status"]["qosClass"] == "Guaranteed" else "besteffort/"
        root, uid = node.agent.cgroup_root.strip("/"), pod["metadata"]["uid"]
        self._pod = f"{root}/kubepods/{kind}pod{uid}"
        self._ids = container_ids(pod)
        self._unified = host.cgroup_version() == 2

    def cpus(self, container: str = "c") -> str:
        return self._read("cpuset", container, "cpuset.cpus", "cpuset.cpus")

    def quotas(self, container: str = "c") -> list[str]:
        """Those of the pod and of the container, without their period."""
        texts = [self._read("cpu", each, "cpu.cfs_quota_us", "cpu.max") for each in ("", container)]
        return ["-1" if text.startswith("max") else text.split()[0] for text in texts]

    def _read(self, controller: str, container: str, file: str, unified_file: str) -> str:
        folder = CGROUPS if self._unified else CGROUPS / controller
        path = folder / self._pod / (self._ids[container] if container else "")
        return (path / (unified_file if self._unified else file)).read_text().strip()

    def wait_for_cpus(self, cpus: str) -> None:
        wait_until(
            lambda: self.cpus() == cpus,
            deadline_seconds=END_SECONDS,
            else_say=lambda: f"the CPUs are {self.cpus()}, not {cpus}",
        )


def record_of(node: Node) -> Path:
    """The file of the CPU manager's record."""
    return node.agent.root / "cpu_manager_state"


def kept(node: Node) -> Json:
    """The record of the CPU manager."""
    content: Json = json.loads(record_of(node).read_text())
    return content


def shared_but(*cpus: int) -> str:
    return cpu_list(ALL - set(cpus))


def test_a_container_has_a_cpu_alone_until_its_pod_goes(node: Node) -> None:
    shared = PodCgroup(node, node.run(pod_manifest("shared", until_term("c"))))
    assert shared.cpus() == cpu_list(ALL)

    pod = node.run(pod_manifest("alone", until_term("c", resources=ONE_CPU)))
    alone = PodCgroup(node, pod)
    assert alone.cpus() == str(OTHERS[0])
    assert alone.quotas() == ["-1", "-1"]
    shared.wait_for_cpus(shared_but(OTHERS[0]))
    record = kept(node)
    assert record["defaultCpuSet"] == shared_but(OTHERS[0])
    assert record["entries"] == {pod["metadata"]["uid"]: {"c": str(OTHERS[0])}}

    before = container_ids(pod)
    node.agent.stop()
    node.agent.start()
    pod = node.wait("alone", lambda pod: pod["status"].get("phase") == "Running")
    assert container_ids(pod) == before
    assert alone.cpus() == str(OTHERS[0])
    assert kept(node) == record

    node.remove("alone")
    shared.wait_for_cpus(cpu_list(ALL))
    wait_until(
        lambda: "entries" not in kept(node),
        deadline_seconds=END_SECONDS,
        else_say=lambda: str(kept(node)),
    )
    node.remove("shared")


def test_a_container_that_starts_again_has_the_same_cpu(node: Node) -> None:
    pod = node.run(pod_manifest("again", until_term("c", resources=ONE_CPU)))
    node.containerd.ctr("tasks", "kill", "-s", "KILL", container_ids(pod)["c"])
    again = node.wait(
        "again",
        lambda seen: (
            seen["status"]["containerStatuses"][0]["restartCount"] == 1
            and container_ids(seen) != container_ids(pod)
            and "running" in seen["status"]["containerStatuses"][0]["state"]
        ),
    )
    assert PodCgroup(node, again).cpus() == str(OTHERS[0])
    node.remove("again")
    node.wait_gone("again")


def test_the_app_runs_on_the_cpu_of_its_init_container(node: Node) -> None:
    where = "grep Cpus_allowed_list /proc/self/status | cut -f2"
    pod = pod_manifest(
        "reuse",
        shell("c", where, resources=ONE_CPU),
        initContainers=[shell("first", where, resources=ONE_CPU)],
        restartPolicy="Never",
    )
    node.add(pod)
    over = node.wait("reuse", is_over)
    assert [node.output(over, each) for each in ("first", "c")] == [[str(OTHERS[0])]] * 2
    node.remove("reuse")
    node.wait_gone("reuse")


def test_a_fraction_of_a_cpu_is_shared(node: Node) -> None:
    limits = {"limits": {"cpu": "500m", "memory": "64Mi"}}
    cgroup = PodCgroup(node, node.run(pod_manifest("half", until_term("c", resources=limits))))
    assert cgroup.cpus() == cpu_list(ALL)
    assert cgroup.quotas() == ["50000", "50000"]
    node.remove("half")


def test_pods_of_before_the_policy_are_given_their_cpus_as_they_run(node: Node) -> None:
    node.agent.stop()
    static, node.agent.settings = node.agent.settings, {}
    node.agent.start()
    manifest = pod_manifest("earlier", until_term("c", resources=ONE_CPU))
    manifest["metadata"]["uid"] = SAME_UID
    pod = node.run(manifest)
    assert not record_of(node).exists() or kept(node)["policyName"] == "none"
    node.agent.stop()
    node.agent.settings = static
    node.agent.start()
    PodCgroup(node, pod).wait_for_cpus(str(OTHERS[0]))
    node.remove("earlier")
    node.wait_gone("earlier")


def test_the_pod_of_an_edited_manifest_has_the_cpus_of_the_last_one(node: Node) -> None:
    all_others: Json = {"limits": {"cpu": str(len(OTHERS)), "memory": "64Mi"}}
    manifest = pod_manifest("edited", until_term("c", resources=all_others))
    before = node.run(manifest)
    manifest["metadata"]["labels"] = {"edited": "yes"}
    after = node.wait_for_incarnation(manifest, before)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert PodCgroup(node, after).cpus() == cpu_list(frozenset(OTHERS))
    assert "WaitingForEndingPods" in [reason for reason, _ in node.events("edited")]
    node.remove("edited")
    node.wait_gone("edited")
