"""CSI drivers of the node, on a real API server: what the cluster knows of them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.cluster_api import Json
from lab.csi_driver import CallLog
from lab.processes import wait_until
from tests.e2e.cluster import Namespace, container, is_ready, until_term
from tests.e2e.local import LocalCluster

NAME = "lab.csi.example.com"
DRIVERS = "/apis/storage.k8s.io/v1/csidrivers"
VOLUMES = "/api/v1/persistentvolumes"
ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"
ANNOTATION = "csi.volume.kubernetes.io/nodeid"
DISK = {"disk": "sdb"}
MIGRATED = "storage.alpha.kubernetes.io/migrated-plugins"


@pytest.fixture
def csi_node(local_cluster: LocalCluster) -> str:
    """The path of the node's object."""
    return f"/apis/storage.k8s.io/v1/csinodes/{local_cluster.node}"


@contextmanager
def driver(
    cluster: LocalCluster, folder: Path, node_id: str, *options: str, kind: str = "lab.csi_driver"
) -> Iterator[subprocess.Popen[bytes]]:
    """A driver as a process of its own, which is killed at the end."""
    socket = cluster.agent.root / "plugins_registry" / "l.sock"
    command = [sys.executable, "-m", kind, "--folder", str(folder)]
    command += ["--registry-socket", str(socket), "--name", NAME, "--node-id", node_id, "--mounts"]
    command += options
    with subprocess.Popen(command) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            socket.unlink(missing_ok=True)


def tells(*node_ids: str) -> Callable[[Json], bool]:
    """True of a CSINode on which the driver calls the node so; without, of one without drivers."""
    expected = [(NAME, node_id) for node_id in node_ids]

    def are_told(csi_node: Json) -> bool:
        drivers = csi_node["spec"].get("drivers") or ()
        return [(each["name"], each["nodeID"]) for each in drivers] == expected

    return are_told


def is_annotated(text: str) -> Callable[[Json], bool]:
    """True of a Node whose annotation tells these ids."""
    return lambda node: node["metadata"]["annotations"].get(ANNOTATION) == text


def test_the_cluster_knows_the_drivers_of_the_node_as_they_come_and_go(
    local_cluster: LocalCluster, csi_node: str, tmp_path: Path
) -> None:
    api, node = local_cluster.api, f"/api/v1/nodes/{local_cluster.node}"
    found = api.wait_for(csi_node, tells())
    assert "kubernetes.io/aws-ebs" in found["metadata"]["annotations"][MIGRATED]
    for node_id in ("n-1", "n-2"):
        with driver(local_cluster, tmp_path, node_id):
            api.wait_for(csi_node, tells(node_id))
            api.wait_for(node, is_annotated(f'{{"{NAME}":"{node_id}"}}'))
        api.wait_for(csi_node, tells())


def test_a_driver_that_is_there_before_the_agent_is_known_after_its_start(
    local_cluster: LocalCluster, csi_node: str, tmp_path: Path
) -> None:
    with driver(local_cluster, tmp_path, "n-3"):
        local_cluster.api.wait_for(csi_node, tells("n-3"))
        local_cluster.kill_agent()
        local_cluster.api.delete(csi_node)
        local_cluster.start_agent()
        local_cluster.api.wait_for(csi_node, tells("n-3"))


def test_what_is_told_of_a_driver_that_is_slower_than_the_agent_stays(
    local_cluster: LocalCluster, csi_node: str, tmp_path: Path
) -> None:
    api, node = local_cluster.api, f"/api/v1/nodes/{local_cluster.node}"
    with driver(local_cluster, tmp_path, "n-3"):
        api.wait_for(node, is_annotated(f'{{"{NAME}":"n-3"}}'))
        api.wait_for(csi_node, tells("n-3"))
        local_cluster.kill_agent()
    api.patch(csi_node, {"metadata": {"annotations": {MIGRATED: None}}})
    local_cluster.start_agent()
    # The annotation shows that the agent has written the object.
    api.wait_for(csi_node, lambda found: MIGRATED in found["metadata"].get("annotations", {}))
    assert tells("n-3")(api.get(csi_node))
    assert is_annotated(f'{{"{NAME}":"n-3"}}')(api.get(node))
    with driver(local_cluster, tmp_path, "n-4"):
        api.wait_for(csi_node, tells("n-4"))
    api.wait_for(csi_node, tells())


@pytest.fixture
def ephemeral(local_cluster: LocalCluster) -> Iterator[None]:
    """The driver's object, which says that it makes volumes for pods."""
    spec = {"volumeLifecycleModes": ["Ephemeral"], "podInfoOnMount": True, "attachRequired": False}
    local_cluster.api.create(DRIVERS, {"metadata": {"name": NAME}, "spec": spec})
    yield
    local_cluster.api.delete(f"{DRIVERS}/{NAME}")


def calls(folder: Path, method: str) -> list[Json]:
    lines = CallLog(folder / "calls.jsonl").read()
    return [line for line in lines if line["method"] == method and line.get("step") == "done"]


def test_a_pod_has_a_volume_of_a_driver_over_kills_of_the_agent(
    local_cluster: LocalCluster, namespace: Namespace, ephemeral: None, tmp_path: Path
) -> None:
    main = until_term("c", "echo hello >/v/f", volumeMounts=[{"name": "v", "mountPath": "/v"}])
    volume = {"name": "v", "csi": {"driver": NAME, "volumeAttributes": {"size": "1"}}}
    namespace.add("waits", main, volumes=[volume])
    words = f"driver name {NAME} not found in the list of registered CSI drivers"
    namespace.wait_event("waits", "FailedMount", words)
    with driver(local_cluster, tmp_path, "n-4"):
        pod = namespace.wait("waits", is_ready)
        (published,) = calls(tmp_path, "NodePublishVolume")
        assert published["context"]["csi.storage.k8s.io/pod.name"] == "waits"
        target = Path(published["target"])
        assert target.is_mount()
        assert (target / "f").read_text() == "hello\n"
        local_cluster.kill_agent()
        local_cluster.start_agent()
        assert container(namespace.wait("waits", is_ready))["restartCount"] == 0
        namespace.run("other", main, volumes=[volume])
        assert len(calls(tmp_path, "NodePublishVolume")) == 2, "the first one is not mounted again"
    # The driver is away when its volume is to be given back.
    api, path = local_cluster.api, namespace.path("Pod", "waits")
    api.delete(path)
    namespace.wait_event("waits", "FailedKillPod", words)
    assert target.is_mount()
    with driver(local_cluster, tmp_path, "n-4"):
        api.wait_gone(path)
        assert not target.parent.exists()
        (undone,) = calls(tmp_path, "NodeUnpublishVolume")
        assert (undone["target"], undone["was_mounted"]) == (str(target), True)
        api.delete(namespace.path("Pod", "other"))
        namespace.wait_gone("other")
        assert len(calls(tmp_path, "NodeUnpublishVolume")) == 2
    assert pod["metadata"]["uid"] in str(target)


@contextmanager
def described(cluster: LocalCluster, name: str = NAME, **spec: object) -> Iterator[None]:
    """The object of a driver, for as long as the block lasts."""
    cluster.api.create(DRIVERS, {"metadata": {"name": name}, "spec": spec})
    try:
        yield
    finally:
        cluster.api.delete(f"{DRIVERS}/{name}")


def claim(
    namespace: Namespace,
    name: str,
    mode: str = "Filesystem",
    storage_class: str = "",
    **source: object,
) -> str:
    """Have a claim of a name that is bound to a volume of the driver; returns its handle."""
    handle = f"{namespace.name}-{name}"
    common = {"accessModes": ["ReadWriteOnce"], "storageClassName": storage_class}
    common |= {"volumeMode": mode}
    volume = {"driver": NAME, "volumeHandle": handle, **source}
    namespace.api.create(
        VOLUMES,
        {
            "metadata": {"name": handle},
            "spec": {"capacity": {"storage": "1Gi"}, "csi": volume, **common},
        },
    )
    resources = {"requests": {"storage": "1Gi"}}
    wanted = {**common, "volumeName": handle, "resources": resources}
    namespace.create("PersistentVolumeClaim", name, {"spec": wanted})
    return handle


def claiming(claim: str) -> list[Json]:
    return [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]


def until_unstaged(staged: Path) -> None:
    """Wait until nothing is left of a staged volume."""
    wait_until(
        lambda: not staged.parent.exists(),
        deadline_seconds=60,
        else_say=lambda: f"{staged} is there still",
    )


MOUNTS = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}


def test_a_claimed_volume_is_staged_once_for_its_pods_over_kills_of_the_agent(
    local_cluster: LocalCluster, namespace: Namespace, tmp_path: Path
) -> None:
    agent = local_cluster.agent
    with (
        described(local_cluster, attachRequired=False),
        driver(local_cluster, tmp_path, "n-5", "--stages"),
    ):
        handle = claim(namespace, "data", fsType="ext4", volumeAttributes={"a": "b"})
        writes = until_term("c", "echo hello >/v/f", **MOUNTS)
        security = {"securityContext": {"fsGroup": 4321}}
        namespace.run("first", writes, volumes=claiming("data"), **security)
        (stage,) = calls(tmp_path, "NodeStageVolume")
        assert (stage["volume"], stage["context"], stage["fs_type"]) == (handle, {"a": "b"}, "ext4")
        staged = Path(stage["target"])
        assert staged.is_relative_to(agent.root / "plugins/kubernetes.io/csi" / NAME)
        assert (staged / "f").stat().st_gid == 4321
        local_cluster.kill_agent()
        local_cluster.start_agent()
        reads = until_term("c", "cat /v/f >/v/g", **MOUNTS)
        namespace.run("second", reads, volumes=claiming("data"), **security)
        assert container(namespace.wait("first", is_ready))["restartCount"] == 0
        assert len(calls(tmp_path, "NodeStageVolume")) == 1
        assert len(calls(tmp_path, "NodePublishVolume")) == 2
        namespace.api.delete(namespace.path("Pod", "first"))
        namespace.wait_gone("first")
        assert calls(tmp_path, "NodeUnstageVolume") == []
        assert (staged / "g").read_text() == "hello\n"
        local_cluster.kill_agent()
        local_cluster.start_agent()
        namespace.api.delete(namespace.path("Pod", "second"))
        namespace.wait_gone("second")
        until_unstaged(staged)
        assert [each["was_mounted"] for each in calls(tmp_path, "NodeUnpublishVolume")] == [
            True
        ] * 2
        assert [each["was_mounted"] for each in calls(tmp_path, "NodeUnstageVolume")] == [True]
        assert (tmp_path / "volumes" / handle / "f").read_text() == "hello\n"


def test_a_device_of_a_driver_in_pods_over_a_kill_of_the_agent(
    local_cluster: LocalCluster, namespace: Namespace, tmp_path: Path
) -> None:
    devices = {"volumeDevices": [{"name": "v", "devicePath": "/dev/v"}]}
    with (
        described(local_cluster, attachRequired=False),
        driver(local_cluster, tmp_path, "n-7", "--stages"),
    ):
        handle = claim(namespace, "data", "Block")
        writes = until_term("c", "echo kept | dd of=/dev/v conv=fsync", **devices)
        pod = namespace.run("writes", writes, volumes=claiming("data"))
        mapped = f'MapVolume.MapPodDevice succeeded for volume "{handle}" globalMapPath'
        namespace.wait_event("writes", "SuccessfulMountVolume", mapped)
        local_cluster.kill_agent()
        local_cluster.start_agent()
        reads = until_term("c", "test $(head -c 4 /dev/v) = kept || exit 1", **devices)
        namespace.run("reads", reads, volumes=claiming("data"))
        assert container(namespace.wait("writes", is_ready))["restartCount"] == 0
        assert len(calls(tmp_path, "NodeStageVolume")) == 1
        published = calls(tmp_path, "NodePublishVolume")
        plugin = local_cluster.agent.root / "plugins/kubernetes.io/csi/volumeDevices"
        folder = plugin / "publish" / handle
        assert published[0]["target"] == str(folder / pod["metadata"]["uid"])
        for name in ("writes", "reads"):
            namespace.api.delete(namespace.path("Pod", name))
            namespace.wait_gone(name)
        until_unstaged(plugin / handle / "data")
        assert [each["was_mounted"] for each in calls(tmp_path, "NodeUnpublishVolume")] == [
            True
        ] * 2
        assert [each["was_mounted"] for each in calls(tmp_path, "NodeUnstageVolume")] == [True]
        assert (tmp_path / "volumes" / handle).read_bytes().startswith(b"kept")


def test_the_space_of_a_claimed_volume_is_told(
    local_cluster: LocalCluster, namespace: Namespace, tmp_path: Path
) -> None:
    local_cluster.restart_agent(volumeStatsAggPeriod="1s")
    try:
        with (
            described(local_cluster, attachRequired=False),
            driver(local_cluster, tmp_path, "n-8", "--stages"),
        ):
            handle = claim(namespace, "data")
            pod = namespace.run("p", until_term("c", ":", **MOUNTS), volumes=claiming("data"))
            wait_until(
                lambda: space_of(local_cluster, pod) != [],
                deadline_seconds=60,
                else_say=lambda: f"nothing is told of {handle}",
            )
            (told,) = space_of(local_cluster, pod)
            found = os.statvfs(tmp_path)
            assert told["pvcRef"] == {"name": "data", "namespace": namespace.name}
            assert told["capacityBytes"] == found.f_blocks * found.f_frsize
            metrics = told_by_node(local_cluster, "metrics").splitlines()
            labels = f'namespace="{namespace.name}",persistentvolumeclaim="data"'
            capacity = f"kubelet_volume_stats_capacity_bytes{{{labels}}}"
            assert f"{capacity} {told['capacityBytes']}" in metrics
            assert f"{staging()} 1.0" in metrics
            namespace.api.delete(namespace.path("Pod", "p"))
            namespace.wait_gone("p")
            assert capacity not in told_by_node(local_cluster, "metrics")
    finally:
        local_cluster.restart_agent()


def staging() -> str:
    """The metric that counts how often the driver has staged a volume."""
    labels = f'driver_name="{NAME}",grpc_status_code="OK"'
    method = 'method_name="/csi.v1.Node/NodeStageVolume",migrated="false"'
    return f"csi_operations_seconds_count{{{labels},{method}}}"


def told_by_node(cluster: LocalCluster, path: str) -> str:
    """What the node answers through the API server."""
    return cluster.kubectl("get", "--raw", f"/api/v1/nodes/{cluster.node}/proxy/{path}")


def space_of(cluster: LocalCluster, pod: Json) -> list[Json]:
    """The volumes of claims in the summary of a pod."""
    pods = json.loads(told_by_node(cluster, "stats/summary"))["pods"]
    uid = pod["metadata"]["uid"]
    return [
        volume
        for each in pods
        if each["podRef"]["uid"] == uid
        for volume in each.get("volume", [])
        if "pvcRef" in volume
    ]


def attach(cluster: LocalCluster, handle: str, metadata: Mapping[str, str] = DISK) -> str:
    """Do what an external attacher does, when the controller asks for it; returns its path.

    `metadata` is what the driver has told when it attached the volume.
    """
    found: list[Json] = []

    def is_asked_for() -> bool:
        items = cluster.api.get(ATTACHMENTS)["items"]
        found[:] = [
            each for each in items if each["spec"]["source"]["persistentVolumeName"] == handle
        ]
        return bool(found)

    wait_until(is_asked_for, deadline_seconds=60, else_say=lambda: "nothing is to be attached")
    path = f"{ATTACHMENTS}/{found[0]['metadata']['name']}"
    status = {"attached": True, "attachmentMetadata": dict(metadata)}
    cluster.api.patch(f"{path}/status", {"status": status})
    return path


def uses(handle: str, driver: str = NAME, *, attached: bool) -> Callable[[Json], bool]:
    """True of a Node that uses a volume of this handle, which is attached to it."""
    unique = f"kubernetes.io/csi/{driver}^{handle}"

    def holds(node: Json) -> bool:
        told = [each["name"] for each in node["status"].get("volumesAttached") or ()]
        return unique in (node["status"].get("volumesInUse") or ()) and attached == (unique in told)

    return holds


def test_a_volume_is_used_when_the_controller_has_attached_it_and_until_it_is_unstaged(
    local_cluster: LocalCluster, namespace: Namespace, tmp_path: Path
) -> None:
    api, node = local_cluster.api, f"/api/v1/nodes/{local_cluster.node}"
    with described(local_cluster, attachRequired=True):
        with driver(local_cluster, tmp_path, "n-6", "--stages") as process:
            handle = claim(namespace, "data")
            api.wait_for(f"/apis/storage.k8s.io/v1/csinodes/{local_cluster.node}", tells("n-6"))
            namespace.add("pod", until_term("c", ":", **MOUNTS), volumes=claiming("data"))
            api.wait_for(node, uses(handle, attached=False))
            assert calls(tmp_path, "NodeStageVolume") == []
            attachment = attach(local_cluster, handle)
            namespace.wait("pod", is_ready)
            (stage,) = calls(tmp_path, "NodeStageVolume")
            (publish,) = calls(tmp_path, "NodePublishVolume")
            assert stage["publish_context"] == publish["publish_context"] == DISK
            # The volume cannot be unstaged: it stays in use, for the next agent, too.
            faults = '{"NodeUnstageVolume": {"fail": "INTERNAL: busy"}}'
            (tmp_path / "faults.json").write_text(faults)
            api.delete(namespace.path("Pod", "pod"))
            namespace.wait_gone("pod")
            process.kill()
        local_cluster.kill_agent()
        local_cluster.start_agent()
        api.wait_for(node, uses(handle, attached=True))
        (tmp_path / "faults.json").unlink()
        with driver(local_cluster, tmp_path, "n-6", "--stages"):
            until_unstaged(Path(stage["target"]))
            api.wait_for(
                node, lambda node: f"^{handle}" not in str(node["status"].get("volumesInUse"))
            )
            api.wait_gone(attachment)
