"""Block devices of local volumes: their names and places, which no controller knows of.

With real devices `tests/integration/test_local_disks.py` mounts them.
"""

from pathlib import Path

import pytest
import trio
from attrs import evolve

from tests.trio_clock import TrioClock
from tests.unit.volumes.persistent import claiming_pod, persistent
from trio_kubelet.references import NoReferences
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.telemetry import Journal
from trio_kubelet.volumes import (
    DiskStages,
    PodFolders,
    StagedVolumes,
    VolumeOperations,
    disk_kinds,
    names_in_use,
)
from trio_kubelet.volumes.disks import AttachedDisk
from trio_kubelet.volumes.local_disks import LocalDisks, is_mount_of
from trio_kubelet.volumes.resolved import ResolvedVolume, resolve_claimed

UNIQUE = "kubernetes.io/local-volume/pv-data"


def a_volume(path: str = "/dev/one") -> ResolvedVolume:
    pod = claiming_pod("a")
    return resolve_claimed(pod, pod.spec.volumes[0], persistent(local=path))


def disk_of_iscsi() -> AttachedDisk:
    return evolve(LocalDisks().disk(a_volume()), plugin="kubernetes.io/iscsi")


def test_a_device_is_named_and_mounted_as_by_the_go_kubelet() -> None:
    disk = LocalDisks().disk(a_volume())
    assert disk.unique_name == UNIQUE
    assert disk.mount_point(Path("/k")) == Path(
        "/k/plugins/kubernetes.io/local-volume/mounts/pv-data"
    )


async def test_what_is_no_device_is_not_attached(tmp_path: Path) -> None:
    threads = FairLimiter(1, 1).share("")
    for path in (tmp_path, tmp_path / "gone"):
        volume = a_volume(str(path))
        disk = LocalDisks().disk(volume)
        assert LocalDisks().device(disk) is None
        with pytest.raises(OSError, match=f'path "{path}" is no block device'):
            await LocalDisks().attach(disk, claiming_pod("a"), volume, threads)


def test_a_folder_on_which_nothing_is_mounted_has_the_file_system_of_no_device(
    tmp_path: Path,
) -> None:
    assert not is_mount_of(Path("/dev/null"), tmp_path)


async def test_no_controller_is_waited_for_and_told_of_a_local_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names_in_use, "MOST_BYTES_OF_NAMESPACE", 0)
    folders, journal = PodFolders(tmp_path), Journal(TrioClock())
    staged = StagedVolumes(tmp_path, journal, lambda: None, VolumeOperations())
    stages = DiskStages(folders, staged, disk_kinds(NoReferences()), attaches=True)
    local, other = (stages.stage(each) for each in (LocalDisks().disk(a_volume()), disk_of_iscsi()))
    assert not await local.is_attachable(a_volume())
    assert await other.is_attachable(a_volume())
    async with trio.open_nursery() as nursery:
        await nursery.start(staged.run)
        staged.require_room(claiming_pod("a"), a_volume(), local)
        for each in (local, other):
            staged.hold("a", each)
        assert staged.in_use() == (other.unique_name,)
        nursery.cancel_scope.cancel()
