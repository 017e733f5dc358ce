"""Which files of a log go, are packed and renamed, and when it is looked at again."""

import gzip
import os
from datetime import datetime
from pathlib import Path

import pytest

from trio_kubelet.logs.files import place_of
from trio_kubelet.logs.rotating_files import PIECE_BYTES, LogFolder, log_folder
from trio_kubelet.logs.rotation import (
    RotationPolicy,
    next_name,
    rotated_files,
    seconds_to_next_look,
)

ONE, TWO, THREE = (f"0.log.20260101-00000{second}" for second in (1, 2, 3))


def test_only_what_a_rotation_makes_of_a_log_is_its_file() -> None:
    names = ["0.log", ONE, f"{TWO}.gz", "1.log", f"1.log{ONE[5:]}", "0.log.bak", f"{ONE}.gz.old"]
    files = rotated_files([*names, "0.log.2026-01-01", "00log.20260101-000001"], "0.log")
    assert (files.rotated, files.leftovers) == ((ONE, TWO), ())
    assert files.packed == {TWO}


@pytest.mark.parametrize(
    ("names", "leftovers"),
    [
        ((ONE, f"{ONE}.tmp"), (f"{ONE}.tmp",)),
        ((ONE, f"{ONE}.gz"), (ONE,)),
        ((ONE, f"{ONE}.gz", f"{ONE}.tmp"), (f"{ONE}.tmp", ONE)),
        ((f"{ONE}.tmp",), (f"{ONE}.tmp",)),
        ((ONE, f"{TWO}.gz"), ()),
    ],
)
def test_what_a_killed_agent_has_left_of_packing_is_seen_by_the_names(
    names: tuple[str, ...], leftovers: tuple[str, ...]
) -> None:
    assert rotated_files(names, "0.log").leftovers == leftovers


@pytest.mark.parametrize(
    ("keep", "excess", "to_pack"),
    [
        (5, (), (TWO,)),
        (3, (), (TWO,)),
        (2, (f"{ONE}.gz",), (TWO,)),
        (1, (f"{ONE}.gz", TWO), ()),
        (0, (f"{ONE}.gz", TWO, THREE), (TWO,)),
    ],
)
def test_the_oldest_go_and_all_but_the_newest_of_the_others_are_packed(
    keep: int, excess: tuple[str, ...], to_pack: tuple[str, ...]
) -> None:
    files = rotated_files([THREE, f"{ONE}.gz", TWO], "0.log")
    assert (files.excess(keep), files.to_pack(keep)) == (excess, to_pack)


@pytest.mark.parametrize(
    ("rotated", "name"),
    [
        ((), "0.log.20260101-000002"),
        ((ONE,), "0.log.20260101-000002"),
        ((ONE, TWO), "0.log.20260101-000003"),
        (("0.log.20260101-235959",), "0.log.20260102-000000"),
        (("0.log.20269999-999999",), "0.log.20270000-000000"),
    ],
)
def test_a_rotated_log_is_named_later_than_all_before_it(
    rotated: tuple[str, ...], name: str
) -> None:
    assert next_name("0.log", rotated, datetime(2026, 1, 1, 0, 0, 2)) == name


POLICY = RotationPolicy(max_bytes=100, max_files=5, interval_seconds=10)


@pytest.mark.parametrize(
    ("size", "rate", "seconds"),
    [(0, 0, 10), (0, 1, 10), (0, 30, 3), (0, 100, 1), (0, 1e9, 1), (95, 1, 5), (200, 1, 1)],
)
def test_a_log_is_looked_at_when_it_may_be_full(size: int, rate: float, seconds: float) -> None:
    assert seconds_to_next_look(size, rate, POLICY) == seconds


@pytest.mark.parametrize(("files", "rotated"), [(5, 4), (2, 1), (1, 1)])
def test_the_files_of_a_log_are_itself_and_the_rotated_ones(files: int, rotated: int) -> None:
    policy = RotationPolicy(max_bytes=1, max_files=files, interval_seconds=10)
    assert policy.rotated_files == rotated


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "pod" / "c"
    made.mkdir(parents=True)
    (made / "0.log").write_bytes(b"now")
    return made


def names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def opened(folder: Path) -> LogFolder:
    return LogFolder(os.open(folder, os.O_RDONLY), "0.log")


def test_a_packed_file_takes_the_place_of_the_plain_one_when_it_is_whole(folder: Path) -> None:
    text = os.urandom(PIECE_BYTES) * 3 + b"end"
    (folder / ONE).write_bytes(text)
    (folder / ONE).chmod(0o640)
    packing = opened(folder).pack(ONE)
    next(packing)
    assert names(folder) == {"0.log", ONE, f"{ONE}.tmp"}
    assert list(packing) == [None] * 3
    assert names(folder) == {"0.log", f"{ONE}.gz"}
    assert gzip.decompress((folder / f"{ONE}.gz").read_bytes()) == text
    assert (folder / f"{ONE}.gz").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("removed", [False, True])
def test_packing_that_ends_early_or_for_nothing_leaves_nothing(folder: Path, removed: bool) -> None:
    (folder / ONE).write_bytes(b"x" * 3 * PIECE_BYTES)
    packing = opened(folder).pack(ONE)
    next(packing)
    if removed:
        (folder / ONE).unlink()
        list(packing)
    packing.close()
    assert names(folder) == {"0.log"} | (set() if removed else {ONE})


def test_a_log_gets_its_name_back_unless_it_was_made_anew(folder: Path) -> None:
    log = opened(folder)
    log.rename(ONE)
    assert log.size_bytes() is None
    log.restore(ONE)
    assert (log.size_bytes(), names(folder)) == (3, {"0.log"})
    log.rename(ONE)
    (folder / "0.log").touch()
    log.restore(ONE)
    assert (log.size_bytes(), names(folder)) == (0, {"0.log", ONE})


@pytest.mark.parametrize("what", ["log", "rotated", "unfinished", "folder"])
def test_no_symlink_of_a_pod_leads_a_rotation_elsewhere(
    folder: Path, tmp_path: Path, what: str
) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "0.log").write_bytes(b"secret")
    (secret / ONE).write_bytes(b"secret")
    place = place_of(str(folder / "0.log"), str(tmp_path))
    (folder / ONE).write_bytes(b"rotated")
    replaced = {"log": "0.log", "rotated": ONE, "unfinished": f"{ONE}.tmp"}.get(what)
    if replaced is None:
        folder.rename(tmp_path / "moved")
        folder.symlink_to(secret)
    else:
        (folder / replaced).unlink(missing_ok=True)
        (folder / replaced).symlink_to(secret / "0.log")

    def act() -> None:
        with log_folder(place) as log:
            if what == "log":
                log.size_bytes()
            else:
                list(log.pack(ONE))

    with pytest.raises(OSError, match=r"symbolic|exists|Not a dir|plain"):
        act()
    assert {each.name: each.read_bytes() for each in secret.iterdir()} == {
        "0.log": b"secret",
        ONE: b"secret",
    }
