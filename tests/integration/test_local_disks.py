"""Persistent volumes of the kind local that are block devices: formatted, mounted, shared by pods.

The devices and the tools are real.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import evolve

from tests.integration.disk_node import DiskNode
from tests.integration.local_disk import bind_device, loop_device
from tests.unit.references.cluster import open_cluster
from tests.unit.volumes.persistent import claiming_pod
from trio_kubelet.k8s import Pod, PodSecurityContext
from trio_kubelet.kernel.mountinfo import is_mounted
from trio_kubelet.tasks.clock import SystemClock
from trio_kubelet.telemetry import EventRecorder, Journal
from trio_kubelet.telemetry.events import RecordedEvent
from trio_kubelet.volumes import PodFolders
from trio_kubelet.volumes.mount import mount, unmount
from trio_kubelet.volumes.plugin import VolumesNotReady
from trio_kubelet.volumes.volumes import Volumes

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
]

SIZE_BYTES = 16 << 20


@pytest.fixture
def device(tmp_path: Path) -> Iterator[str]:
    with loop_device(tmp_path / "image", SIZE_BYTES) as device:
        yield device


@pytest.fixture
async def node(tmp_path: Path, device: str) -> AsyncIterator[DiskNode]:
    """A node with a controller that attaches disks, and never does so with local ones."""
    (tmp_path / "kubelet").mkdir()
    async with open_cluster() as cluster:
        node = DiskNode(PodFolders(tmp_path / "kubelet"), cluster, attaches=True)
        yield node
    for each in node.mounts():
        unmount(each.path)


def mount_point(node: DiskNode) -> Path:
    """Where the device is mounted for all pods, as by the Go kubelet."""
    return node.folders.root / "plugins/kubernetes.io/local-volume/mounts/pv-data"


async def place(volumes: Volumes, pod: Pod) -> Path:
    """Prepare a pod; returns its folder of the volume."""
    return Path((await volumes.prepare(pod))["files"].host_path)


async def why_not(volumes: Volumes, pod: Pod) -> str:
    """Return why a pod has not got its volume."""
    with pytest.raises(VolumesNotReady) as caught:
        await volumes.prepare(pod)
    return str(caught.value)


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Keep the file system of a folder from being unmounted."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        yield
    finally:
        os.close(opened)


async def until_nothing_is_left(node: DiskNode) -> None:
    with trio.fail_after(120):
        while node.records() or mount_point(node).exists():
            await trio.testing.wait_all_tasks_blocked(0.05)
    assert node.mounts() == ()
    assert node.staged.in_use() == ()


def write(device: str, start: bytes) -> None:
    with Path(device).open("r+b") as opened:
        opened.write(start)


def format_ext4(device: str) -> None:
    subprocess.run(["/usr/sbin/mkfs.ext4", "-q", device], check=True)


def content(device: str, tag: str = "TYPE") -> str:
    """What blkid tells of the file system on a device; "" for none."""
    asked = ("/usr/sbin/blkid", "-p", "-s", tag, "-o", "value", device)
    return subprocess.run(asked, check=False, capture_output=True, text=True).stdout.strip()


def in_group(pod: Pod, group: int) -> Pod:
    return evolve(pod, spec=evolve(pod.spec, security_context=PodSecurityContext(fs_group=group)))


async def test_pods_share_a_device_that_is_unmounted_after_the_last_and_keeps_its_data(
    node: DiskNode, device: str
) -> None:
    bind_device(node.cluster, device, mount_options=("nosuid", "discard"))
    async with node.agent() as volumes:
        first = await place(volumes, claiming_pod("a"))
        assert content(device) == "ext4"
        (first / "data").write_text("kept")
        second = await place(volumes, claiming_pod("b", read_only=True))
        assert (second / "data").read_text() == "kept"
        assert sorted(each.path for each in node.mounts()) == sorted(
            each.resolve() for each in (mount_point(node), first, second)
        )
        options = {each.path: (each.options, each.super_options) for each in node.mounts()}
        of_mount, of_file_system = options[first.resolve()]
        assert {"rw", "nosuid"} <= set(of_mount)
        assert "discard" in of_file_system
        assert {"ro", "nosuid"} <= set(options[second.resolve()][0])
        assert node.staged.in_use() == ()
        await volumes.tear_down("a")
        assert (second / "data").read_text() == "kept"
        await volumes.tear_down("b")
        await until_nothing_is_left(node)
        again = await place(volumes, claiming_pod("c"))
        assert (again / "data").read_text() == "kept"
        await volumes.remove_pod("c")
        await until_nothing_is_left(node)


async def test_an_agent_that_starts_mounts_nothing_again_and_unmounts_what_nobody_uses(
    node: DiskNode, device: str
) -> None:
    bind_device(node.cluster, device)
    async with node.agent() as volumes:
        await volumes.prepare(claiming_pod("a"))
    before = node.mounts()
    async with node.agent() as volumes:
        assert node.staged.in_use() == ()
        await volumes.prepare(claiming_pod("a"))
        assert node.mounts() == before
    async with node.agent() as volumes:
        await volumes.remove_pod("a")
        await until_nothing_is_left(node)


async def test_a_device_that_is_mounted_elsewhere_by_hand_is_unmounted_after_its_pods(
    node: DiskNode, device: str, tmp_path: Path
) -> None:
    by_hand = tmp_path / "by-hand"
    by_hand.mkdir()
    bind_device(node.cluster, device)
    async with node.agent() as volumes:
        (await place(volumes, claiming_pod("a")) / "data").write_text("kept")
        mount(device, by_hand, "ext4")
        try:
            await volumes.remove_pod("a")
            await until_nothing_is_left(node)
            assert (by_hand / "data").read_text() == "kept"
        finally:
            unmount(by_hand)


def forget_records(node: DiskNode) -> None:
    """Leave of the agent's disks what a Go kubelet leaves of its own: mounts and folders."""
    for each in ("disks", "pods/a/plugins"):
        shutil.rmtree(node.folders.root / each)


async def test_a_device_that_a_go_kubelet_has_mounted_stays_mounted_as_long_as_its_pod(
    node: DiskNode, device: str
) -> None:
    bind_device(node.cluster, device)
    async with node.agent() as volumes:
        await volumes.prepare(claiming_pod("a"))
    forget_records(node)
    before = node.mounts()
    async with node.agent() as volumes:
        await trio.testing.wait_all_tasks_blocked(0.05)
        await volumes.prepare(claiming_pod("a"))
        assert node.mounts() == before
        await volumes.remove_pod("a")
        await until_nothing_is_left(node)


async def test_a_device_that_a_go_kubelet_has_mounted_is_unmounted_if_its_pod_is_gone(
    node: DiskNode, device: str
) -> None:
    bind_device(node.cluster, device)
    async with node.agent() as volumes:
        await volumes.prepare(claiming_pod("a"))
    forget_records(node)
    async with node.agent() as volumes:
        await volumes.remove_pod("a")
        await until_nothing_is_left(node)


STEPS = [
    "before disks write_whole",
    "after disks write_whole",
    "before disk_stages mount_disk",
    "after disk_stages mount_disk",
    "before local bind_with_options",
    "after local bind_with_options",
    "before unmounting unmount",
    "after unmounting unmount",
    "before disk_stages unmount",
    "after disk_stages unmount",
    "before disks remove_whole",
    "after disks remove_whole",
]


@pytest.mark.parametrize("step", STEPS)
async def test_an_agent_killed_at_any_step_leaves_what_the_next_one_can_undo(
    node: DiskNode, device: str, step: str
) -> None:
    bind_device(node.cluster, device)
    async with node.agent() as volumes:
        (await place(volumes, claiming_pod("z")) / "data").write_text("kept")
        await volumes.remove_pod("z")
        await until_nothing_is_left(node)
    module = "tests.integration.killed_disk_agent"
    words = (sys.executable, "-m", module, str(node.folders.root), device, *step.split())
    end = await trio.run_process(words, check=False)
    assert end.returncode == -9
    async with node.agent() as volumes:
        for uid in await volumes.pods_on_disk():
            await volumes.remove_pod(uid)
        await until_nothing_is_left(node)
        assert (await place(volumes, claiming_pod("b")) / "data").read_text() == "kept"
        await volumes.remove_pod("b")
        await until_nothing_is_left(node)


async def test_a_device_with_partitions_is_neither_formatted_nor_mounted(
    node: DiskNode, device: str, tmp_path: Path
) -> None:
    entry = bytes((0, 0, 2, 0, 0x83, 0, 0, 0)) + (2048).to_bytes(4, "little") * 2
    table = bytes(446) + entry + bytes(48) + b"\x55\xaa"
    write(device, table)
    bind_device(node.cluster, device)
    async with node.agent() as volumes:
        with pytest.raises(VolumesNotReady) as caught:
            await volumes.prepare(claiming_pod("a"))
        assert str(caught.value).startswith(
            'MountVolume.MountDevice failed for volume "pv-data" : '
            f"mount of {device}, it already contains partitions (dos) failed: exit status 32: "
        )
        await volumes.remove_pod("a")
        await until_nothing_is_left(node)
    assert (tmp_path / "image").read_bytes() == table.ljust(SIZE_BYTES, b"\0")


async def test_a_device_with_another_file_system_than_wanted_is_not_formatted(
    node: DiskNode, device: str
) -> None:
    format_ext4(device)
    before = content(device, "UUID")
    bind_device(node.cluster, device, fs_type="xfs")
    events: list[RecordedEvent] = []
    node.recorder = EventRecorder(Journal(SystemClock()), "node")
    node.recorder.on_event.add(events.append)
    async with node.agent() as volumes:
        with pytest.raises(VolumesNotReady, match="as xfs, it already contains ext4 failed"):
            await volumes.prepare(claiming_pod("a"))
        (event,) = events
        assert event.volume is not None
        assert (event.volume.metadata.name, event.reason) == (
            "pv-data",
            "FailedMountOnFilesystemMismatch",
        )
        assert event.message.startswith('MountVolume failed for volume "pv-data" : mount of ')
        await volumes.remove_pod("a")
        await until_nothing_is_left(node)
    assert content(device, "UUID") == before


async def test_an_empty_device_is_not_formatted_for_who_may_only_read(
    node: DiskNode, device: str
) -> None:
    bind_device(node.cluster, device, access=("ReadOnlyMany",))
    async with node.agent() as volumes:
        with pytest.raises(VolumesNotReady, match="cannot mount unformatted disk"):
            await volumes.prepare(claiming_pod("a"))
        await volumes.remove_pod("a")
        await until_nothing_is_left(node)
    assert content(device) == ""


async def test_the_first_pod_gives_the_files_of_a_device_to_its_group(
    node: DiskNode, device: str
) -> None:
    bind_device(node.cluster, device)
    async with node.agent() as volumes:
        for uid, group in (("a", 4321), ("b", 1234)):
            assert (await place(volumes, in_group(claiming_pod(uid), group))).stat().st_gid == 4321
        for uid in ("a", "b"):
            await volumes.tear_down(uid)
        await until_nothing_is_left(node)
        assert (await place(volumes, in_group(claiming_pod("c"), 1234))).stat().st_gid == 1234
        await volumes.tear_down("c")


async def test_a_device_of_the_same_name_that_is_still_mounted_is_given_to_no_pod(
    node: DiskNode, device: str, tmp_path: Path
) -> None:
    with loop_device(tmp_path / "other", SIZE_BYTES) as other:
        format_ext4(other)
        mount_point(node).mkdir(parents=True)
        mount(other, mount_point(node), "ext4")
        bind_device(node.cluster, device)
        words = f'what is mounted on "{mount_point(node)}" is not the device "{device}"'
        with in_use(mount_point(node)):
            async with node.agent() as volumes:
                # The agent tries to unmount it first, as no pod uses it.
                with trio.fail_after(120):
                    while words not in await why_not(volumes, claiming_pod("a")):
                        await trio.testing.wait_all_tasks_blocked(0.05)
                await volumes.remove_pod("a")
        async with node.agent():
            await until_nothing_is_left(node)
    assert content(device) == ""


async def test_a_pod_keeps_a_device_whose_path_is_gone(
    node: DiskNode, device: str, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(device)
    bind_device(node.cluster, str(link))
    async with node.agent() as volumes:
        mounted = await place(volumes, claiming_pod("a"))
        link.unlink()
        assert await place(volumes, claiming_pod("a")) == mounted
        assert is_mounted(mounted)
        await volumes.remove_pod("a")
        await until_nothing_is_left(node)
