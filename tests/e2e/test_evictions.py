"""Pods that a node under pressure ends, and what their users are told.

The Go kubelet does the same (TRIO_KUBELET_E2E_AGENT=go), but looks every ten seconds.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from lab.cluster_api import Json
from lab.go_kubelet import GoKubelet
from lab.processes import run, wait_until
from tests.e2e.cluster import (
    Namespace,
    conditions,
    container,
    is_over,
    is_ready,
    shell,
    until_term,
    workload,
)
from tests.e2e.eviction_cases import (
    DEADLINE_SECONDS,
    MI,
    NOTHING_BUT_PODS,
    asking,
    disrupted,
    ends_with_143,
    evicted,
    runs_on,
    wait_node_event,
    wait_pressure,
    wait_pressure_over,
)
from tests.e2e.local import AGENT, LocalCluster
from trio_kubelet.volumes.mount import mount, unmount

MOUNT: Json = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}


@contextmanager
def settings(cluster: LocalCluster, **fields: object) -> Iterator[None]:
    """The agent with these settings of its configuration."""
    cluster.restart_agent(**{**NOTHING_BUT_PODS, **fields})
    try:
        cluster.wait_node_ready()
        yield
    finally:
        cluster.restart_agent()
        cluster.wait_node_ready()


@contextmanager
def small_disk(cluster: LocalCluster, namespace: Namespace, options: str) -> Iterator[None]:
    """The agent with a root folder on a disk of its own; the namespace's pods go with it."""
    cluster.stop_agent()
    mount("tmpfs", cluster.agent.root, "tmpfs", options=options)
    try:
        cluster.start_agent()
        cluster.wait_node_ready()
        yield
    finally:
        namespace.kubectl("delete", "pods", "--all", "--wait", "--timeout=60s")
        cluster.stop_agent()
        unmount(cluster.agent.root)
        cluster.start_agent()
        cluster.wait_node_ready()


def memory_total() -> int:
    line = Path("/proc/meminfo").read_text().splitlines()[0]
    return int(line.split()[1]) << 10


def test_a_pod_that_eats_the_memory_of_all_pods_goes(
    local_cluster: LocalCluster, namespace: Namespace
) -> None:
    """Pods have 400 MiB together; one eats until less than 100 are left."""
    reserved = {"memory": str(memory_total() - 400 * MI)}
    hard = {"memory.available": "100Mi"}
    with settings(
        local_cluster,
        systemReserved=reserved,
        evictionHard=hard,
        enforceNodeAllocatable=["pods"],
    ):
        modest = namespace.run("modest", until_term("c", **asking("50Mi")))
        volume = {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "350Mi"}}
        mounts = [{"name": "memory", "mountPath": "/m"}]
        eat = "for n in $(seq 34); do dd if=/dev/zero of=/m/$n bs=1M count=10; sleep .2; done"
        eater = ends_with_143(eat, volumeMounts=mounts, **asking("10Mi"))
        namespace.add("eater", eater, volumes=[volume])
        pod = evicted(namespace, "eater")
        message = pod["status"]["message"]
        assert message.startswith(
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: "
        )
        assert ", request is 10Mi, has larger consumption of memory. " in message
        assert disrupted(pod)
        wait_node_event(local_cluster, "EvictionThresholdMet", "Attempting to reclaim memory")
        wait_pressure_over(local_cluster, "MemoryPressure", pod)
        assert runs_on(namespace, modest)


@pytest.mark.parametrize(
    ("options", "hard", "script", "resource"),
    [
        (
            "size=100m",
            {"nodefs.available": "40Mi"},
            "dd if=/dev/zero of=/v/data bs=1M count=80",
            "ephemeral-storage",
        ),
        (
            "size=100m,nr_inodes=3000",
            {"nodefs.inodesFree": "1000"},
            "for n in $(seq 2500); do : >/v/$n; done",
            "inodes",
        ),
    ],
)
def test_a_pod_that_fills_the_nodes_disk_goes(
    local_cluster: LocalCluster,
    namespace: Namespace,
    options: str,
    hard: dict[str, str],
    script: str,
    resource: str,
) -> None:
    with settings(local_cluster, evictionHard=hard), small_disk(local_cluster, namespace, options):
        modest = namespace.run("modest", until_term("c"))
        volumes = [{"name": "v", "emptyDir": {}}]
        namespace.add("writer", ends_with_143(script, **MOUNT), volumes=volumes)
        pod = evicted(namespace, "writer")
        message = pod["status"]["message"]
        assert message.startswith(f"The node was low on resource: {resource}. Threshold quantity: ")
        assert disrupted(pod)
        wait_pressure_over(local_cluster, "DiskPressure", pod)
        assert runs_on(namespace, modest)


def test_a_pod_that_fills_the_nodes_disk_while_it_is_being_started_goes(
    local_cluster: LocalCluster, namespace: Namespace
) -> None:
    """Its hook takes a minute, and the start no less."""
    hard = {"nodefs.available": "40Mi"}
    with (
        settings(local_cluster, evictionHard=hard),
        small_disk(local_cluster, namespace, "size=100m"),
    ):
        modest = namespace.run("modest", until_term("c"))
        hook = {"postStart": {"exec": {"command": ["sleep", "60"]}}}
        write = "dd if=/dev/zero of=/v/data bs=1M count=80"
        writer = ends_with_143(write, **MOUNT, lifecycle=hook)
        namespace.add("writer", writer, volumes=[{"name": "v", "emptyDir": {}}])
        pod = evicted(namespace, "writer")
        wait_pressure_over(local_cluster, "DiskPressure", pod)
        assert runs_on(namespace, modest)


def test_a_pod_that_goes_for_a_soft_threshold_has_time_to_end(
    local_cluster: LocalCluster, namespace: Namespace
) -> None:
    """It takes three of the five seconds that it is given; for a hard one it is given one."""
    soft = {
        "evictionHard": {"nodefs.available": "1Mi"},
        "evictionSoft": {"nodefs.available": "40Mi"},
        "evictionSoftGracePeriod": {"nodefs.available": "2s"},
        "evictionMaxPodGracePeriod": 5,
    }
    with settings(local_cluster, **soft), small_disk(local_cluster, namespace, "size=100m"):
        modest = namespace.run("modest", until_term("c"))
        write = "dd if=/dev/zero of=/v/data bs=1M count=80"
        slow = shell("c", f"trap 'sleep 3; exit 143' TERM; {write}; sleep 1000000 & wait", **MOUNT)
        volumes = [{"name": "v", "emptyDir": {}}]
        namespace.add("writer", slow, volumes=volumes, terminationGracePeriodSeconds=60)
        pod = evicted(namespace, "writer")
        message = pod["status"]["message"]
        assert "ephemeral-storage. Threshold quantity: 40Mi, available: " in message
        assert disrupted(pod)
        ended = namespace.wait("writer", lambda pod: "terminated" in container(pod)["state"])
        assert container(ended)["state"]["terminated"]["exitCode"] == 143, "it was not killed"
        wait_pressure_over(local_cluster, "DiskPressure", pod)
        assert runs_on(namespace, modest)


@pytest.mark.skipif(
    AGENT is GoKubelet, reason="the Go kubelet waits until the pod has had its time"
)
def test_a_pod_that_goes_for_a_soft_threshold_has_no_more_time_once_a_hard_one_is_crossed(
    local_cluster: LocalCluster, namespace: Namespace
) -> None:
    """It has ten minutes and does not end; the disk fills up when it has been told to."""
    thresholds = {
        "evictionHard": {"nodefs.available": "20Mi"},
        "evictionSoft": {"nodefs.available": "40Mi"},
        "evictionSoftGracePeriod": {"nodefs.available": "1s"},
        "evictionMaxPodGracePeriod": 600,
    }
    with settings(local_cluster, **thresholds), small_disk(local_cluster, namespace, "size=100m"):
        modest = namespace.run("modest", until_term("c"))
        write = "dd if=/dev/zero of=/v/data bs=1M count=65"
        deaf = f"trap 'echo told >/v/told' TERM; {write}; while :; do sleep 1; done"
        volumes = [{"name": "v", "emptyDir": {}}]
        made = namespace.add(
            "writer",
            shell("c", deaf, **MOUNT),
            volumes=volumes,
            terminationGracePeriodSeconds=600,
        )
        root = local_cluster.agent.root
        volume = root / "pods" / made["metadata"]["uid"] / "volumes/kubernetes.io~empty-dir/v"
        wait_until(
            (volume / "told").exists,
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: "the pod was not told to end",
        )
        (root / "filling").write_bytes(bytes(20 * MI))
        pod = evicted(namespace, "writer")
        assert "Threshold quantity: 40Mi, available: " in pod["status"]["message"]
        ended = namespace.wait("writer", lambda pod: "terminated" in container(pod)["state"])
        assert container(ended)["state"]["terminated"]["exitCode"] == 137, "it was killed"
        wait_pressure_over(local_cluster, "DiskPressure", pod)
        assert runs_on(namespace, modest)


def test_a_pod_that_takes_the_process_ids_goes(
    local_cluster: LocalCluster, namespace: Namespace
) -> None:
    numbers = (
        int(Path(f"/proc/sys/kernel/{each}").read_text()) for each in ("pid_max", "threads-max")
    )
    taken = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    hard = {"pid.available": str(min(numbers) - taken - 1200)}
    with settings(local_cluster, evictionHard=hard):
        modest = namespace.run("modest", until_term("c"))
        fork = "for n in $(seq 1500); do sleep 1000000 & done"
        namespace.add("forker", ends_with_143(fork))
        pod = evicted(namespace, "forker")
        assert pod["status"]["message"].startswith(
            "The node was low on resource: pids. Threshold quantity: "
        )
        assert disrupted(pod)
        wait_pressure_over(local_cluster, "PIDPressure", pod)
        # In the lab the Go kubelet does not know who has how many processes.
        assert runs_on(namespace, modest) or AGENT is GoKubelet


LIMIT: Json = {"resources": {"limits": {"ephemeral-storage": "2Mi"}}}


def test_pods_that_break_limits_of_their_own_go(
    local_cluster: LocalCluster, namespace: Namespace
) -> None:
    with settings(local_cluster):
        volumes = [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}]
        write = "dd if=/dev/zero of={}/data bs=1M count=5"
        modest = namespace.run("modest", until_term("c", **LIMIT))
        namespace.add("volume", ends_with_143(write.format("/v"), **MOUNT), volumes=volumes)
        namespace.add("layer", ends_with_143(write.format("/tmp"), **LIMIT))
        namespace.add("logger", ends_with_143("yes | head -n 4000000", **LIMIT))
        whole = "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. "
        words = {
            "volume": 'Usage of EmptyDir volume "v" exceeds the limit "1Mi". ',
            "layer": whole,
            "logger": whole,
        }
        for name, message in words.items():
            pod = evicted(namespace, name)
            assert pod["status"]["message"] == message
            assert "DisruptionTarget" not in conditions(pod)
            described = namespace.kubectl("describe", "pod", name)
            head = rf"Status: +Failed\nReason: +Evicted\nMessage: +{re.escape(message.strip())}"
            assert re.search(head, described)
            events = namespace.kubectl("get", "events", "--field-selector=reason=Evicted")
            assert re.search(rf"Warning +Evicted +pod/{name} +{re.escape(message.strip())}", events)
        assert runs_on(namespace, modest)


@pytest.mark.skipif(AGENT is GoKubelet, reason="the Go kubelet rejects them as fast as they come")
def test_the_pods_that_a_controller_makes_for_rejected_ones_come_later_and_later(
    local_cluster: LocalCluster, namespace: Namespace
) -> None:
    """Its pods name the node, so that no scheduler keeps them away; then the disk has room again.

    A pod fails a second after the one before it, or two, or four; the next one follows that.
    """
    hard = {"nodefs.available": "40Mi"}
    with (
        settings(local_cluster, evictionHard=hard),
        small_disk(local_cluster, namespace, "size=100m"),
    ):
        filling = local_cluster.agent.root / "filling"
        filling.write_bytes(bytes(80 * MI))
        wait_pressure(local_cluster, "DiskPressure")
        body = workload("made", until_term("c"))
        body["spec"]["template"]["spec"]["nodeName"] = local_cluster.node
        namespace.create("Deployment", "made", body)
        namespace.wait_all(lambda pods: len(pods) >= 5, deadline_seconds=DEADLINE_SECONDS)
        filling.unlink()
        pods = namespace.wait_all(
            lambda pods: any(map(is_ready, pods)), deadline_seconds=DEADLINE_SECONDS
        )
        namespace.kubectl("delete", "deployment", "made", "--cascade=foreground")
        rejected = [pod for pod in pods if is_over(pod)]
        for pod in rejected:
            assert pod["status"]["reason"] == "Evicted"
            assert pod["status"]["message"] == (
                "Pod was rejected: The node had condition: [DiskPressure]. "
            )
        made = sorted(datetime.fromisoformat(pod["metadata"]["creationTimestamp"]) for pod in pods)
        distances = [(later - earlier).total_seconds() for earlier, later in pairwise(made[:5])]
        assert [max(*each) for each in zip(distances, (0, 1, 2, 4), strict=True)] == distances


@pytest.mark.skipif(AGENT is GoKubelet, reason="the Go kubelet writes no decision down")
def test_an_agent_that_is_killed_while_it_evicts_finishes_it(
    local_cluster: LocalCluster, namespace: Namespace
) -> None:
    """The pod obeys no signal, so its grace is a second: time enough for a kill."""
    records = local_cluster.agent.root / "evictions.json"
    before = records.read_text() if records.exists() else ""
    with settings(local_cluster):
        write = "dd if=/dev/zero of=/tmp/data bs=1M count=5"
        deaf = until_term("c", f"trap '' TERM; {write}; while :; do sleep 1; done", **LIMIT)
        uid = namespace.add("victim", deaf)["metadata"]["uid"]
        wait_until(
            lambda: records.exists() and uid in records.read_text(),
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: f"no record of it in {before}",
        )
        local_cluster.kill_agent()
        local_cluster.start_agent()
        pod = evicted(namespace, "victim")
        command = [sys.executable, "-m", "trio_kubelet", "evictions", "--root-dir"]
        told = run([*command, local_cluster.agent.root])
        assert f"{namespace.name}/victim" in told
        assert pod["status"]["message"].strip() in told
