"""Operations on volumes, as those are told who count them."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from lab.csi_driver import NAME, STAGES
from tests.turns import making_test_data
from tests.unit.volumes.csi_scene import Scene, an_agent, claiming, describe
from tests.unit.volumes.test_staged_volumes import until_unused
from trio_kubelet.k8s import EmptyDirVolumeSource, Volume
from trio_kubelet.rpc import open_rpc_loop
from trio_kubelet.volumes import PodFolders, VolumeOperation, VolumeOperations, local_volumes
from trio_kubelet.volumes.csi_records import (
    VolumeKey,
    VolumeRecord,
    recorded_users,
    write_record,
)
from trio_kubelet.volumes.operations import ACTUAL, DESIRED
from trio_kubelet.volumes.plugin import VolumeBackOff, VolumeBusy, VolumeError, VolumesNotReady
from trio_kubelet.volumes.resolved import ResolvedVolume, UnattachedVolumeError

PLUGIN = "kubernetes.io/empty-dir"
CSI = f"kubernetes.io/csi:{NAME}"


@pytest.fixture
def told() -> list[VolumeOperation]:
    return []


@pytest.fixture
def operations(told: list[VolumeOperation]) -> VolumeOperations:
    operations = VolumeOperations()
    operations.on_operation.add(told.append)
    return operations


def a_volume(name: str = "v") -> ResolvedVolume:
    source = EmptyDirVolumeSource()
    return ResolvedVolume(
        volume=Volume(name=name, empty_dir=source), kind="empty_dir", source=source
    )


@contextmanager
def mounting(
    operations: VolumeOperations, name: str = "v", *, is_renewed: bool = False, tells: bool = False
) -> Iterator[None]:
    volume = a_volume(name)
    with operations.mounting("uid", volume, PLUGIN, is_renewed=is_renewed, tells=tells):
        yield


async def fail_after(seconds: float, error: Exception) -> None:
    await trio.sleep(seconds)
    raise error


def mounted(seconds: float, total_seconds: float) -> VolumeOperation:
    return VolumeOperation(
        plugin=PLUGIN, name="volume_mount", seconds=seconds, total_seconds=total_seconds
    )


def failed(name: str, seconds: float) -> VolumeOperation:
    return VolumeOperation(plugin=PLUGIN, name=name, seconds=seconds, has_failed=True)


async def test_a_mount_is_told_once_with_the_time_since_it_was_wanted(
    operations: VolumeOperations, told: list[VolumeOperation], autojump_clock: MockClock
) -> None:
    with pytest.raises(VolumeError), mounting(operations):
        await fail_after(2, VolumeError("v", "no"))
    await trio.sleep(10)
    for seconds in (3, 1):
        with mounting(operations):
            await trio.sleep(seconds)
    assert told == [failed("volume_mount", 2), mounted(3, 15)]


async def test_what_is_brought_up_to_date_is_told_each_time(
    operations: VolumeOperations, told: list[VolumeOperation], autojump_clock: MockClock
) -> None:
    for seconds in (3, 1):
        with mounting(operations, is_renewed=True):
            await trio.sleep(seconds)
        await trio.sleep(10)
    assert told == [mounted(3, 3), mounted(1, 1)]


@pytest.mark.parametrize(
    "problem",
    [
        VolumeBackOff(VolumeError("v", "no"), 5.0, is_new=False),
        VolumeBackOff(UnattachedVolumeError("v", "no"), 5.0, is_new=True),
        UnattachedVolumeError("v", "no"),
    ],
)
async def test_a_volume_that_is_waited_for_has_no_operation(
    problem: Exception, operations: VolumeOperations, told: list[VolumeOperation]
) -> None:
    with pytest.raises(type(problem)), mounting(operations):
        raise problem
    assert told == []
    assert operations.counts() == {(PLUGIN, DESIRED): 1, (PLUGIN, ACTUAL): 0}


async def test_a_failure_after_which_a_volume_backs_off_is_told(
    operations: VolumeOperations, told: list[VolumeOperation], autojump_clock: MockClock
) -> None:
    with pytest.raises(VolumeBackOff), mounting(operations):
        raise VolumeBackOff(VolumeError("v", "no"), 5.0, is_new=True)
    assert told == [failed("volume_mount", 0)]


async def test_what_is_cancelled_is_not_told(
    operations: VolumeOperations, told: list[VolumeOperation], autojump_clock: MockClock
) -> None:
    with trio.move_on_after(1), mounting(operations):
        await trio.sleep_forever()
    with trio.move_on_after(1), operations.measured(CSI, "volume_fs_resize"):
        await trio.sleep_forever()
    assert told == []


async def test_volumes_of_a_pod_are_unmounted_together_but_for_those_that_tell_themselves(
    operations: VolumeOperations, told: list[VolumeOperation], autojump_clock: MockClock
) -> None:
    for name in ("a", "b", "never"):
        if name != "never":
            with mounting(operations, name):
                pass
        else:
            with pytest.raises(VolumeError), mounting(operations, name):
                raise VolumeError(name, "no")
    with mounting(operations, "of-a-driver", tells=True):
        pass
    assert operations.counts() == {(PLUGIN, DESIRED): 4, (PLUGIN, ACTUAL): 3}
    del told[:]
    busy = Path("/root/pods/uid/volumes/kubernetes.io~empty-dir/b/deep")
    with pytest.raises(VolumeBusy), operations.unmounting("uid"):
        await fail_after(1, VolumeBusy(busy, "in use"))
    assert told == [failed("volume_unmount", 1)]
    assert operations.counts() == {(PLUGIN, DESIRED): 0, (PLUGIN, ACTUAL): 3}
    del told[:]
    with operations.unmounting("uid"):
        await trio.sleep(4)
    assert told == [VolumeOperation(plugin=PLUGIN, name="volume_unmount", seconds=4)] * 2
    assert operations.counts() == {}


async def test_volumes_that_an_earlier_agent_has_left_are_found_and_their_end_is_told(
    tmp_path: Path,
) -> None:
    folders = PodFolders(tmp_path)
    plugins = tmp_path / "pods/uid/volumes"
    (plugins / "kubernetes.io~empty-dir/left").mkdir(parents=True)
    (tmp_path / "pods/uid/volumeDevices/kubernetes.io~csi").mkdir(parents=True)
    (tmp_path / "pods/uid/volumeDevices/kubernetes.io~csi/d").symlink_to("/nowhere")
    (plugins / "kubernetes.io~csi/lost").mkdir(parents=True)
    write_record(
        plugins / "kubernetes.io~csi/known",
        VolumeRecord(name="known", key=VolumeKey(NAME, "h"), node="n"),
    )
    volumes = local_volumes(folders, lambda pod: 1 << 20)
    found: list[tuple[int, int]] = []
    told: list[VolumeOperation] = []
    volumes.operations.on_found.add(lambda *counts: found.append(counts))
    volumes.operations.on_operation.add(told.append)
    await volumes.tell_found()
    assert found == [(4, 1)]
    (tmp_path / "pods/uid/volumeDevices/kubernetes.io~csi/d").unlink()
    for name in ("lost", "known"):
        for file in (plugins / "kubernetes.io~csi" / name).iterdir():
            file.unlink()
    await volumes.tear_down("uid")
    assert [(each.plugin, each.name) for each in told if "empty" in each.plugin] == [
        (PLUGIN, "volume_unmount")
    ]


async def test_no_file_or_folder_in_the_place_of_a_record_ends_the_agent(tmp_path: Path) -> None:
    folder, folders = tmp_path / "pods/uid/volumes/kubernetes.io~csi", PodFolders(tmp_path)
    (folder / "odd/vol_data.json").mkdir(parents=True)
    (folder / "file").touch()
    volumes = local_volumes(folders, lambda pod: 1 << 20)
    found: list[tuple[int, int]] = []
    volumes.operations.on_found.add(lambda *counts: found.append(counts))
    await volumes.tell_found()
    assert found == [(2, 2)]
    assert list(recorded_users(folders)) == [("uid", "odd", None)]


@pytest.fixture
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with open_rpc_loop(), trio.open_nursery() as nursery:
        with making_test_data():
            scene = Scene(tmp_path_factory.mktemp("v"), nursery)
        yield scene
        nursery.cancel_scope.cancel()


async def test_operations_on_a_volume_of_a_driver_have_its_name(scene: Scene) -> None:
    describe(scene)
    told: list[VolumeOperation] = []
    async with scene.driver(capabilities=(STAGES,)) as driver:
        volumes = await an_agent(scene)
        volumes.operations.on_operation.add(told.append)
        driver.set_faults(NodePublishVolume={"fail": "INTERNAL: no"})
        with pytest.raises(VolumesNotReady):
            await volumes.prepare(claiming("a"))
        driver.set_faults()
        await volumes.tear_down("a")
        await until_unused(scene)
        for _ in range(2):
            await volumes.prepare(claiming("b"))
        assert volumes.operations.counts() == {(CSI, DESIRED): 1, (CSI, ACTUAL): 1}
        await volumes.tear_down("b")
        await until_unused(scene)
        assert volumes.operations.counts() == {}
    assert {each.plugin for each in told} == {CSI}
    assert [(each.name, each.has_failed) for each in told] == [
        ("volume_mount", True),
        ("volume_unmount", False),
        ("unmount_device", False),
        ("volume_mount", False),
        ("volume_unmount", False),
        ("unmount_device", False),
    ]


async def test_the_name_of_a_driver_that_is_not_registered_is_not_told(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods could name as many as they like."""
    monkeypatch.setattr("trio_kubelet.volumes.csi_requests.DRIVER_SECONDS", 0.1)
    describe(scene)
    told: list[VolumeOperation] = []
    volumes = await an_agent(scene)
    volumes.operations.on_operation.add(told.append)
    with pytest.raises(VolumesNotReady):
        await volumes.prepare(claiming("a"))
    assert [(each.plugin, each.has_failed) for each in told] == [("kubernetes.io/csi", True)]
