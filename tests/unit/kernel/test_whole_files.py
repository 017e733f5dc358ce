"""Files that are replaced whole: what readers see, and what is left when it fails."""

import errno
import os
from pathlib import Path

import pytest

from trio_kubelet.kernel.whole_files import write_all_whole, write_whole


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_who_has_the_old_file_open_reads_the_old_content_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")
    with path.open("rb") as reader:
        write_whole(path, b"new")
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["file"]


def test_a_file_gets_its_mode_whatever_the_old_one_had(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_whole(path, b"old", mode=0o644, folder_mode=0o700)
    write_whole(path, b"new")
    assert [p.stat().st_mode & 0o777 for p in (path.parent, path)] == [0o700, 0o600]


def test_a_folder_that_is_not_there_is_made_only_when_asked(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "gone" / "file", b"")
    assert names(tmp_path) == []


def test_what_a_killed_writer_left_is_replaced(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / ".file.new").symlink_to(elsewhere)
    write_whole(tmp_path / "file", b"new")
    assert names(tmp_path) == ["file"]


def test_a_file_that_cannot_be_written_is_told_by_its_own_name(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 252)
    with pytest.raises(OSError, match="File name too long") as raised:
        write_whole(path, b"text")
    assert raised.value.filename == str(path)


def test_of_several_files_none_is_replaced_if_one_cannot_be_written(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write_whole(first, b"old")
    (tmp_path / ".second.new").mkdir()
    with pytest.raises(IsADirectoryError) as raised:
        write_all_whole({first: b"new", second: b"new"}, durable=True)
    assert raised.value.filename == str(second)
    assert first.read_bytes() == b"old"
    assert names(tmp_path) == [".second.new", "first"]


def test_of_several_files_the_one_is_named_that_does_not_reach_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    first, second = tmp_path / "first", tmp_path / "second"
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="Input/output error") as raised:
        write_all_whole({first: b"new", second: b"new"}, durable=True)
    assert raised.value.filename == str(first)
    assert names(tmp_path) == []


class Disk:
    """What reaches the disk, in its order: contents and names that were synced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        really_replace = Path.replace

        def fsync(descriptor: int) -> None:
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            self.log.append(f"sync {path.name}")

        def replace(path: Path, target: Path) -> Path:
            self.log.append(f"rename {path.name} {target.name}")
            return really_replace(path, target)

        monkeypatch.setattr("trio_kubelet.kernel.whole_files.os.fsync", fsync)
        monkeypatch.setattr(Path, "replace", replace)


def test_what_is_durable_is_on_the_disk_with_its_name_when_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    write_whole(tmp_path / "made" / "file", b"new", folder_mode=0o700, durable=True)
    assert disk.log == [
        f"sync {tmp_path.name}",
        "sync .file.new",
        "rename .file.new file",
        "sync made",
    ]


def test_what_need_not_be_durable_waits_for_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    write_whole(tmp_path / "file", b"new")
    assert disk.log == ["rename .file.new file"]
