"""Decisions to evict, on file systems that have no room for anything."""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from attrs import evolve, frozen

from tests.missing import do_without
from trio_kubelet.eviction.records import FILE, FILE_BYTES, EvictionRecord, EvictionRecords
from trio_kubelet.volumes.mount import mount, unmount

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")

MI = 1 << 20
RECORD = EvictionRecord(
    uid="uid-0",
    namespace="ns",
    name="p",
    at_ns=1,
    cause="nodefs.available",
    message="The node was low on resource: ephemeral-storage. ",
    disruption="",
    grace_seconds=1,
)


@frozen
class Disk:
    """A small file system. `mount_again` shows what is on it, and not in memory."""

    folder: Path
    mount_again: Callable[[], None]

    @property
    def root(self) -> Path:
        """A root folder of the agent."""
        return self.folder / "kubelet"

    def fill(self) -> None:
        """Write until nothing fits any more; then make files until there can be no more."""
        with (self.folder / "filling").open("wb", buffering=0) as file:
            for piece in (MI, 4096, 1):
                _until_full(lambda piece=piece: file.write(bytes(piece)))  # type: ignore[misc]
        numbers = iter(range(100_000))
        _until_full(lambda: (self.folder / f"file-{next(numbers)}").touch(exist_ok=False))

    def empty(self) -> None:
        """Remove what has filled it."""
        for path in self.folder.glob("fil*"):
            path.unlink()


def _until_full(write: Callable[[], object]) -> None:
    try:
        while write() != 0:
            pass
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A file system with room for 8 MiB and some hundred files."""
    folder, image = tmp_path / "disk", tmp_path / "image"
    folder.mkdir()
    if request.param == "tmpfs":
        mount("tmpfs", folder, "tmpfs", options="size=8m,nr_inodes=300")
        yield Disk(folder, lambda: None)
    elif shutil.which("mkfs.ext4") is None:
        do_without("there is no mkfs.ext4")
    else:
        with image.open("wb") as file:
            file.truncate(8 * MI)
        subprocess.run(["mkfs.ext4", "-q", "-N", "300", image], check=True)
        attach = ["mount", "-o", "loop", str(image), str(folder)]
        if (mounted := subprocess.run(attach, capture_output=True, text=True)).returncode:
            do_without(f"there are no loop devices: {mounted.stderr}")

        def mount_again() -> None:
            unmount(folder)
            subprocess.run(attach, check=True)

        yield Disk(folder, mount_again)
    unmount(folder)


async def loaded(root: Path) -> EvictionRecords:
    records = EvictionRecords(root)
    await records.load()
    return records


async def test_one_decision_after_another_is_kept_on_a_full_disk(disk: Disk) -> None:
    """Of the same agent and of the next ones, however many."""
    records = await loaded(disk.root)
    disk.fill()
    with structlog.testing.capture_logs() as logs:
        for number in range(12):
            await records.add([evolve(RECORD, uid=f"uid-{number}")])
            disk.mount_again()
            uids = {f"uid-{each}" for each in range(number + 1)}
            records = await loaded(disk.root)
            assert records.open_uids() == uids
        await records.close(lambda _uid: True)
    assert logs == []
    assert (await loaded(disk.root)).open_uids() == frozenset()
    files = {path.name: path.stat().st_size for path in disk.root.iterdir()}
    assert files == {FILE: FILE_BYTES, f".{FILE}.spare": FILE_BYTES}


async def test_room_is_kept_as_soon_as_a_full_disk_has_some(disk: Disk) -> None:
    disk.fill()
    with structlog.testing.capture_logs() as logs:
        records = await loaded(disk.root)
        await records.add([RECORD])
    assert [each["event"] for each in logs] == [
        "no room kept for evictions",
        "eviction record write failed",
    ]
    disk.empty()
    await records.close(lambda _uid: False)
    disk.fill()
    await records.add([evolve(RECORD, uid="uid-1")])
    disk.mount_again()
    assert (await loaded(disk.root)).open_uids() == {"uid-0", "uid-1"}


async def test_the_file_of_an_older_agent_gets_as_much_room(disk: Disk) -> None:
    records = await loaded(disk.root)
    await records.add([RECORD])
    text = (disk.root / FILE).read_text().rstrip()
    (disk.root / f".{FILE}.spare").unlink()
    (disk.root / FILE).write_text(text)
    records = await loaded(disk.root)
    disk.fill()
    for number in range(1, 4):
        await records.add([evolve(RECORD, uid=f"uid-{number}")])
        disk.mount_again()
    assert len((await loaded(disk.root)).open_uids()) == 4
