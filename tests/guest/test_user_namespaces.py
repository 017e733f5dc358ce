"""Pods with user namespaces of their own, on a runtime that has them: containerd 2.1 with crun.

The machine's containerd 1.7 has them only in the way of older kubelets; a newer one, as the
integration tests run on the host, takes its place, on a machine for this module alone.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import tools
from lab.agent import Json, pod_manifest
from lab.guest.guest import Guest
from lab.guest.image import GuestImage
from lab.images import BUSYBOX
from lab.packages import Packages
from tests.guest.node import ROOT, RUNTIME_CONFIGURATION, UNIT, Node
from tests.guest.test_crun import DEFAULT_HANDLER

PROGRAMS = "containerd-2.1"
DROP_IN = f"""
[Service]
ExecStart=
ExecStart=/shared/{PROGRAMS}/containerd
Environment=PATH=/shared/{PROGRAMS}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
"""
# What shadow's program of that name says; its package is not in the image.
GETSUBIDS = r"""#!/bin/sh
file=/etc/subuid
[ "$1" != -g ] || file=/etc/subgid
sed -n 's/^kubelet:\([0-9]*\):\([0-9]*\)$/0: kubelet \1 \2/p' $file
"""
STAY = "trap 'exit 0' TERM; sleep 1000000 & wait"
LENGTH = 65536


@pytest.fixture(scope="module")
def node(
    image: GuestImage, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    """A node with containerd 2.1 and crun."""
    found = tools.find("2.1", Packages()).containerd.parent
    with Guest(tmp_path_factory.mktemp("guest"), image=image) as guest:
        shutil.copytree(found, guest.shared / PROGRAMS)
        before = guest.read(RUNTIME_CONFIGURATION)
        guest.write(RUNTIME_CONFIGURATION, before + DEFAULT_HANDLER.encode())
        guest.write("/etc/systemd/system/containerd.service.d/50-newer.conf", DROP_IN)
        guest.run("systemctl daemon-reload; systemctl restart containerd")
        node = Node(guest)
        node.install(wheel)
        yield node


def pod(name: str, script: str, **spec: object) -> Json:
    main = {
        "name": "main",
        "image": BUSYBOX,
        "command": ["sh", "-c", f"{script}; {STAY}"],
        "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {"name": "memory", "mountPath": "/memory"},
            {"name": "about", "mountPath": "/about"},
        ],
    }
    about = {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}
    volumes = [
        {"name": "data", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "about", "downwardAPI": about},
    ]
    return pod_manifest(name, main, hostUsers=False, volumes=volumes, **spec)


def of_pod(node: Node, pod: Json) -> tuple[int, Json]:
    """The first process of the pod's container, and what its folder says of its ids."""
    (status,) = pod["status"]["containerStatuses"]
    process = node.processes()[status["containerID"].partition("://")[2]]
    kept = json.loads(node.guest.read(f"{ROOT}/pods/{pod['metadata']['uid']}/userns"))
    return process, kept


def ids_of(node: Node, process: int) -> list[int]:
    """Where the ids of a process begin inside and outside, and how many there are."""
    return [int(each) for each in node.guest.read(f"/proc/{process}/uid_map").split()]


def test_a_pod_is_root_in_its_own_user_namespace_alone(node: Node) -> None:
    script = "touch /data/mine /memory/mine; id -u >/data/id; stat -c %u /about/name >/data/owner"
    node.add(pod("first", script))
    node.add(pod("second", script))
    first, second = node.wait_for_pod("first"), node.wait_for_pod("second")
    starts = set()
    for each in (first, second):
        process, kept = of_pod(node, each)
        inside, outside, length = ids_of(node, process)
        assert (inside, length) == (0, LENGTH)
        ids = {"hostId": outside, "containerId": 0, "length": LENGTH}
        assert kept == {"uidMappings": [ids], "gidMappings": [ids]}
        starts.add(outside)
        volumes = f"{ROOT}/pods/{each['metadata']['uid']}/volumes/kubernetes.io~empty-dir"
        node.guest.run(f"until [ -s {volumes}/data/owner ]; do sleep 0.1; done")
        assert node.guest.read(f"{volumes}/data/id") == b"0\n"
        assert node.guest.read(f"{volumes}/data/owner") == b"0\n", "mounts are mapped"
        owners = node.guest.run(
            "stat", "-c", "%u", f"{volumes}/data/mine", f"{volumes}/memory/mine"
        )
        assert owners.split() == ["0", "0"], (
            "on the node, files belong to the ids of the pod's spec"
        )
    assert len(starts) == 2
    assert min(starts) >= LENGTH
    node.systemctl("restart", UNIT)
    again = node.wait_for_pod("first")
    assert of_pod(node, again) == of_pod(node, first)
    _, of_second = of_pod(node, second)
    node.remove("second")
    node.add(pod("third", ":"))
    _, of_third = of_pod(node, node.wait_for_pod("third"))
    assert of_third == of_second, "ids of pods that went are given again, those of others are not"
    node.remove("first", "third")


def test_the_ids_are_those_of_the_user_kubelet(node: Node) -> None:
    first = 1 << 24
    node.guest.write("/usr/local/bin/getsubids", GETSUBIDS, mode=0o755)
    node.guest.run(
        f"""
        useradd --system --no-create-home kubelet
        echo kubelet:{first}:{LENGTH * 128} | tee /etc/subuid >/etc/subgid
        """
    )
    node.systemctl("restart", UNIT)
    node.add(pod("subordinate", ":"))
    process, _ = of_pod(node, node.wait_for_pod("subordinate"))
    assert ids_of(node, process) == [0, first, LENGTH]
    node.guest.run("echo kubelet:5:10 >/etc/subuid; cp /etc/subuid /etc/subgid")
    node.systemctl("restart", UNIT)
    assert ids_of(node, process) == [0, first, LENGTH]
    node.add(pod("without", ":"))
    rejected = node.wait_for_pod("without", lambda pod: pod["status"].get("phase") == "Failed")
    assert rejected["status"]["reason"] == "UserNamespacesNotSupported"
    assert "is not a multiple of" in rejected["status"]["message"]
    node.remove("subordinate", "without")
