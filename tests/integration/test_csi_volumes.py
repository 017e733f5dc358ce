"""Volumes of a CSI driver that grow or find no room, with agent, driver and pods as processes.

The API server is the one in memory, on a socket. The tests do what the sidecars of a driver's
controller do: the resizer when a volume was enlarged, the attacher when a node is full.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.agent import LabAgent
from lab.cluster_api import ClusterApi, Json
from lab.containerd import Containerd
from lab.csi_driver import NAME, CallLog
from lab.images import BUSYBOX
from lab.processes import wait_until
from tests.apiserver.served import HOST, ServedApi
from tests.containerds import VERSIONS
from trio_kubelet.volumes.csi_records import VolumeKey, attachment_name

pytestmark = pytest.mark.parametrize(
    "containerd", [v for v in VERSIONS if v == "2.1"], indirect=True, ids="containerd-{}".format
)

NODE = "growing-node"
PODS = "/api/v1/namespaces/default/pods"
CLAIM = "/api/v1/namespaces/default/persistentvolumeclaims/data"
VOLUMES = "/api/v1/persistentvolumes"
EVENTS = "/api/v1/namespaces/default/events"
GIB = 1 << 30
HANGS = '{"NodeExpandVolume": {"hang": true}}'
DRIVERS = "/apis/storage.k8s.io/v1/csidrivers"
ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"
FAILS = '{"NodeExpandVolume": {"fail": "INTERNAL: no"}}'


@pytest.fixture
def served() -> Iterator[ServedApi]:
    with ServedApi() as served:
        yield served


@pytest.fixture
def api(served: ServedApi) -> Iterator[ClusterApi]:
    """The API server, with the driver's object and a claim of 1Gi that a volume is bound to."""
    api = ClusterApi(f"http://{HOST}:{served.port}", b"")
    spec = {"attachRequired": False, "volumeLifecycleModes": ["Persistent"]}
    api.create(DRIVERS, {"metadata": {"name": NAME}, "spec": spec})
    common = {"accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem"}
    status = {"phase": "Bound", "capacity": {"storage": "1Gi"}}
    claim = {
        "metadata": {"name": "data"},
        "spec": {**common, "volumeName": "pv"},
        "status": status,
    }
    uid = api.create(CLAIM.rpartition("/")[0], claim)["metadata"]["uid"]
    source = {"csi": {"driver": NAME, "volumeHandle": "h-1"}}
    reference = {"namespace": "default", "name": "data", "uid": uid}
    volume = {**common, **source, "claimRef": reference, "capacity": {"storage": "1Gi"}}
    api.create(VOLUMES, {"metadata": {"name": "pv"}, "spec": volume})
    yield api
    api.close()


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Path]:
    """The folder of the driver, which is a process of its own."""
    registry, folder = tmp_path / "node/root/plugins_registry", tmp_path / "driver"
    registry.mkdir(parents=True)
    folder.mkdir()
    command = [sys.executable, "-m", "lab.csi_driver", "--folder", str(folder)]
    command += ["--registry-socket", str(registry / "d.sock"), "--mounts", "--stages"]
    with subprocess.Popen(command) as process:
        yield folder
        process.kill()


@pytest.fixture
def agent(
    served: ServedApi, api: ClusterApi, driver: Path, containerd: Containerd, tmp_path: Path
) -> Iterator[LabAgent]:
    """The agent as a node; all pods of the API go with it."""
    flags = ("--kubeconfig", str(served.kubeconfig(tmp_path)), "--hostname-override", NODE)
    with LabAgent(
        tmp_path / "node",
        endpoint=containerd.endpoint,
        settings={"syncFrequency": "1s"},
        flags=flags,
    ) as agent:
        yield agent
        delete_pod(api)


def add_pod(api: ClusterApi) -> None:
    """Have a pod that mounts the claim."""
    container = {
        "name": "c",
        "image": BUSYBOX,
        "command": ["sleep", "1000000"],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    }
    spec = {
        "containers": [container],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
        "nodeName": NODE,
        "terminationGracePeriodSeconds": 0,
    }
    api.create(PODS, {"metadata": {"name": "p"}, "spec": spec})


def delete_pod(api: ClusterApi) -> None:
    """Delete the pod, and wait until it is gone."""
    api.delete(f"{PODS}/p")
    api.wait_gone(f"{PODS}/p")


def grow(api: ClusterApi) -> None:
    """Have the volume enlarged to 2Gi, and say that the node is next."""
    api.patch(f"{VOLUMES}/pv", {"spec": {"capacity": {"storage": "2Gi"}}})
    pending = {"type": "FileSystemResizePending", "status": "True"}
    status = {"allocatedResourceStatuses": {"storage": "NodeResizePending"}}
    api.patch(f"{CLAIM}/status", {"status": {**status, "conditions": [pending]}})


def has_grown(claim: Json) -> bool:
    status = claim["status"]
    settled = not status.get("conditions") and not status.get("allocatedResourceStatuses")
    return settled and status["capacity"]["storage"] == "2Gi"


def has_failed(claim: Json) -> bool:
    return "NodeResizeError" in [each["type"] for each in claim["status"]["conditions"]]


def is_ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def wait_for_event(api: ClusterApi, kind: str, reason: str, words: str) -> None:
    """Wait for an event about an object of a kind."""

    def look() -> bool:
        return any(
            (each["involvedObject"]["kind"], each["reason"]) == (kind, reason)
            and words in each["message"]
            for each in api.get(EVENTS)["items"]
        )

    wait_until(look, deadline_seconds=60, else_say=lambda: f"no {reason}: {api.get(EVENTS)}")


def calls(driver: Path, method: str, step: str = "done") -> list[Json]:
    lines = CallLog(driver / "calls.jsonl").read()
    return [line for line in lines if line["method"] == method and line.get("step") == step]


def test_a_claimed_volume_grows_under_a_running_pod(
    agent: LabAgent, api: ClusterApi, driver: Path
) -> None:
    add_pod(api)
    api.wait_for(f"{PODS}/p", is_ready)
    (driver / "faults.json").write_text(FAILS)
    grow(api)
    wait_for_event(api, "Pod", "VolumeResizeFailed", "code = Internal desc = no")
    api.wait_for(CLAIM, has_failed)
    (driver / "faults.json").unlink()
    claim = api.wait_for(CLAIM, has_grown)
    (stage,) = calls(driver, "NodeStageVolume")
    (publish,) = calls(driver, "NodePublishVolume")
    (call,) = calls(driver, "NodeExpandVolume")
    assert call["size"] == 2 * GIB
    assert (call["target"], call["staged"]) == (publish["target"], stage["target"])
    words = 'MountVolume.NodeExpandVolume succeeded for volume "pv"'
    for kind in ("Pod", "PersistentVolumeClaim"):
        wait_for_event(api, kind, "FileSystemResizeSuccessful", words)
    assert claim["status"]["phase"] == "Bound"
    assert api.get(f"{PODS}/p")["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_pod_starts_when_its_volume_has_grown_over_a_kill_of_the_agent(
    agent: LabAgent, api: ClusterApi, driver: Path
) -> None:
    (driver / "faults.json").write_text(HANGS)
    grow(api)
    add_pod(api)
    wait_until(
        lambda: calls(driver, "NodeExpandVolume", "begun") != [],
        deadline_seconds=60,
        else_say=lambda: "the driver is not asked to expand the volume",
    )
    assert not is_ready(api.get(f"{PODS}/p"))
    agent.kill()
    (driver / "faults.json").unlink()
    agent.start()
    api.wait_for(f"{PODS}/p", is_ready)
    api.wait_for(CLAIM, has_grown)
    delete_pod(api)
    wait_until(
        lambda: calls(driver, "NodeUnstageVolume") != [],
        deadline_seconds=60,
        else_say=lambda: "the volume is not unstaged",
    )
    add_pod(api)


def test_a_pod_for_whose_volume_the_node_has_no_room_is_rejected(
    agent: LabAgent, api: ClusterApi, driver: Path
) -> None:
    settings = {"attachRequired": True, "nodeAllocatableUpdatePeriodSeconds": 600}
    api.delete(f"{DRIVERS}/{NAME}")
    api.create(DRIVERS, {"metadata": {"name": NAME}, "spec": settings})
    (driver / "faults.json").write_text('{"NodeGetInfo": {"max_volumes": 1}}')
    error = {"message": "no room", "errorCode": 8}
    attachment = {
        "metadata": {"name": attachment_name(VolumeKey(NAME, "h-1"), NODE)},
        "spec": {
            "attacher": NAME,
            "nodeName": NODE,
            "source": {"persistentVolumeName": "pv"},
        },
        "status": {"attached": False, "attachError": error},
    }
    api.create(ATTACHMENTS, attachment)
    add_pod(api)
    pod = api.wait_for(f"{PODS}/p", lambda pod: pod["status"].get("phase") == "Failed")
    assert pod["status"]["reason"] == "VolumeAttachmentLimitExceeded"
    assert pod["status"]["message"].endswith("no room")
    api.wait_for(f"/apis/storage.k8s.io/v1/csinodes/{NODE}", has_room_for(1))
    assert calls(driver, "NodeStageVolume") == []


def has_room_for(number: int) -> Callable[[Json], bool]:
    """True of a CSINode on which the driver can have so many volumes."""
    return lambda node: (
        [each.get("allocatable") for each in node["spec"].get("drivers") or ()]
        == [{"count": number}]
    )
