"""What the simulation's power failures leave, against the model that notes every moment."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.power_failures import PowerFailures
from tests.simulation.power import Power, Survivors
from tests.unit.volumes.test_configuration import Fetched, map_volume, pod_with, shown
from trio_kubelet.kernel.whole_files import make_folder, sync_folder, write_all_whole, write_whole
from trio_kubelet.tasks.clock import SystemClock
from trio_kubelet.volumes import PodFolders, local_volumes
from trio_kubelet.volumes.plugin import VolumesNotReady
from trio_kubelet.volumes.volumes import Volumes


def write_and_sync(folder: Path) -> None:
    write_whole(folder / "a", b"1", durable=True)
    write_whole(folder / "deep" / "er" / "b", b"1", folder_mode=0o700, durable=True)


def replace_without_syncing(folder: Path) -> None:
    write_whole(folder / "a", b"1", durable=True)
    write_whole(folder / "a", b"2")
    write_whole(folder / "b", b"2")


def write_into_a_synced_file(folder: Path) -> None:
    write_whole(folder / "a", b"1", durable=True)
    (folder / "a").write_bytes(b"2")


def remove_without_syncing(folder: Path) -> None:
    write_all_whole({folder / "a": b"1", folder / "b": b"1"}, durable=True)
    (folder / "a").unlink()


def remove_and_sync(folder: Path) -> None:
    remove_without_syncing(folder)
    sync_folder(folder)


def sync_names_alone(folder: Path) -> None:
    make_folder(folder / "deep", 0o700, durable=True)
    (folder / "deep" / "a").write_bytes(b"1")
    sync_folder(folder / "deep")


def sync_what_is_in_a_folder_that_is_not(folder: Path) -> None:
    (folder / "deep").mkdir()
    write_whole(folder / "deep" / "a", b"1", durable=True)


def remove_a_synced_folder(folder: Path) -> None:
    write_whole(folder / "deep" / "a", b"1", folder_mode=0o700, durable=True)
    (folder / "deep" / "a").unlink()
    (folder / "deep").rmdir()
    write_whole(folder / "deep" / "b", b"2", folder_mode=0o700)


WRITERS = (
    write_and_sync,
    replace_without_syncing,
    write_into_a_synced_file,
    remove_without_syncing,
    remove_and_sync,
    sync_names_alone,
    sync_what_is_in_a_folder_that_is_not,
    remove_a_synced_folder,
)


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("survivors", [Survivors.NOTHING, Survivors.NAMES, Survivors.ALL])
def test_what_is_left_is_what_the_model_says(
    tmp_path: Path, write: Callable[[Path], None], survivors: Survivors
) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    power, model = Power(folder, random.Random(1)), PowerFailures(folder)
    with power.watched(), model.noted():
        write(folder)
    last = {failure.survived: failure.files for failure in model.found[-3:]}
    power.fail(survivors)
    power.come_back()
    assert files(folder) == last[survivors]


def test_what_was_left_of_one_failure_is_left_of_the_next(tmp_path: Path) -> None:
    power = Power(tmp_path, random.Random(1))
    with power.watched():
        write_whole(tmp_path / "a", b"1")
        (tmp_path / "link").symlink_to("a")
        power.fail(Survivors.ALL)
        power.come_back()
        write_whole(tmp_path / "a", b"2")
        power.fail(Survivors.NOTHING)
        power.come_back()
    assert files(tmp_path) == {"a": b"1", "link": b"1"}
    assert (tmp_path / "link").is_symlink()


def test_each_change_that_was_not_synced_may_be_left_by_itself(tmp_path: Path) -> None:
    found = set()
    for seed in range(40):
        folder = tmp_path / str(seed)
        folder.mkdir()
        power = Power(folder, random.Random(seed))
        with power.watched():
            replace_without_syncing(folder)
            power.fail(Survivors.SOME)
            power.come_back()
        found.add(tuple(sorted(files(folder).items())))
    assert found == {
        (("a", one), *(() if other is None else (("b", other),)))
        for one in (b"", b"1", b"2")
        for other in (None, b"", b"2")
    }


def test_power_can_fail_between_a_file_and_its_name(tmp_path: Path) -> None:
    for write, left in ((1, {}), (2, {}), (3, {}), (4, {"a": b"1"})):
        folder = tmp_path / str(write)
        folder.mkdir()
        power = Power(folder, random.Random(1))
        with power.watched():
            power.at_write(write, lambda power=power: power.fail(Survivors.NOTHING))  # type: ignore[misc]
            write_all_whole({folder / "a": b"1"}, durable=True)
            sync_folder(folder)
        power.come_back()
        assert files(folder) == left


@pytest.mark.parametrize("survivors", Survivors)
@pytest.mark.parametrize("seed", range(5))
async def test_a_volume_of_a_config_map_that_is_gone_is_whole_or_not_ready(
    tmp_path: Path, survivors: Survivors, seed: int
) -> None:
    folder, pod = tmp_path / "kubelet", pod_with(map_volume())
    folder.mkdir()
    data, power = Fetched(), Power(folder, random.Random(seed))

    def booted() -> Volumes:
        return local_volumes(
            PodFolders(folder), lambda _: 1 << 20, data=data, clock=SystemClock(), privileged=False
        )

    contents = [{"a": "1", "b": "2"}, {"a": "1" * 5000, "c": "3"}, {"a": "4"}]
    with power.watched():
        volumes = booted()
        for content in contents:
            data.config_maps["settings"] = content
            await volumes.prepare(pod)
            if random.Random(seed).random() < 0.5:
                for path in (folder, *folder.rglob("*")):
                    sync(path)
        power.fail(survivors)
        power.come_back()
        del data.config_maps["settings"]
        try:
            mounted = await booted().prepare(pod)
        except VolumesNotReady:
            assert survivors is not Survivors.ALL
        else:
            assert shown(mounted["v"].host_path) in contents


def sync(path: Path) -> None:
    """What the kernel does after a while."""
    if not path.is_symlink():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
