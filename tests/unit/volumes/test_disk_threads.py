"""Disks that hang, of one namespace: those of others are attached and given back meanwhile."""

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import define

from tests.trio_clock import TrioClock
from tests.unit.volumes.test_fc import Machine
from trio_kubelet.k8s import (
    Container,
    FCVolumeSource,
    ObjectMeta,
    Pod,
    PodSpec,
    Volume,
    VolumeMount,
)
from trio_kubelet.telemetry import Journal
from trio_kubelet.volumes import (
    DiskStages,
    NodeOfVolumes,
    PodFolders,
    StagedVolumes,
    VolumeOperations,
    disk_file_systems,
    local_volumes,
)
from trio_kubelet.volumes.plugin import MAX_THREADS_OF_NAMESPACE, VolumesNotReady
from trio_kubelet.volumes.volumes import Volumes

MANY = 10
"""Disks of one pod; two pods have more than there are threads."""


def a_pod(namespace: str, uid: str, first: int, count: int = MANY) -> Pod:
    """A pod with disks of consecutive LUNs, as folders."""
    disks = tuple(
        Volume(name=f"v{lun}", fc=FCVolumeSource(target_wwns=("50",), lun=lun))
        for lun in range(first, first + count)
    )
    mounts = tuple(VolumeMount(name=each.name, mount_path=f"/{each.name}") for each in disks)
    spec = PodSpec(containers=(Container(name="c", volume_mounts=mounts),), volumes=disks)
    return Pod(metadata=ObjectMeta(name=uid, namespace=namespace, uid=uid), spec=spec)


@define(eq=False)
class Node:
    """A node whose disks can be attached, but not mounted: it has no tools for file systems."""

    machine: Machine
    staged: StagedVolumes
    volumes: Volumes

    def show(self, lun: int) -> Path:
        """Show a disk; returns the folder of it in sysfs."""
        self.machine.add(f"sd{lun}", f"by-path/pci-0-fc-0x50-lun-{lun}")
        return self.machine.folder / f"sys/block/sd{lun}"

    async def fails_to_mount(self, pod: Pod) -> None:
        with pytest.raises(VolumesNotReady, match="blkid is not installed"):
            await self.volumes.prepare(pod)

    def records(self) -> Sequence[Path]:
        return list(self.machine.folder.glob("kubelet/disks/*.json"))


async def until(is_so: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not is_so():
            await trio.testing.wait_all_tasks_blocked(0.01)


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(disk_file_systems, "_FOLDERS_OF_TOOLS", "/nowhere")
    async with an_agent(Machine(tmp_path)) as node:
        yield node


@asynccontextmanager
async def an_agent(machine: Machine) -> AsyncIterator[Node]:
    (machine.folder / "kubelet").mkdir()
    folders = PodFolders(machine.folder / "kubelet")
    staged = StagedVolumes(folders.root, Journal(TrioClock()), lambda: None, VolumeOperations())
    stages = DiskStages(folders, staged, {"fc": machine.kind}, attaches=False)
    volumes = local_volumes(
        folders, lambda pod: 1 << 20, node=NodeOfVolumes(disks=stages), privileged=True
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(staged.run)
        yield Node(machine, staged, volumes)
        nursery.cancel_scope.cancel()


async def test_scans_that_hang_leave_threads_to_the_disks_of_others(node: Node) -> None:
    node.show(0)
    async with trio.open_nursery() as nursery:
        for number in (1, 2):
            pod = a_pod("busy", f"busy-{number}", number * MANY)
            nursery.start_soon(node.volumes.prepare, pod)
        try:
            await until(lambda: node.staged.staging.held == MAX_THREADS_OF_NAMESPACE)
            with trio.fail_after(60):
                await node.fails_to_mount(a_pod("other", "o", 0, 1))
        finally:
            nursery.cancel_scope.cancel()
            release(node.machine.scan_file)


async def test_disks_that_hang_when_they_are_given_back_leave_threads_to_those_of_others(
    node: Node,
) -> None:
    shown = [node.show(lun) for lun in range(3 * MANY)]
    hanging = [each / "dev" for each in shown[MANY:]]
    for number in (1, 2):
        await node.fails_to_mount(a_pod("busy", f"busy-{number}", number * MANY))
    for each in hanging:
        os.mkfifo(each)
    try:
        for number in (1, 2):
            await node.volumes.tear_down(f"busy-{number}", "busy")
        await until(lambda: node.staged.unstaging.held == MAX_THREADS_OF_NAMESPACE)
        with trio.fail_after(60):
            await node.fails_to_mount(a_pod("other", "o", 0, 1))
        await node.volumes.tear_down("o", "other")
        await until(lambda: len(node.records()) == 2 * MANY)
        assert node.machine.deleted() == ["sd0"]
    finally:
        for each in hanging:
            release(each)
    await until(lambda: node.records() == [])


def release(pipe: Path) -> None:
    """Let those go on who have opened a pipe; nobody else does."""
    opened = os.open(pipe, os.O_RDWR)
    pipe.unlink()
    os.close(opened)
