"""Resize in place as users do it: what kubectl, the cgroups and the process itself show of it."""

import json
import re
from functools import partial
from pathlib import Path

import pytest

from lab import host
from lab.cluster_api import Json
from lab.go_kubelet import GoKubelet
from lab.processes import wait_until
from tests.e2e.cluster import Namespace, conditions, container, is_ready, until_term
from tests.e2e.local import AGENT, LocalCluster

MIB = 1 << 20
SMALL: Json = {"cpu": "100m", "memory": "32Mi"}
LARGE: Json = {"cpu": "200m", "memory": "64Mi"}
CGROUPS = Path("/sys/fs/cgroup")
_START_TIME = 19
"""The position of a process' start time in what follows its name in /proc/PID/stat."""


def resize(
    namespace: Namespace, name: str, limits: Json, *, of: str = "containers", container: str = "c"
) -> None:
    resources = {"limits": limits, "requests": limits}
    change = {"spec": {of: [{"name": container, "resources": resources}]}}
    namespace.kubectl("patch", "pod", name, "--subresource=resize", f"-p={json.dumps(change)}")


def shown(pod: Json) -> list[Json]:
    """What the statuses of container and pod say that they may use."""
    of_container = container(pod)
    return [
        of_container["resources"]["limits"],
        of_container["allocatedResources"],
        pod["status"]["resources"]["limits"],
        pod["status"]["allocatedResources"],
    ]


def is_resized(pod: Json, limits: Json) -> bool:
    told = {"PodResizePending", "PodResizeInProgress"} & conditions(pod).keys()
    return not told and shown(pod) == [limits] * 4


def most_of_the_cpu(cluster: LocalCluster) -> str:
    """So much of the node's CPU that two pods cannot have it."""
    return f"{int(cluster.wait_node_ready()['status']['allocatable']['cpu']) * 700}m"


def process_of(cluster: LocalCluster, pod: Json, *, kind: str = "containerStatuses") -> int:
    """The first process of the first container that the pod has statuses of that kind of."""
    identifier = pod["status"][kind][0]["containerID"].partition("://")[2]
    lines = (line.split() for line in cluster.containerd.ctr("tasks", "list").splitlines())
    return next(int(words[1]) for words in lines if words[0] == identifier)


def started_at(process: int) -> str:
    """When a process was started, by the kernel's clock."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[_START_TIME]


def limits_of(process: int) -> list[tuple[int, int]]:
    """CPU quota in microseconds and memory limit in MiB, of container and pod."""
    lines = Path(f"/proc/{process}/cgroup").read_text().splitlines()
    paths = {
        name: path
        for _, names, path in (x.split(":", 2) for x in lines)
        for name in names.split(",")
    }
    if host.cgroup_version() == 2:
        cpu = memory = CGROUPS / paths[""].lstrip("/")
        files = "cpu.max", "memory.max"
    else:
        cpu, memory = (CGROUPS / name / paths[name].lstrip("/") for name in ("cpu", "memory"))
        files = "cpu.cfs_quota_us", "memory.limit_in_bytes"
    return [
        (int((c / files[0]).read_text().split()[0]), int((m / files[1]).read_text()) // MIB)
        for c, m in ((cpu, memory), (cpu.parent, memory.parent))
    ]


def test_a_container_is_resized_up_and_down_while_its_process_runs_on(
    local_cluster: LocalCluster, namespace: Namespace
) -> None:
    before = namespace.run("resized", until_term("c", resources={"limits": SMALL}))
    assert shown(before) == [SMALL] * 4
    process = process_of(local_cluster, before)
    began = started_at(process)
    assert limits_of(process) == [(10_000, 32)] * 2
    for limits, kernel in ((LARGE, (20_000, 64)), (SMALL, (10_000, 32))):
        resize(namespace, "resized", limits)
        after = namespace.wait("resized", partial(is_resized, limits=limits))
        assert limits_of(process) == [kernel] * 2
        assert started_at(process) == began
        assert container(after)["containerID"] == container(before)["containerID"]
        assert container(after)["restartCount"] == 0
        generation = after["metadata"]["generation"]
        for reason in ("ResizeStarted", "ResizeCompleted"):
            namespace.wait_event("resized", reason, f'"generation":{generation}')
            described = namespace.kubectl("describe", "pod", "resized")
            assert re.search(rf"Normal +{reason} .* kubelet +Pod resize", described)


def test_what_a_pod_was_allocated_is_what_its_containers_restart_with(
    local_cluster: LocalCluster, namespace: Namespace
) -> None:
    namespace.run("resized", until_term("c", resources={"limits": SMALL}))
    local_cluster.stop_agent()
    resize(namespace, "resized", LARGE)
    local_cluster.start_agent()
    namespace.wait("resized", lambda pod: is_resized(pod, LARGE))
    most = most_of_the_cpu(local_cluster)
    namespace.run("other", until_term("c", resources={"requests": {"cpu": most}}))
    resize(namespace, "resized", {"cpu": most, "memory": "64Mi"})
    waits = namespace.wait("resized", lambda pod: "PodResizePending" in conditions(pod))

    local_cluster.stop_agent()
    identifier = container(waits)["containerID"].partition("://")[2]
    local_cluster.containerd.ctr("tasks", "kill", "-s", "KILL", identifier)
    local_cluster.start_agent()
    again = namespace.wait(
        "resized", lambda pod: is_ready(pod) and container(pod)["restartCount"] == 1
    )
    assert shown(again) == [LARGE] * 4
    assert limits_of(process_of(local_cluster, again)) == [(20_000, 64)] * 2
    assert "PodResizePending" in conditions(again)
    resize(namespace, "resized", LARGE)
    namespace.wait("resized", lambda pod: is_resized(pod, LARGE))


def test_what_others_hold_is_waited_for_until_they_have_gone(
    local_cluster: LocalCluster, namespace: Namespace
) -> None:
    most = most_of_the_cpu(local_cluster)
    namespace.run("other", until_term("c", resources={"requests": {"cpu": most}}))
    namespace.run("resized", until_term("c", resources={"limits": SMALL}))
    larger = {"cpu": most, "memory": "32Mi"}
    resize(namespace, "resized", larger)
    waits = namespace.wait("resized", lambda pod: "PodResizePending" in conditions(pod))
    pending = conditions(waits)["PodResizePending"]
    assert (pending["status"], pending["reason"]) == ("True", "Deferred")
    generation = waits["metadata"]["generation"]
    assert pending["observedGeneration"] == generation
    assert pending["message"].startswith("Node didn't have enough resource: cpu, requested: ")
    assert shown(waits) == [SMALL] * 4
    namespace.wait_event("resized", "ResizeDeferred", f'"generation":{generation}')
    namespace.kubectl("delete", "pod", "other", "--wait=false")
    namespace.wait("resized", lambda pod: shown(pod)[1] != SMALL and is_resized(pod, shown(pod)[1]))
    assert shown(namespace.pod("resized"))[1]["memory"] == "32Mi"


def test_a_sidecar_is_resized_while_its_process_runs_on(
    local_cluster: LocalCluster, namespace: Namespace
) -> None:
    sidecar = until_term("s", resources={"limits": SMALL}, restartPolicy="Always")
    main = until_term("c", resources={"limits": SMALL})
    namespace.run("resized", main, initContainers=[sidecar])
    before = namespace.wait("resized", lambda pod: is_ready(pod) and shown_of_sidecar(pod))
    process = process_of(local_cluster, before, kind="initContainerStatuses")
    began = started_at(process)
    assert limits_of(process) == [(10_000, 32), (20_000, 64)]
    resize(namespace, "resized", LARGE, of="initContainers", container="s")
    after = namespace.wait("resized", lambda pod: shown_of_sidecar(pod) == [LARGE] * 2)
    assert limits_of(process) == [(20_000, 64), (30_000, 96)]
    assert started_at(process) == began
    assert after["status"]["initContainerStatuses"][0]["restartCount"] == 0


def shown_of_sidecar(pod: Json) -> list[Json]:
    """What the status of a pod's first init container says that it may use."""
    status = pod["status"]["initContainerStatuses"][0]
    return [status["resources"]["limits"], status["allocatedResources"]]


@pytest.mark.skipif(
    AGENT is GoKubelet, reason="in the lab the Go kubelet does not know what containers use"
)
def test_no_memory_limit_goes_below_what_is_used(
    local_cluster: LocalCluster, namespace: Namespace
) -> None:
    script = "dd if=/dev/zero of=/dev/shm/eaten bs=1M count=40"
    before = namespace.run("resized", until_term("c", script, resources={"limits": LARGE}))
    process = process_of(local_cluster, before)
    namespace.kubectl("wait", "pod/resized", "--for=condition=Ready")
    wait_until(
        lambda: namespace.kubectl("exec", "resized", "--", "ls", "-s", "/dev/shm/eaten") != "",
        deadline_seconds=20,
        else_say=lambda: "no memory was eaten",
    )
    resize(namespace, "resized", {"cpu": "200m", "memory": "24Mi"})

    def has_failed(pod: Json) -> bool:
        return conditions(pod).get("PodResizeInProgress", {}).get("reason") == "Error"

    failed = namespace.wait("resized", has_failed)
    message = conditions(failed)["PodResizeInProgress"]["message"]
    limit = f"memory limit ({24 * MIB}) below current usage ("
    assert message.startswith(f"cannot decrease memory limits: [attempting to set pod {limit}")
    assert f'attempting to set container "c" {limit}' in message
    assert limits_of(process) == [(20_000, 64)] * 2
    namespace.wait_event("resized", "ResizeError")
    namespace.kubectl("exec", "resized", "--", "rm", "/dev/shm/eaten")
    small = {"cpu": "200m", "memory": "24Mi"}
    after = namespace.wait("resized", lambda pod: is_resized(pod, small), deadline_seconds=120)
    assert limits_of(process) == [(20_000, 24)] * 2
    assert container(after)["restartCount"] == 0


def test_a_container_whose_policy_asks_for_it_restarts_once(
    local_cluster: LocalCluster, namespace: Namespace
) -> None:
    policy = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]
    resizable = until_term("c", resources={"limits": SMALL}, resizePolicy=policy)
    before = namespace.run("resized", resizable)
    resize(namespace, "resized", {**SMALL, "cpu": "200m"})
    cpu = namespace.wait("resized", lambda pod: is_resized(pod, {**SMALL, "cpu": "200m"}))
    assert container(cpu)["containerID"] == container(before)["containerID"]
    resize(namespace, "resized", LARGE)
    after = namespace.wait("resized", lambda pod: is_ready(pod) and is_resized(pod, LARGE))
    assert container(after)["restartCount"] == 1
    assert limits_of(process_of(local_cluster, after)) == [(20_000, 64)] * 2
    namespace.wait_event("resized", "Killing", "Container c resize requires restart")


def test_a_pod_as_a_whole_is_resized_with_a_container_that_has_no_limits_of_its_own(
    local_cluster: LocalCluster, namespace: Namespace
) -> None:
    before = namespace.run("resized", until_term("c"), resources={"limits": SMALL})
    process = process_of(local_cluster, before)
    assert limits_of(process) == [(10_000, 32)] * 2
    change = {"spec": {"resources": {"limits": LARGE, "requests": LARGE}}}
    namespace.kubectl("patch", "pod", "resized", "--subresource=resize", f"-p={json.dumps(change)}")

    def is_large(pod: Json) -> bool:
        told = {"PodResizePending", "PodResizeInProgress"} & conditions(pod).keys()
        return not told and pod["status"]["resources"]["limits"] == LARGE

    after = namespace.wait("resized", is_large)
    assert limits_of(process)[1] == (20_000, 64)
    assert container(after)["restartCount"] == 0
