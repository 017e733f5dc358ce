"""After a power failure at any moment an agent finds all that its promises stand on."""

import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import structlog
import trio
from trio.testing import MockClock

from tests.power_failures import Failure, PowerFailures
from tests.trio_clock import TrioClock
from tests.unit.eviction.readings import Machine
from tests.unit.eviction.test_pressure_record import HARD, agent, written
from tests.unit.eviction.test_records import RECORD as EVICTION
from tests.unit.runtime.test_allocations import allocations
from tests.unit.runtime.test_pull_records import (
    FOUND,
    IMAGE,
    IMAGE_ID,
    MINE,
    NOBODY,
    records,
    shows,
)
from tests.unit.runtime.test_resource_records import LARGER, pod
from tests.unit.runtime.test_user_namespaces import asking
from tests.unit.sources.manifest_texts import kept, manifest
from tests.unit.sources.test_kept import records as manifests
from trio_kubelet.eviction.pressure_record import PressureRecord
from trio_kubelet.eviction.records import EvictionRecords
from trio_kubelet.k8s.codec import encode
from trio_kubelet.kernel.state_file import StateFile
from trio_kubelet.kernel.whole_files import write_all_whole, write_whole
from trio_kubelet.node.shutdown_record import EndedPod, ShutdownRecord
from trio_kubelet.runtime.images.access import AccessCheck
from trio_kubelet.runtime.user_namespaces import PodIdRanges
from trio_kubelet.volumes import PodFolders
from trio_kubelet.volumes.csi_records import (
    VolumeKey,
    VolumeRecord,
    read_record,
    recorded_stages,
    stage_place,
    write_record,
    write_stage_record,
)
from trio_kubelet.volumes.disks import AttachedDisk, DiskRecords
from trio_kubelet.volumes.doubt_marks import DoubtMarks


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


@pytest.fixture
def boots(tmp_path: Path) -> Callable[[PowerFailures], Iterator[tuple[Failure, Path]]]:
    """Each failure with the folder that the next boot finds."""

    def restored(failures: PowerFailures) -> Iterator[tuple[Failure, Path]]:
        seen = []
        for number, failure in enumerate(failures.found):
            if (failure.moment, failure.files) in seen:
                continue
            seen.append((failure.moment, failure.files))
            folder = tmp_path / f"boot-{number}"
            folder.mkdir()
            failure.restore(folder)
            yield failure, folder

    return restored


Boots = Callable[[PowerFailures], Iterator[tuple[Failure, Path]]]


def test_the_model_loses_what_was_not_synced(disk: Path, boots: Boots) -> None:
    failures = PowerFailures(disk)
    with failures.noted():
        write_whole(disk / "file", b"new")
    found = {path.read_bytes() for _, folder in boots(failures) for path in folder.glob("file")}
    assert found == {b"", b"new"}
    last = {failure.survived: dict(failure.files) for failure in failures.found[-3:]}
    assert last == {"nothing": {}, "names": {"file": b""}, "all": {"file": b"new"}}


def test_a_file_is_the_old_one_or_the_new_one_and_the_new_one_at_the_end(
    disk: Path, boots: Boots
) -> None:
    (disk / "old").write_bytes(b"old")
    failures = PowerFailures(disk)
    with failures.noted():
        write_all_whole({disk / "old": b"new", disk / "other": b"new"}, durable=True)
        written = failures.moment
        write_whole(disk / "a" / "b" / "c", b"deep", folder_mode=0o700, durable=True)
    for failure, folder in boots(failures):
        assert (folder / "old").read_bytes() in (b"old", b"new")
        if failure.moment > written:
            assert (folder / "other").read_bytes() == b"new"
    assert all(failure.files.get("a/b/c") == b"deep" for failure in failures.found[-3:])


async def test_an_image_that_was_pulled_with_a_secret_is_nobody_elses(
    disk: Path, boots: Boots
) -> None:
    failures = PowerFailures(disk)
    with failures.noted():
        of_node = await records(disk)
        await of_node.begin(IMAGE)
        asked = failures.moment
        await of_node.succeed(IMAGE, IMAGE_ID, MINE)

    for failure, folder in boots(failures):
        if failure.moment <= asked:
            continue  # The runtime was asked for nothing yet.
        later = await records(folder)
        found = await later.check(IMAGE, FOUND, shows(NOBODY))
        assert found is AccessCheck.MUST_AUTHENTICATE, failure


async def test_ids_that_were_given_to_a_pod_are_given_to_no_other(disk: Path, boots: Boots) -> None:
    (disk / "pods").mkdir()
    failures = PowerFailures(disk)
    with failures.noted():
        (disk / "pods" / "u-1").mkdir()  # Its volumes were made before.
        ranges = await PodIdRanges.open(disk, (), ids_per_pod=65536, max_pods=110)
        given = await ranges.mapping(asking("u-1"))
        told = failures.moment
    for failure, folder in boots(failures):
        if failure.moment > told:
            later = await PodIdRanges.open(folder, ("u-1",), ids_per_pod=65536, max_pods=110)
            assert await later.mapping(asking("u-2")) != given
            assert await later.mapping(asking("u-1")) == given


async def test_allocations_are_those_before_or_those_after(disk: Path, boots: Boots) -> None:
    failures = PowerFailures(disk)
    with failures.noted():
        given = allocations(disk)
        given.allocate(pod())
        await given.keep()
        written = failures.moment
    for failure, folder in boots(failures):
        later = allocations(folder)
        await later.load()
        changed = pod(resources=LARGER)
        later.allocate(changed)
        shown = encode(later.allocated(changed))
        expected = [encode(pod())] if failure.moment > written else [encode(pod()), encode(changed)]
        assert shown in expected


def test_manifests_that_are_kept_are_those_before_or_those_after(disk: Path, boots: Boots) -> None:
    before, after = manifests(manifest("a")), manifests(manifest("a"), manifest("b"))
    failures = PowerFailures(disk)
    with failures.noted():
        kept(disk / "static-pods").save({}, before)
        written = failures.moment
        kept(disk / "static-pods").save(before, after)
        changed = failures.moment
    for failure, folder in boots(failures):
        found = kept(folder / "static-pods").load()
        if failure.moment > changed:
            assert found == after
        elif failure.moment > written:
            assert found in (before, after)
        else:
            assert found in ({}, before)


VOLUME = VolumeRecord(name="v-1", key=VolumeKey("csi.example", "handle"), node="n1")
DISK = AttachedDisk(
    plugin="kubernetes.io/iscsi", name="d", is_block=False, folder=("d",), volume="v", source={}
)


async def mark_a_volume(root: Path) -> None:
    DoubtMarks(root / "csi_calls").make("u-1", "v-1")


async def the_volume_is_marked(root: Path) -> bool:
    return DoubtMarks(root / "csi_calls").is_made("u-1", "v-1")


async def record_a_volume(root: Path) -> None:
    write_record(root / "v-1", VOLUME)


async def the_volume_is_recorded(root: Path) -> bool:
    return read_record(root / "v-1") == VOLUME


async def record_a_stage(root: Path) -> None:
    write_stage_record(stage_place(root, VOLUME.key), "n1", asks_driver=True)


async def the_stage_is_recorded(root: Path) -> bool:
    return [place.key for place in recorded_stages(root)] == [VOLUME.key]


async def record_a_disk(root: Path) -> None:
    DiskRecords(PodFolders(root)).write(DISK)


async def the_disk_is_recorded(root: Path) -> bool:
    return DiskRecords(PodFolders(root)).all() == [DISK]


async def record_the_user_of_a_disk(root: Path) -> None:
    DiskRecords(PodFolders(root)).use("u-1", DISK)


async def the_user_is_recorded(root: Path) -> bool:
    return [*DiskRecords(PodFolders(root)).users([DISK.plugin])] == [("u-1", DISK)]


async def record_an_eviction(root: Path) -> None:
    records = EvictionRecords(root)
    await records.load()
    await records.add([EVICTION])


async def the_eviction_is_recorded(root: Path) -> bool:
    records = EvictionRecords(root)
    await records.load()
    return [*records] == [EVICTION]


async def record_a_shutdown(root: Path) -> None:
    await ShutdownRecord(root).add([EndedPod("u-1", 5)])


async def the_shutdown_is_recorded(root: Path) -> bool:
    record = ShutdownRecord(root)
    await record.load()
    return record.ended("u-1") == EndedPod("u-1", 5)


def state_file(root: Path) -> StateFile[list[str]]:
    """As those of CPUs, memory, devices and claims."""
    return StateFile(root / "state", trio.CapacityLimiter(1), lambda: ["u-1"], json.dumps)


async def keep_a_state(root: Path) -> None:
    state = state_file(root)
    state.changed()
    assert await state.keep()


async def the_state_is_kept(root: Path) -> bool:
    return await state_file(root).read(json.loads) == ["u-1"]


@pytest.mark.parametrize(
    ("record", "is_there"),
    [
        (mark_a_volume, the_volume_is_marked),
        (record_a_volume, the_volume_is_recorded),
        (record_a_stage, the_stage_is_recorded),
        (record_a_disk, the_disk_is_recorded),
        (record_the_user_of_a_disk, the_user_is_recorded),
        (record_an_eviction, the_eviction_is_recorded),
        (record_a_shutdown, the_shutdown_is_recorded),
        (keep_a_state, the_state_is_kept),
    ],
)
async def test_what_is_recorded_before_something_is_done_is_there_after_any_failure(
    disk: Path,
    boots: Boots,
    record: Callable[[Path], Awaitable[None]],
    is_there: Callable[[Path], Awaitable[bool]],
) -> None:
    failures = PowerFailures(disk)
    with failures.noted():
        await record(disk)
        recorded = failures.moment
        write_whole(disk / "later", b"", durable=True)
    boots_after = [folder for failure, folder in boots(failures) if failure.moment > recorded]
    assert boots_after
    for folder in boots_after:
        assert await is_there(folder)


async def test_a_record_of_pressures_is_whole_or_there_is_none(
    disk: Path, boots: Boots, autojump_clock: MockClock
) -> None:
    failures = PowerFailures(disk)
    with failures.noted():
        async with agent(disk, Machine(tasks=600)):
            await written(disk)
    with structlog.testing.capture_logs() as logs:
        for _, folder in boots(failures):
            await PressureRecord(folder, (HARD,), "b", TrioClock()).load()
    assert {each["event"] for each in logs} == {"pressures of an earlier agent resumed"}
