"""`trio-kubelet disk` on real containers: what they write is found, wherever they write it."""

import json
import os
import signal
import subprocess
import sys

from lab.agent import Json, pod_manifest
from lab.images import BUSYBOX
from lab.processes import wait_until
from tests.integration.pods import Node, full_name, until_term

MI = 1 << 20
WRITES = """
dd if=/dev/zero of=/layer bs=1M count=5
dd if=/dev/zero of=/cache/file bs=1M count=3
dd if=/dev/zero of=/deleted bs=1M count=2
exec 3</deleted
rm /deleted
dd if=/dev/zero of=/memory/deleted bs=1M count=1
exec 4</memory/deleted
rm /memory/deleted
seq 100000
exec sleep 100000
"""


def test_what_uses_the_disk_is_told(node: Node) -> None:
    container = {
        "name": "c",
        "image": BUSYBOX,
        "command": ["sh", "-c", WRITES],
        "volumeMounts": [
            {"name": "cache", "mountPath": "/cache"},
            {"name": "memory", "mountPath": "/memory"},
        ],
    }
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "writes"},
        "spec": {
            "containers": [container, {"name": "ends", "image": BUSYBOX, "command": ["true"]}],
            "volumes": [
                {"name": "cache", "emptyDir": {}},
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
            ],
            "restartPolicy": "OnFailure",
            "terminationGracePeriodSeconds": 0,
        },
    }
    node.add(manifest)
    pod = node.wait("writes", lambda pod: "terminated" in str(pod["status"]))
    name = pod["metadata"]["name"]
    report: Json = {}

    def is_told() -> bool:
        nonlocal report
        report = node.agent.ask("/debug/disk")
        [row] = [each for each in report["pods"] if each["name"] == name]
        return (
            _at_least(row["writableLayerBytes"], 5 * MI)
            and _at_least(row["emptyDirBytes"], 3 * MI)
            and _at_least(row["logBytes"], MI)
        )

    wait_until(is_told, deadline_seconds=180, else_say=lambda: f"told: {report}")
    [deleted] = [each for each in report["deletedFiles"] if each["pod"] == name]
    assert (deleted["container"], deleted["bytes"]) == ("c", 2 * MI)
    assert deleted["path"].endswith("/deleted")
    [dead] = [each for each in report["deadContainers"] if each["pod"] == name]
    assert dead["container"] == "ends"
    [image] = [each for each in report["images"] if each["name"] == BUSYBOX]
    assert image["inUse"]
    assert image["lastUsed"]
    assert report["problems"] == {}
    command = [sys.executable, "-m", "trio_kubelet", "disk", "--root-dir", str(node.agent.root)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"default/{name}" in text
    assert "5.0Mi" in text
    node.remove_all()


def test_a_runtime_that_hangs_is_named_and_the_rest_is_told(node: Node) -> None:
    node.run(pod_manifest("beside", until_term("c")))
    runtime = node.containerd.pid
    assert runtime is not None
    command = [sys.executable, "-m", "trio_kubelet", "disk", "--root-dir", str(node.agent.root)]
    os.kill(runtime, signal.SIGSTOP)
    try:
        told = subprocess.run([*command, "-o", "json"], capture_output=True, text=True, check=False)
    finally:
        os.kill(runtime, signal.SIGCONT)
    assert told.returncode == 0, told.stderr
    report = json.loads(told.stdout)
    assert report["problems"]["images"] == "not found out within 6 s"
    assert report["images"] == []
    assert full_name("beside") in {each["name"] for each in report["pods"]}
    node.remove_all()


def _at_least(amount: int | None, bound: int) -> bool:
    return amount is not None and amount >= bound
