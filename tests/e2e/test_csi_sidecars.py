"""Claims that controllers of others serve: provisioner, attacher and resizer of kubernetes-csi.

They act on the objects of a real API server and ask the lab's driver, as they do beside any driver
in a cluster. The node has its part between theirs: what they write is what it reads, and they wait
for what it writes.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import UnavailableError, csi_sidecars
from lab.cluster_api import Json
from lab.csi_controller import DEVICE
from lab.csi_driver import LabDriver
from lab.processes import last_words, wait_until
from tests.e2e.cluster import DEADLINE_SECONDS, Namespace, container, is_ready, until_term
from tests.e2e.local import LocalCluster
from tests.e2e.test_csi import (
    ATTACHMENTS,
    MOUNTS,
    NAME,
    VOLUMES,
    calls,
    claiming,
    described,
    driver,
)
from tests.e2e.test_csi_expansion import GIB, has_grown
from tests.missing import do_without

CLASS = "sidecars"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
SECRET = "key"
PARAMETERS = {
    "csi.storage.k8s.io/fstype": "ext4",
    "csi.storage.k8s.io/node-stage-secret-name": SECRET,
    "csi.storage.k8s.io/node-stage-secret-namespace": "${pvc.namespace}",
}
CALLS_IN_ORDER = [
    "CreateVolume",
    "ControllerPublishVolume",
    "NodeStageVolume",
    "NodePublishVolume",
    "ControllerExpandVolume",
    "NodeExpandVolume",
    "NodeUnpublishVolume",
    "NodeUnstageVolume",
    "ControllerUnpublishVolume",
    "DeleteVolume",
]
"""What a driver is asked for, in this order, for a volume that grows while a pod uses it."""
EXPANSIONS = {"ControllerExpandVolume", "NodeExpandVolume"}
LOG_CHARACTERS = 300


@pytest.fixture
def lab_driver(local_cluster: LocalCluster, tmp_path: Path) -> Iterator[LabDriver]:
    """The driver on the node, with provisioner, attacher and resizer, and a class for claims."""
    try:
        programs = csi_sidecars.find()
    except UnavailableError as reason:
        do_without(str(reason))
    api, kubeconfig = local_cluster.api, local_cluster.control_plane.folder / "admin.conf"
    api.create(
        CLASSES,
        {
            "metadata": {"name": CLASS},
            "provisioner": NAME,
            "allowVolumeExpansion": True,
            "volumeBindingMode": "WaitForFirstConsumer",
            "parameters": PARAMETERS,
        },
    )
    files = LabDriver(tmp_path)
    kind = "lab.csi_controller"
    try:
        with (
            described(local_cluster, attachRequired=True),
            driver(local_cluster, tmp_path, "n-11", "--stages", kind=kind),
            csi_sidecars.csi_sidecars(programs, files.socket, kubeconfig),
        ):
            yield files
    finally:
        for log in sorted(tmp_path.glob("csi-*.log")):
            print(log.name, last_words(log.read_text(), 5)[-LOG_CHARACTERS:])
        api.delete(f"{CLASSES}/{CLASS}")


def asked(driver: LabDriver) -> list[str]:
    """What the driver was asked to change, in the order in which each was done last."""
    done = [line["method"] for line in driver.log.read() if line.get("step") == "done"]
    last_first = dict.fromkeys(reversed(done))
    return [method for method in reversed(last_first) if method in CALLS_IN_ORDER]


def made(driver: LabDriver) -> list[str]:
    """The volumes that there are."""
    return [path.name for path in (driver.folder / "made").iterdir()]


def claim_spec(mode: str = "Filesystem") -> Json:
    """The spec of a claim that nobody has made a volume for."""
    return {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": CLASS,
        "volumeMode": mode,
        "resources": {"requests": {"storage": "1Gi"}},
    }


def wait_written(file: Path) -> None:
    """Wait until a pod has written into its volume."""
    wait_until(
        lambda: file.exists() and file.read_bytes().startswith(b"kept"),
        deadline_seconds=DEADLINE_SECONDS,
        else_say=lambda: f"nothing is in {file}",
    )


def until_gone(namespace: Namespace, volume: str) -> None:
    """Wait until a persistent volume has gone, and see that nothing is attached for it."""
    namespace.api.wait_gone(f"{VOLUMES}/{volume}")
    sources = [each["spec"]["source"] for each in namespace.api.get(ATTACHMENTS)["items"]]
    assert volume not in [source["persistentVolumeName"] for source in sources]


def test_a_claim_is_served_from_its_volumes_making_to_its_deletion(
    local_cluster: LocalCluster, namespace: Namespace, lab_driver: LabDriver
) -> None:
    api, claim = namespace.api, namespace.path("PersistentVolumeClaim", "data")
    namespace.create("Secret", SECRET, {"stringData": {"password": "open"}})
    namespace.create("PersistentVolumeClaim", "data", {"spec": claim_spec()})
    writes = until_term("c", "echo kept >/v/f", **MOUNTS)
    namespace.run("first", writes, volumes=claiming("data"))
    volume = api.get(claim)["spec"]["volumeName"]
    (handle,) = made(lab_driver)
    assert api.get(f"{VOLUMES}/{volume}")["spec"]["csi"]["volumeHandle"] == handle
    (created,) = calls(lab_driver.folder, "CreateVolume")
    assert (created["name"], created["size"]) == (volume, GIB)
    stage = calls(lab_driver.folder, "NodeStageVolume")[0]
    assert stage["publish_context"] == {DEVICE: handle}
    assert (stage["secrets"], stage["fs_type"]) == ({"password": "open"}, "ext4")
    wait_written(lab_driver.data(handle) / "f")
    local_cluster.kill_agent()
    local_cluster.start_agent()
    reads = until_term("c", "test $(cat /v/f) = kept || exit 1", **MOUNTS)
    namespace.run("second", reads, volumes=claiming("data"))
    api.patch(claim, {"spec": {"resources": {"requests": {"storage": "2Gi"}}}})
    api.wait_for(claim, has_grown)
    assert calls(lab_driver.folder, "NodeExpandVolume")[0]["size"] == 2 * GIB
    for name in ("first", "second"):
        assert container(namespace.wait(name, is_ready))["restartCount"] == 0
    for name in ("first", "second"):
        api.delete(namespace.path("Pod", name))
        namespace.wait_gone(name)
    api.delete(claim)
    until_gone(namespace, volume)
    assert asked(lab_driver) == CALLS_IN_ORDER
    assert (lab_driver.published(), lab_driver.staged(), made(lab_driver)) == ([], [], [])


def test_a_device_of_a_pods_own_claim_waits_for_its_attachment_and_goes_with_the_pod(
    local_cluster: LocalCluster, namespace: Namespace, lab_driver: LabDriver
) -> None:
    namespace.create("Secret", SECRET, {"stringData": {"password": "open"}})
    lab_driver.set_faults(ControllerPublishVolume={"fail": "INTERNAL: no path to the disk"})
    devices = {"volumeDevices": [{"name": "v", "devicePath": "/dev/v"}]}
    own = {"ephemeral": {"volumeClaimTemplate": {"spec": claim_spec("Block")}}}
    writes = until_term("c", "echo kept | dd of=/dev/v conv=fsync", **devices)
    namespace.add("p", writes, volumes=[{"name": "v", **own}])
    namespace.wait_event("p", "FailedAttachVolume", "no path to the disk")
    assert calls(lab_driver.folder, "NodeStageVolume") == []
    local_cluster.kill_agent()
    lab_driver.set_faults()
    local_cluster.start_agent()
    namespace.wait("p", is_ready)
    claim = namespace.api.get(namespace.path("PersistentVolumeClaim", "p-v"))
    volume, (handle,) = claim["spec"]["volumeName"], made(lab_driver)
    wait_written(lab_driver.data(handle))
    namespace.api.delete(namespace.path("Pod", "p"))
    namespace.wait_gone("p")
    until_gone(namespace, volume)
    assert asked(lab_driver) == [method for method in CALLS_IN_ORDER if method not in EXPANSIONS]
    assert (lab_driver.published(), lab_driver.staged(), made(lab_driver)) == ([], [], [])
    assert not lab_driver.data(handle).exists()
