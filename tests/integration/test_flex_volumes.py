"""A volume of a flexVolume driver in a container, over a kill of the agent."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.agent import LabAgent, is_running, pod_manifest
from lab.containerd import Containerd
from lab.images import BUSYBOX
from lab.processes import wait_until
from trio_kubelet.kernel.mountinfo import is_mounted

DRIVER = """#!/bin/sh
echo "$1 $2" >>{folder}/calls
case $1 in
init) echo '{{"status": "Success", "capabilities": {{"attach": false}}}}';;
mount) mount --bind {folder}/disk "$2" && echo '{{"status": "Success"}}';;
unmount) umount "$2" && echo '{{"status": "Success"}}';;
esac
"""


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """The driver's data."""
    folder = tmp_path / "exec/example.com~disk"
    folder.mkdir(parents=True)
    program = folder / "disk"
    program.write_text(DRIVER.format(folder=tmp_path))
    program.chmod(0o755)
    disk = tmp_path / "disk"
    disk.mkdir()
    return disk


@pytest.fixture
def agent(containerd: Containerd, disk: Path) -> Iterator[LabAgent]:
    settings = {"volumePluginDir": str(disk.parent / "exec")}
    with LabAgent(disk.parent / "node", endpoint=containerd.endpoint, settings=settings) as agent:
        yield agent


def test_a_driver_mounts_a_volume_for_a_container_and_takes_it_away(
    agent: LabAgent, disk: Path
) -> None:
    script = "echo hello >/v/data; sleep 1000000"
    mount = {"name": "v", "mountPath": "/v"}
    container = {"name": "c", "image": BUSYBOX, "command": ["sh", "-c", script]}
    manifest = pod_manifest(
        "flex",
        {**container, "volumeMounts": [mount]},
        volumes=[{"name": "v", "flexVolume": {"driver": "example.com/disk"}}],
        terminationGracePeriodSeconds=1,
    )
    agent.write("flex", manifest)
    agent.wait_for(lambda pods: bool(pods) and all(map(is_running, pods.values())))
    wait_until(
        lambda: (disk / "data").exists(),
        deadline_seconds=60,
        else_say=lambda: "the container has written nothing",
    )
    agent.kill()
    agent.start()
    [pod] = agent.wait_for(lambda pods: bool(pods) and all(map(is_running, pods.values()))).values()
    place = agent.root / "pods" / pod["metadata"]["uid"] / "volumes/example.com~disk/v"
    assert is_mounted(place)
    agent.cleanup()
    calls = (disk.parent / "calls").read_text().splitlines()
    assert [call for call in calls if call.split()[0] != "init"] == [
        f"mount {place}",
        f"unmount {place}",
    ]
    assert (disk / "data").read_text() == "hello\n"
