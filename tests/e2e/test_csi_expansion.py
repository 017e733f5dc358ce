"""Claims that ask for more, with volumes of a CSI driver, on a real API server.

The test does what an external resizer does when the driver's controller has enlarged a volume.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster_api import Json
from lab.csi_driver import CallLog
from lab.processes import wait_until
from tests.e2e.cluster import Namespace, container, is_ready, until_term
from tests.e2e.local import LocalCluster
from tests.e2e.test_csi import (
    MOUNTS,
    NAME,
    VOLUMES,
    calls,
    claim,
    claiming,
    described,
    driver,
    until_unstaged,
)

GIB = 1 << 30
FAILS = '{"NodeExpandVolume": {"fail": "INTERNAL: no"}}'
HANGS = '{"NodeExpandVolume": {"hang": true}}'


@pytest.fixture
def growing(local_cluster: LocalCluster) -> Iterator[str]:
    """A storage class whose volumes may grow."""
    api, classes = local_cluster.api, "/apis/storage.k8s.io/v1/storageclasses"
    kind = {"metadata": {"name": "growing"}, "provisioner": NAME, "allowVolumeExpansion": True}
    api.create(classes, kind)
    yield "growing"
    api.delete(f"{classes}/growing")


def grow(namespace: Namespace, name: str, handle: str) -> None:
    """Ask for 2Gi, and say that the node is next."""
    api, path = namespace.api, namespace.path("PersistentVolumeClaim", name)
    api.patch(path, {"spec": {"resources": {"requests": {"storage": "2Gi"}}}})
    api.patch(f"{VOLUMES}/{handle}", {"spec": {"capacity": {"storage": "2Gi"}}})
    pending = {"type": "FileSystemResizePending", "status": "True"}
    status = {
        "allocatedResources": {"storage": "2Gi"},
        "allocatedResourceStatuses": {"storage": "NodeResizePending"},
        "conditions": [pending],
    }
    api.patch(f"{path}/status", {"status": status})


def has_grown(claim: Json) -> bool:
    status = claim["status"]
    settled = not status.get("conditions") and not status.get("allocatedResourceStatuses")
    return settled and status["capacity"]["storage"] == "2Gi"


def has_failed(claim: Json) -> bool:
    conditions = claim["status"].get("conditions") or ()
    return any(each["type"] == "NodeResizeError" for each in conditions)


def test_a_claimed_volume_grows_under_a_running_pod(
    local_cluster: LocalCluster, namespace: Namespace, growing: str, tmp_path: Path
) -> None:
    api, path = local_cluster.api, namespace.path("PersistentVolumeClaim", "data")
    with (
        described(local_cluster, attachRequired=False),
        driver(local_cluster, tmp_path, "n-9", "--stages"),
    ):
        handle = claim(namespace, "data", storage_class=growing)
        namespace.run("p", until_term("c", ":", **MOUNTS), volumes=claiming("data"))
        (stage,) = calls(tmp_path, "NodeStageVolume")
        (publish,) = calls(tmp_path, "NodePublishVolume")
        (tmp_path / "faults.json").write_text(FAILS)
        grow(namespace, "data", handle)
        namespace.wait_event("p", "VolumeResizeFailed", "code = Internal desc = no")
        api.wait_for(path, has_failed)
        (tmp_path / "faults.json").unlink()
        api.wait_for(path, has_grown)
        (call,) = calls(tmp_path, "NodeExpandVolume")
        assert call["size"] == 2 * GIB
        assert (call["target"], call["staged"]) == (publish["target"], stage["target"])
        words = f'MountVolume.NodeExpandVolume succeeded for volume "{handle}"'
        for name in ("p", "data"):
            namespace.wait_event(name, "FileSystemResizeSuccessful", words)
        assert container(namespace.wait("p", is_ready))["restartCount"] == 0


def test_a_pod_starts_when_its_volume_has_grown_over_a_kill_of_the_agent(
    local_cluster: LocalCluster, namespace: Namespace, growing: str, tmp_path: Path
) -> None:
    api, path = local_cluster.api, namespace.path("PersistentVolumeClaim", "data")
    log = CallLog(tmp_path / "calls.jsonl")
    with (
        described(local_cluster, attachRequired=False),
        driver(local_cluster, tmp_path, "n-10", "--stages"),
    ):
        handle = claim(namespace, "data", storage_class=growing)
        api.wait_for(path, lambda claim: claim["status"]["phase"] == "Bound")
        grow(namespace, "data", handle)
        (tmp_path / "faults.json").write_text(HANGS)
        namespace.add("p", until_term("c", ":", **MOUNTS), volumes=claiming("data"))
        wait_until(
            lambda: "NodeExpandVolume" in [line["method"] for line in log.read()],
            deadline_seconds=60,
            else_say=lambda: f"the driver was asked for {log.read()}",
        )
        assert not is_ready(namespace.pod("p"))
        local_cluster.kill_agent()
        (tmp_path / "faults.json").unlink()
        local_cluster.start_agent()
        namespace.wait("p", is_ready)
        api.wait_for(path, has_grown)
        (stage,) = calls(tmp_path, "NodeStageVolume")
        api.delete(namespace.path("Pod", "p"))
        namespace.wait_gone("p")
        until_unstaged(Path(stage["target"]))
