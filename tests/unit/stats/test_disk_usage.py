"""What the files of pods take."""

import math
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.file_work import in_place
from tests.trio_clock import TrioClock
from trio_kubelet.stats import disk_usage
from trio_kubelet.stats.disk_usage import (
    REST_FACTOR,
    DiskUsages,
    FolderWalk,
    PodDisk,
    PodPaths,
    pod_disk,
    walked,
)
from trio_kubelet.stats.pods import ephemeral_storage
from trio_kubelet.stats.values import Filesystem
from trio_kubelet.tasks.concurrency import BackgroundTasks

KI = 1 << 10


@pytest.fixture
def paths(tmp_path: Path) -> PodPaths:
    """A pod with a volume of 64 KiB and logs of 8 KiB."""
    volume = tmp_path / "pods/uid/volumes/kubernetes.io~empty-dir/data"
    logs = tmp_path / "logs/default_web_uid/main"
    for folder, size in ((volume, 64 * KI), (logs, 8 * KI)):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(bytes(size))
    return PodPaths(uid="uid", namespace="ns", volumes=volume.parents[1], logs=logs.parent)


def taken(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in (folder, *folder.rglob("*")))


def test_a_walk_adds_up_blocks_and_inodes(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").write_bytes(bytes(100 * KI))
    (tmp_path / "a/hole").touch()
    os.truncate(tmp_path / "a/hole", 1 << 30)
    found = walked(tmp_path, FolderWalk(time.monotonic() + 60))
    assert (found.used, found.inodes) == (taken(tmp_path), 5)
    assert 100 * KI <= found.used < 1 << 20


def test_a_file_with_two_names_counts_once(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(bytes(64 * KI))
    before = walked(tmp_path, FolderWalk(time.monotonic() + 60))
    (tmp_path / "two").hardlink_to(tmp_path / "one")
    assert walked(tmp_path, FolderWalk(time.monotonic() + 60)) == before


def test_symlinks_lead_nowhere(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "large").write_bytes(bytes(1 << 20))
    (inside / "link").symlink_to(outside)
    (inside / "loop").symlink_to(inside)
    assert walked(inside, FolderWalk(time.monotonic() + 60)).inodes == 3


def test_a_walk_that_takes_too_long_ends_with_what_it_has_counted(tmp_path: Path) -> None:
    for number in range(600):
        (tmp_path / str(number)).touch()
    walk = FolderWalk(time.monotonic() - 1)
    assert walked(tmp_path, walk).inodes == 512
    assert not walk.is_complete


@pytest.mark.parametrize("limit", ["MAX_LINKED", "MAX_PENDING"])
def test_folders_and_links_that_cannot_be_remembered_hide_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(disk_usage, limit, len(str(tmp_path)) if limit == "MAX_PENDING" else 0)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").touch()
    (tmp_path / "second").hardlink_to(tmp_path / "link")
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    walk = FolderWalk(time.monotonic() + 60)
    assert walked(tmp_path, walk).used >= 1 << 20
    assert not walk.is_complete


def test_volumes_and_logs_of_a_pod(paths: PodPaths) -> None:
    disk = pod_disk(paths, 5)
    [volume] = disk.volumes
    assert (volume.name, volume.ephemeral, volume.filesystem.time_ns) == ("data", True, 5)
    assert 64 * KI <= (volume.filesystem.used or 0) < 80 * KI
    assert 8 * KI <= (disk.logs["main"].used or 0) < 24 * KI
    assert volume.filesystem.capacity == os.statvfs(paths.volumes).f_blocks * (
        os.statvfs(paths.volumes).f_frsize
    )


def test_a_pod_without_files_has_none(tmp_path: Path) -> None:
    disk = pod_disk(
        PodPaths(uid="x", namespace="ns", volumes=tmp_path / "no", logs=tmp_path / "none"), 0
    )
    assert (disk.volumes, disk.logs) == ((), {})


async def test_the_first_reader_waits_and_later_ones_have_what_is_known(paths: PodPaths) -> None:
    tasks = BackgroundTasks()
    usages = DiskUsages(tasks, TrioClock(), 60)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tasks.run)
        first = await usages.get([paths])
        assert [volume.name for volume in first["uid"].volumes] == ["data"]
        (paths.volumes / "kubernetes.io~empty-dir/more").mkdir()
        assert await usages.get([paths]) == first
        assert await usages.get([]) == {}
        nursery.cancel_scope.cancel()


async def test_volumes_are_not_looked_at_where_that_is_switched_off(paths: PodPaths) -> None:
    tasks = BackgroundTasks()
    usages = DiskUsages(tasks, TrioClock(), -1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tasks.run)
        found = (await usages.get([paths]))["uid"]
        assert found.volumes == ()
        assert list(found.logs) == ["main"]
        nursery.cancel_scope.cancel()


async def test_a_pod_with_too_many_files_has_what_was_counted_and_rests(
    paths: PodPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_usage, "WALK_SECONDS", -1.0)
    monkeypatch.setattr(disk_usage, "_CHECK_EVERY", 1)
    tasks = BackgroundTasks()
    usages = DiskUsages(tasks, TrioClock(), 60)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tasks.run)
        found = (await usages.get([paths]))["uid"]
        assert not found.is_complete
        assert [volume.filesystem.inodes_used for volume in found.volumes] == [1]
        monkeypatch.undo()
        assert (await usages.get([paths]))["uid"] is found
        nursery.cancel_scope.cancel()


async def test_who_has_to_decide_waits_for_what_was_never_counted(
    paths: PodPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_count, count = threading.Event(), pod_disk

    def slow(pod: PodPaths, now_ns: int, *, with_volumes: bool) -> PodDisk:
        may_count.wait()
        return count(pod, now_ns, with_volumes=with_volumes)

    monkeypatch.setattr(disk_usage, "pod_disk", slow)
    tasks = BackgroundTasks()
    usages = DiskUsages(tasks, TrioClock(), 60)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tasks.run)
        assert await usages.get([paths], 0) == {}
        may_count.set()
        assert list(await usages.get([paths], math.inf)) == ["uid"]
        nursery.cancel_scope.cancel()


async def test_who_has_to_decide_has_files_that_were_counted_since(
    paths: PodPaths, autojump_clock: MockClock
) -> None:
    tasks = BackgroundTasks()
    usages = DiskUsages(tasks, TrioClock(), 60)
    more = paths.volumes / "kubernetes.io~empty-dir/data/more"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tasks.run)
        before = used(await usages.get([paths]))
        await trio.sleep(1)
        more.write_bytes(b"x" * (1 << 20))
        assert used(await usages.get([paths])) == before, "a summary may be a minute old"
        since = trio.current_time()
        assert used(await usages.get([paths], 15, since)) >= before + (1 << 20)
        more.unlink()
        assert used(await usages.get([paths], 15, since)) > before, "this was counted since"
        nursery.cancel_scope.cancel()


async def test_a_decision_does_not_wait_for_a_pod_whose_files_take_long_and_rests(
    paths: PodPaths, autojump_clock: MockClock
) -> None:
    tasks = BackgroundTasks()
    usages = DiskUsages(tasks, TrioClock(), 60)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tasks.run)
        with in_place(lambda: 5.0):
            known = (await usages.get([paths], math.inf))["uid"]
            began = trio.current_time()
            assert (await usages.get([paths], 15, began))["uid"] is known
            assert trio.current_time() == began
            await trio.sleep(REST_FACTOR * 5)
            found = await usages.get([paths], 15, trio.current_time())
            assert found["uid"] is not known
        nursery.cancel_scope.cancel()


def used(found: Mapping[str, PodDisk]) -> int:
    """The bytes that the pod's volume takes."""
    [volume] = found["uid"].volumes
    assert volume.filesystem.used is not None
    return volume.filesystem.used


def test_what_containers_write_into_the_files_of_the_agent_counts(tmp_path: Path) -> None:
    folder = tmp_path / "uid"
    (folder / "containers" / "c").mkdir(parents=True)
    (folder / "volumes").mkdir()
    paths = PodPaths(uid="uid", namespace="ns", volumes=folder / "volumes", logs=tmp_path / "logs")
    empty = pod_disk(paths, 1).files
    assert empty is not None
    (folder / "etc-hosts").write_bytes(b"x" * 100_000)
    (folder / "containers" / "c" / "1234abcd").write_bytes(b"x" * 200_000)
    full = pod_disk(paths, 1).files
    assert full is not None
    assert (full.used or 0) - (empty.used or 0) >= 300_000
    assert (full.inodes_used or 0) - (empty.inodes_used or 0) == 2
    disk = Filesystem(time_ns=1)
    told = [ephemeral_storage(None, PodDisk(files=each), disk) for each in (empty, full)]
    assert [each and each.used for each in told] == [empty.used, full.used]
