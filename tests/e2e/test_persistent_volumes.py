"""Claims that the control plane binds, and the volumes behind them, in pods."""

from pathlib import Path

import pytest

from lab.cluster_api import Json
from lab.processes import wait_until
from tests.e2e.cluster import Namespace, container, is_over, shell
from tests.integration.local_disk import loop_device
from trio_kubelet.kernel.mountinfo import mount_points

VOLUMES = "/api/v1/persistentvolumes"


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder of the machine, with data of the user's."""
    (tmp_path / "data").write_text("kept")
    return tmp_path


def bind(namespace: Namespace, name: str, source: Json, **spec: object) -> None:
    """Make a volume and a claim on it; the controllers bind them."""
    volume = f"{namespace.name}-{name}"
    common = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    namespace.api.create(
        VOLUMES,
        {
            "metadata": {"name": volume},
            "spec": {**common, "capacity": {"storage": "1Gi"}, **source, **spec},
        },
    )
    resources = {"requests": {"storage": "1Gi"}}
    mode = {"volumeMode": source.get("volumeMode", "Filesystem")}
    claim = {"spec": {**common, **mode, "volumeName": volume, "resources": resources}}
    namespace.create("PersistentVolumeClaim", name, claim)


def on_node(namespace: Namespace) -> Json:
    """The node affinity that volumes of the kind local must have."""
    terms = [
        {
            "matchExpressions": [
                {
                    "key": "kubernetes.io/hostname",
                    "operator": "In",
                    "values": [namespace.node],
                }
            ]
        }
    ]
    return {"required": {"nodeSelectorTerms": terms}}


def claiming(claim: str) -> list[Json]:
    return [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]


MOUNT = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}


def run(namespace: Namespace, name: str, script: str, **spec: object) -> str:
    """Run a pod that mounts the claim `files` at /v; returns what it wrote for its end."""
    teller = shell("c", f"{{ {script}; }} >/dev/termination-log", **MOUNT)
    namespace.add(name, teller, restartPolicy="Never", volumes=claiming("files"), **spec)
    ended: Json = container(namespace.wait(name, is_over), "c")["state"]["terminated"]
    return str(ended.get("message", "")).strip()


def remove(namespace: Namespace, name: str) -> None:
    namespace.kubectl("delete", "pod", name, "--wait=true", "--timeout=60s")


def test_a_host_path_that_a_claim_is_bound_to(namespace: Namespace, disk: Path) -> None:
    bind(namespace, "files", {"hostPath": {"path": str(disk)}})
    assert run(namespace, "reads", "cat /v/data") == "kept"
    remove(namespace, "reads")
    assert (disk / "data").read_text() == "kept"


def test_a_local_volume_keeps_its_data_from_pod_to_pod(namespace: Namespace, disk: Path) -> None:
    source = {"local": {"path": str(disk)}}
    bind(namespace, "files", source, nodeAffinity=on_node(namespace), mountOptions=["noexec"])
    security = {"securityContext": {"fsGroup": 4321}}
    told = run(namespace, "writes", "stat -c %g /v/data; grep ' /v ' /proc/mounts", **security)
    assert told.startswith("4321")
    assert "noexec" in told
    remove(namespace, "writes")
    assert run(namespace, "reads", "cat /v/data; echo new >/v/new") == "kept"
    remove(namespace, "reads")
    assert (disk / "data").read_text() == "kept"
    assert (disk / "new").read_text() == "new\n"


def test_a_device_of_the_node_in_containers(namespace: Namespace, tmp_path: Path) -> None:
    image = tmp_path / "image"
    with loop_device(image) as device:
        source = {"local": {"path": device}, "volumeMode": "Block"}
        bind(namespace, "files", source, nodeAffinity=on_node(namespace))
        devices = {"volumeDevices": [{"name": "v", "devicePath": "/dev/v"}]}
        for name, script in (
            ("writes", "echo kept | dd of=/dev/v conv=fsync"),
            ("reads", "head -c 4 /dev/v >/dev/termination-log"),
        ):
            namespace.add(
                name,
                shell("c", script, **devices),
                restartPolicy="Never",
                volumes=claiming("files"),
            )
            ended = container(namespace.wait(name, is_over), "c")["state"]["terminated"]
            mapped = f'MapVolume.MapPodDevice succeeded for volume "{namespace.name}-files"'
            for place in ("globalMapPath", "volumeMapPath"):
                namespace.wait_event(name, "SuccessfulMountVolume", f"{mapped} {place}")
            remove(namespace, name)
        assert ended["message"] == "kept"
        assert image.read_bytes().startswith(b"kept")


def test_a_device_of_the_node_that_pods_have_as_a_folder(
    namespace: Namespace, tmp_path: Path
) -> None:
    with loop_device(tmp_path / "image", 16 << 20) as device:
        source = {"local": {"path": device, "fsType": "ext4"}}
        bind(namespace, "files", source, nodeAffinity=on_node(namespace))
        told = run(namespace, "writes", "echo kept >/v/data; grep ' /v ' /proc/mounts")
        assert told.startswith(f"{device} /v ext4 rw")
        remove(namespace, "writes")
        assert run(namespace, "reads", "cat /v/data") == "kept"
        remove(namespace, "reads")
        wait_until(
            lambda: device not in {each.source for each in mount_points()},
            deadline_seconds=120,
            else_say=lambda: f"{device} is still mounted",
        )


def test_a_pod_waits_for_its_claim_and_its_events_say_why(namespace: Namespace, disk: Path) -> None:
    spec = {"nodeName": namespace.node}  # The scheduler would wait for the claim itself.
    teller = shell("c", "cat /v/data >/dev/termination-log", **MOUNT)
    namespace.add("waits", teller, restartPolicy="Never", volumes=claiming("files"), **spec)
    namespace.wait_event("waits", "FailedMount")
    bind(namespace, "files", {"hostPath": {"path": str(disk)}})
    ended = container(namespace.wait("waits", is_over), "c")["state"]["terminated"]
    assert ended["message"] == "kept"
