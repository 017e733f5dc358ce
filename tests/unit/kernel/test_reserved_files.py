"""Files that a full disk has room for, and what a power failure leaves of them."""

import os
from pathlib import Path

import pytest

from tests.power_failures import PowerFailures
from trio_kubelet.kernel.whole_files import reserve, write_reserved

SIZE = 8192
NAMES = {"file", ".file.spare"}


def content(path: Path) -> bytes:
    """The content, without what fills the file."""
    return path.read_bytes().rstrip()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_each_content_takes_the_place_of_the_one_before_and_leaves_it_as_the_spare(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file"
    reserve(path, SIZE)
    write_reserved(path, b"first", SIZE)
    reserve(path, SIZE)
    inodes = {each.stat().st_ino for each in tmp_path.iterdir()}
    for text in (b"second, which is longer", b"third", b""):
        write_reserved(path, text, SIZE)
        assert content(path) == text
        assert names(tmp_path) == NAMES
        assert {each.stat().st_ino for each in tmp_path.iterdir()} == inodes
        assert {each.stat().st_size for each in tmp_path.iterdir()} == {SIZE}
        assert path.stat().st_mode & 0o777 == 0o600


def test_the_room_of_a_spare_is_allocated(tmp_path: Path) -> None:
    path = tmp_path / "file"
    (tmp_path / ".file.spare").write_bytes(b"left by an older agent")
    reserve(path, SIZE)
    found = (tmp_path / ".file.spare").stat()
    assert found.st_size == SIZE
    assert found.st_blocks * 512 >= SIZE


def test_what_is_reserved_already_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve(tmp_path / "file", SIZE)

    def fail(*_arguments: object) -> None:
        raise AssertionError

    monkeypatch.setattr(os, "posix_fallocate", fail)
    monkeypatch.setattr(os, "fsync", fail)
    reserve(tmp_path / "file", SIZE)


@pytest.mark.parametrize("size", [4, 5])
def test_a_content_without_room_in_the_spare_is_written_all_the_same(
    size: int, tmp_path: Path
) -> None:
    path = tmp_path / "made" / "file"
    write_reserved(path, b"12345", size, folder_mode=0o750)
    assert path.read_bytes() == b"12345"
    reserve(path, size)
    write_reserved(path, b"54321", size)
    assert path.read_bytes() == b"54321"


def test_a_folder_in_the_way_is_an_error_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.mkdir()
    reserve(path, SIZE)
    with pytest.raises(IsADirectoryError) as raised:
        write_reserved(path, b"text", SIZE)
    assert raised.value.filename == str(path)
    assert path.is_dir()


def test_a_file_system_without_exchange_has_the_content_and_another_spare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        def renameat2(self, *_arguments: object) -> int:
            return -1

    monkeypatch.setattr("trio_kubelet.kernel.whole_files._libc", Refusing())
    path = tmp_path / "file"
    for text in (b"first", b"second"):
        reserve(path, SIZE)
        write_reserved(path, text, SIZE)
        assert content(path) == text
        assert names(tmp_path) == {"file"}


def test_whenever_the_power_fails_the_old_content_is_there_or_the_new_one(tmp_path: Path) -> None:
    """And the new one for certain once it was written."""
    folder = tmp_path / "disk"
    folder.mkdir()
    path = folder / "file"
    reserve(path, SIZE)
    write_reserved(path, b"zero", SIZE)
    reserve(path, SIZE)
    failures = PowerFailures(folder)
    texts = [b"zero", b"one", b"two", b"three"]
    written_at = [0]
    with failures.noted():
        for text in texts[1:]:
            write_reserved(path, text, SIZE)
            written_at.append(failures.moment)
    assert failures.found
    for failure in failures.found:
        done = sum(moment < failure.moment for moment in written_at) - 1
        assert failure.files["file"].rstrip() in texts[max(done, 0) : done + 2]
