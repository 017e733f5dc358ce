"""cgroup v2 with both drivers: where pods are, what they are held to, and that nothing stays."""

import json
from collections.abc import Iterator

import pytest

from lab.agent import Json, pod_manifest
from lab.images import BUSYBOX, SLEEPER
from tests.guest.node import UNIT, Node
from trio_kubelet.resources import CgroupDriver

CGROUPFS, SYSTEMD = CgroupDriver.CGROUPFS, CgroupDriver.SYSTEMD
MIB = 1 << 20
WRITTEN = 8 * MIB

RESOURCES: dict[str, Json] = {
    "guaranteed": {"limits": {"cpu": "200m", "memory": "64Mi"}},
    "burstable": {"requests": {"cpu": "100m"}, "limits": {"cpu": "500m", "memory": "128Mi"}},
    "best-effort": {},
}
PARENTS = {
    CGROUPFS: {
        "guaranteed": "kubepods/pod",
        "burstable": "kubepods/burstable/pod",
        "best-effort": "kubepods/besteffort/pod",
    },
    SYSTEMD: {
        "guaranteed": "kubepods.slice/kubepods-pod",
        "burstable": "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod",
        "best-effort": "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod",
    },
}
ABOVE_PODS = {
    CGROUPFS: {
        "all": "kubepods",
        "burstable": "kubepods/burstable",
        "best-effort": "kubepods/besteffort",
    },
    SYSTEMD: {
        "all": "kubepods.slice",
        "burstable": "kubepods.slice/kubepods-burstable.slice",
        "best-effort": "kubepods.slice/kubepods-besteffort.slice",
    },
}
LIMITS = ("cpu.max", "memory.max", "memory.swap.max", "pids.max", "cpu.weight")
PODS = {
    "guaranteed": ["20000 100000", str(64 * MIB), "max", "100", "29"],
    "burstable": ["50000 100000", str(128 * MIB), "max", "100", "17"],
    "best-effort": ["max 100000", "max", "max", "100", "1"],
}
# The runtime computes the weight of a container, and systemd limits the processes of a scope.
CONTAINERS = {
    "guaranteed": ["20000 100000", str(64 * MIB), "0"],
    "burstable": ["50000 100000", str(128 * MIB), "0"],
    "best-effort": ["max 100000", "max", "0"],
}
READ = f"""
import json
from pathlib import Path
root = Path("/sys/fs/cgroup")
print(json.dumps({{
    str(path.relative_to(root)): [(path / name).read_text().strip() for name in {LIMITS}]
    for top in ("kubepods", "kubepods.slice")
    for path in (root / top).glob("**/")
}}))
"""
LIST_UNITS = ("list-units", "--all", "--plain", "--no-legend")

VOLUME = {"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}
MOUNT = {"name": "m", "mountPath": "/m"}


def writing(size: int, **fields: object) -> Json:
    """A container that writes so much into the volume in memory, and ends."""
    script = f"head -c {size} /dev/zero >/m/file"
    fields = {"image": BUSYBOX, "command": ["sh", "-c", script], "volumeMounts": [MOUNT], **fields}
    return {"name": "write", **fields}


def leave_a_dead_pod(node: Node) -> None:
    """Kill the containers of a pod while no agent runs; its cgroup stays."""
    node.add(pod_manifest("dead", {"name": "c", "image": SLEEPER}))
    node.wait_for_pod("dead")
    node.systemctl("stop", UNIT)
    for container in node.processes():
        node.ctr("tasks", "kill", "--signal", "KILL", container)
    node.wait_for(lambda: not node.processes(), lambda: f"{node.processes()}")


@pytest.fixture(scope="module", params=[CGROUPFS, SYSTEMD])
def driver(request: pytest.FixtureRequest, node: Node) -> Iterator[CgroupDriver]:
    """Each driver in turn, on a node with swap and a limit of processes for each pod.

    Of either driver there is something left: of systemd's, which a node begins with, a dead pod.
    """
    driver: CgroupDriver = request.param
    leave_a_dead_pod(node)
    node.guest.run("mkdir", "-p", "/sys/fs/cgroup/kubepods/besteffort/poddead")
    with node.driver(driver, podPidsLimit=100, failSwapOn=False):
        node.guest.run(
            "dd if=/dev/zero of=/swap bs=1M count=16 status=none; chmod 600 /swap; "
            "busybox mkswap /swap >/dev/null; swapon /swap"
        )
        yield driver
        node.remove("dead")
        node.guest.run("swapoff /swap; rm /swap")


@pytest.fixture(scope="module")
def pods(node: Node, driver: CgroupDriver) -> Iterator[dict[str, Json]]:
    """A pod of each QoS class, which runs."""
    for kind, resources in RESOURCES.items():
        node.add(pod_manifest(kind, {"name": "c", "image": SLEEPER, "resources": resources}))
    yield {kind: node.wait_for_pod(kind) for kind in RESOURCES}
    node.remove(*RESOURCES)


def cgroups(node: Node) -> dict[str, list[str]]:
    """The values of all cgroups of pods, and of those above them."""
    read: dict[str, list[str]] = json.loads(node.guest.run("python3", "-c", READ))
    return read


def cgroup_of(pod: Json, kind: str, driver: CgroupDriver) -> str:
    uid = pod["metadata"]["uid"]
    parent = PARENTS[driver][kind]
    is_slice = driver is SYSTEMD
    return f"{parent}{uid.replace('-', '_')}.slice" if is_slice else f"{parent}{uid}"


def container_cgroup_of(pod: Json, kind: str, driver: CgroupDriver) -> str:
    (status,) = pod["status"]["containerStatuses"]
    identifier = status["containerID"].partition("://")[2]
    name = f"cri-containerd-{identifier}.scope" if driver is SYSTEMD else identifier
    return f"{cgroup_of(pod, kind, driver)}/{name}"


def test_a_dead_pod_begins_anew_and_what_there_was_of_the_other_driver_is_gone(
    node: Node, driver: CgroupDriver
) -> None:
    anew = cgroup_of(node.wait_for_pod("dead"), "best-effort", driver)
    found = cgroups(node)
    assert anew in found
    assert {path.partition("/")[0] for path in found} == {ABOVE_PODS[driver]["all"]}
    if driver is CGROUPFS:
        assert node.systemctl(*LIST_UNITS, "kubepods*") == ""


def test_a_pod_of_each_class_is_where_it_belongs_and_held_to_what_it_was_given(
    node: Node, driver: CgroupDriver, pods: dict[str, Json]
) -> None:
    found = cgroups(node)
    for kind, pod in pods.items():
        assert found[cgroup_of(pod, kind, driver)] == PODS[kind]
        container = found[container_cgroup_of(pod, kind, driver)]
        assert container[: len(CONTAINERS[kind])] == CONTAINERS[kind]


def test_the_classes_weigh_what_their_pods_ask_for_and_all_pods_have_a_limit(
    node: Node, driver: CgroupDriver, pods: dict[str, Json]
) -> None:
    found = cgroups(node)
    memory = int(node.guest.run("grep MemTotal /proc/meminfo").split()[1]) << 10
    assert found[ABOVE_PODS[driver]["all"]][LIMITS.index("memory.max")] == str(memory)
    for kind in ("burstable", "best-effort"):
        assert found[ABOVE_PODS[driver][kind]][-1] == PODS[kind][-1]


def test_what_systemd_does_for_itself_changes_nothing(
    node: Node, driver: CgroupDriver, pods: dict[str, Json]
) -> None:
    before = cgroups(node)
    for word in ("daemon-reload", "daemon-reexec"):
        node.systemctl(word)
        assert cgroups(node) == before


def test_a_volume_in_memory_is_its_pods_memory_also_when_who_wrote_has_ended(
    node: Node, driver: CgroupDriver
) -> None:
    rest = {"name": "rest", "image": SLEEPER}
    node.add(pod_manifest("volume", rest, initContainers=[writing(WRITTEN)], volumes=[VOLUME]))
    pod = node.wait_for_pod("volume")
    stat = node.guest.read(f"/sys/fs/cgroup/{cgroup_of(pod, 'best-effort', driver)}/memory.stat")
    counted = dict(line.split() for line in stat.decode().splitlines())
    assert int(counted["shmem"]) >= WRITTEN
    node.remove("volume")
    assert pod["metadata"]["uid"] not in node.guest.run("cat", "/proc/mounts")


def test_who_fills_a_volume_in_memory_beyond_its_limit_is_killed_for_its_memory(
    node: Node, driver: CgroupDriver
) -> None:
    resources = {"limits": {"memory": "16Mi"}}
    writes = writing(48 * MIB, resources=resources)
    node.add(pod_manifest("overfull", writes, restartPolicy="Never", volumes=[VOLUME]))
    pod = node.wait_for_pod("overfull", lambda pod: pod["status"].get("phase") == "Failed")
    (status,) = pod["status"]["containerStatuses"]
    assert status["state"]["terminated"]["reason"] == "OOMKilled"
    node.remove("overfull")


def test_a_changed_driver_is_refused_while_pods_run(
    node: Node, driver: CgroupDriver, pods: dict[str, Json]
) -> None:
    before, processes, since = node.containers(), node.processes(), node.now()
    other = CGROUPFS if driver is SYSTEMD else SYSTEMD
    with node.configured(cgroupDriver=str(other)):
        node.wait_for(
            lambda: "code=exited, status=1/FAILURE" in node.log(since), lambda: "it goes on"
        )
        errors = node.guest.journal("-b", "-u", UNIT, "--priority=err", "--since", since)
        assert f"container runtime's driver back to {driver}" in errors
        assert node.processes() == processes
    node.wait_for(lambda: node.containers() == before, lambda: f"not {before}")
    assert node.processes() == processes


def test_nothing_is_left_of_pods_that_are_gone(
    node: Node, driver: CgroupDriver, pods: dict[str, Json]
) -> None:
    """The last test of a driver: it takes the pods away, and what else there was has gone too."""
    node.remove("dead", *pods)
    assert set(cgroups(node)) == set(ABOVE_PODS[driver].values())
    assert node.systemctl(*LIST_UNITS, "kubepods*-pod*", "cri-containerd-*") == ""
