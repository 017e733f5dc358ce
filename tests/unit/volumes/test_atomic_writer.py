"""The writer: all of the old or all of the new, in the layout of the Go kubelet."""

import os
import re
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.volumes.atomic_writer import data_folder_name, has_data, write_payload
from trio_kubelet.volumes.payload import Payload, VolumeFile

NOW = 1_795_266_000_123_456_789
"""2026-11-21 13:00:00.123456789."""


def files(**contents: str) -> Payload:
    return {
        name.replace("__", "/"): VolumeFile(content=content.encode())
        for name, content in contents.items()
    }


def write(folder: Path, payload: Payload, now_ns: int = NOW) -> bool:
    return write_payload(folder, payload, group=None, now_ns=now_ns)


def names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def paths(folder: Path) -> list[str]:
    """The files that a container sees: under names that do not begin with two dots."""
    found = []
    for name in names(folder):
        below = folder / name
        if not name.startswith(".."):
            inner = [below] if below.is_file() else below.rglob("*")
            found += [str(each.relative_to(folder)) for each in inner if each.is_file()]
    return found


def content(folder: Path) -> dict[str, str]:
    return {path: (folder / path).read_text() for path in paths(folder)}


def data_folders(folder: Path) -> list[str]:
    return [name for name in names(folder) if name.startswith("..2")]


def test_the_layout_is_that_of_the_go_kubelet(tmp_path: Path) -> None:
    assert write(tmp_path, files(a="1", deep__er__b="2"))
    stamp = "..2026_11_21_13_00_00.123456789"
    assert data_folder_name(NOW) == stamp
    assert names(tmp_path) == {"..data", stamp, "a", "deep"}
    assert (tmp_path / "..data").readlink() == Path(stamp)
    assert (tmp_path / "a").readlink() == Path("..data/a")
    assert (tmp_path / "deep").readlink() == Path("..data/deep")
    assert content(tmp_path) == {"a": "1", "deep/er/b": "2"}
    assert stat.S_IMODE((tmp_path / stamp).stat().st_mode) == 0o755
    assert re.fullmatch(r"\.\.\d{4}(_\d\d){5}\.\d{9}", stamp)


def test_what_is_the_same_is_not_written_again(tmp_path: Path) -> None:
    payload = files(a="1", deep__b="2")
    assert write(tmp_path, payload)
    before = data_folders(tmp_path)
    assert not write(tmp_path, payload, NOW + 1)
    assert data_folders(tmp_path) == before


def test_a_change_exchanges_everything_at_once(tmp_path: Path) -> None:
    write(tmp_path, files(a="1", gone="x", dir__b="2"))
    held = (tmp_path / "..data").resolve()
    with (tmp_path / "a").open() as old:
        assert write(tmp_path, files(a="one", new="y", dir__c="3"), NOW + 1)
        assert old.read() == "1"
    assert content(tmp_path) == {"a": "one", "new": "y", "dir/c": "3"}
    assert not held.exists()
    assert len(data_folders(tmp_path)) == 1


@pytest.mark.parametrize("mode", [0o400, 0o644, 0o777])
def test_modes_are_exact_and_a_new_mode_is_a_change(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        payload = {"f": VolumeFile(content=b"x", mode=mode)}
        write(tmp_path, payload)
        assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == mode
        assert not write(tmp_path, payload)
        assert write(tmp_path, {"f": VolumeFile(content=b"x", mode=0o640)})
    finally:
        os.umask(before)


def test_an_empty_payload_is_a_payload(tmp_path: Path) -> None:
    assert not has_data(tmp_path)
    assert write(tmp_path, {})
    assert has_data(tmp_path)
    assert not write(tmp_path, {})
    assert content(tmp_path) == {}


def test_a_volume_of_the_go_kubelet_is_taken_as_it_is(tmp_path: Path) -> None:
    old = tmp_path / "..2025_01_02_03_04_05.3141592653"
    old.mkdir()
    (old / "a").write_text("1")
    (old / "a").chmod(0o644)
    (tmp_path / "..data").symlink_to(old.name)
    (tmp_path / "a").symlink_to("..data/a")
    assert not write(tmp_path, files(a="1"))
    assert write(tmp_path, files(a="2"))
    assert content(tmp_path) == {"a": "2"}
    assert not old.exists()


def test_what_a_killed_agent_left_half_done_is_finished(tmp_path: Path) -> None:
    write(tmp_path, files(a="1"))
    (tmp_path / "..2026_01_01_00_00_00.000000001").mkdir()
    (tmp_path / "..data_tmp").symlink_to("..2026_01_01_00_00_00.000000001")
    (tmp_path / "a").unlink()
    (tmp_path / "old").symlink_to("..data/old")
    write(tmp_path, files(a="1"))
    assert content(tmp_path) == {"a": "1"}
    assert len(data_folders(tmp_path)) == 1
    assert not (tmp_path / "old").is_symlink()
    write(tmp_path, files(a="2"))
    assert content(tmp_path) == {"a": "2"}


def test_a_folder_of_that_instant_that_is_there_already_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / data_folder_name(NOW)).mkdir()
    (tmp_path / data_folder_name(NOW) / "theirs").touch()
    write(tmp_path, files(a="1"))
    assert data_folders(tmp_path) == [data_folder_name(NOW + 1)]


def test_nothing_is_left_of_an_attempt_that_fails(tmp_path: Path) -> None:
    write(tmp_path, files(a="1"))
    before = names(tmp_path)
    broken = {"a": VolumeFile(content=b"2"), "a/b": VolumeFile(content=b"3")}
    with pytest.raises(OSError, match="a"):
        write(tmp_path, broken, NOW + 5)
    assert names(tmp_path) == before
    assert content(tmp_path) == {"a": "1"}


class TestWhatAContainerMayDoToItsVolume:
    @pytest.fixture
    def volume(self, tmp_path: Path) -> Path:
        volume = tmp_path / "volume"
        volume.mkdir()
        write(volume, files(a="1", deep__b="2"))
        return volume

    @pytest.fixture
    def precious(self, tmp_path: Path) -> Path:
        precious = tmp_path / "precious"
        precious.mkdir()
        (precious / "a").write_text("mine")
        return precious

    def test_a_data_link_that_leads_out_is_replaced(self, volume: Path, precious: Path) -> None:
        (volume / "..data").unlink()
        (volume / "..data").symlink_to("../precious")
        assert write(volume, files(a="2"), NOW + 1)
        assert content(volume) == {"a": "2"}
        assert (precious / "a").read_text() == "mine"
        assert len(data_folders(volume)) == 1

    def test_a_data_folder_that_is_a_link_is_replaced(self, volume: Path, precious: Path) -> None:
        (name,) = data_folders(volume)
        (volume / name).rename(volume / "elsewhere")
        (volume / name).symlink_to(precious)
        assert write(volume, files(a="mine"), NOW + 1)
        assert (precious / "a").read_text() == "mine"
        assert (volume / "..data").readlink() == Path(data_folder_name(NOW + 1))

    def test_a_file_that_is_a_link_is_replaced(self, volume: Path, precious: Path) -> None:
        (volume / "..data" / "a").unlink()
        (volume / "..data" / "a").symlink_to(precious / "a")
        assert write(volume, files(a="mine", deep__b="2"), NOW + 1)
        assert not (volume / "..data" / "a").is_symlink()

    def test_a_folder_that_is_a_link_is_replaced(self, volume: Path, precious: Path) -> None:
        (volume / "..data" / "deep").rename(volume / "moved")
        (volume / "..data" / "deep").symlink_to(precious)
        assert write(volume, files(a="1", deep__b="2"), NOW + 1)
        assert content(volume)["deep/b"] == "2"
        assert names(precious) == {"a"}

    def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(self, volume: Path) -> None:
        (volume / "..data" / "a").unlink()
        os.mkfifo(volume / "..data" / "a")
        assert write(volume, files(a="1", deep__b="2"), NOW + 1)
        assert content(volume)["a"] == "1"

    def test_a_visible_name_that_leads_elsewhere_is_put_right(
        self, volume: Path, precious: Path
    ) -> None:
        (volume / "a").unlink()
        (volume / "a").symlink_to(precious / "a")
        write(volume, files(a="1", deep__b="2"), NOW + 1)
        assert (volume / "a").readlink() == Path("..data/a")
        assert (precious / "a").read_text() == "mine"

    def test_what_others_put_there_stays(self, volume: Path) -> None:
        (volume / "mount-point").mkdir()
        (volume / "link").symlink_to("nowhere")
        write(volume, files(b="1"), NOW + 1)
        assert (volume / "mount-point").is_dir()
        assert (volume / "link").is_symlink()
        assert not (volume / "a").is_symlink()


payload_paths = st.sampled_from(["a", "b", "c/x", "c/y", "c/z/w", "d"])
payloads = st.dictionaries(
    payload_paths,
    st.builds(
        VolumeFile,
        content=st.binary(max_size=3),
        mode=st.sampled_from([0o400, 0o644]),
    ),
)


@given(history=st.lists(payloads, min_size=1, max_size=5))
def test_the_volume_always_holds_the_last_payload_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, history: list[Payload]
) -> None:
    folder = tmp_path_factory.mktemp("volume")
    for number, payload in enumerate(history):
        write(folder, payload, NOW + number)
        shown = {
            path: VolumeFile(
                content=(folder / path).read_bytes(),
                mode=stat.S_IMODE((folder / path).stat().st_mode),
            )
            for path in paths(folder)
        }
        assert shown == payload
        assert len(data_folders(folder)) == 1
