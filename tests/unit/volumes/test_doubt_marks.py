"""Marks of volumes about which a driver was asked."""

import os
from pathlib import Path

import pytest

from trio_kubelet.volumes.doubt_marks import DoubtMarks
from trio_kubelet.volumes.mount import MS_RDONLY, mount, unmount

UID = "8b0c4b0e-0a39-4a52-8d52-0c1d5b1b5f11"


@pytest.mark.parametrize("length", [1, 163, 164, 253])
def test_a_volume_of_any_name_is_marked(tmp_path: Path, length: int) -> None:
    marks, volume = DoubtMarks(tmp_path / "marks"), "v" * length
    marks.make(UID, volume)
    assert marks.is_made(UID, volume)
    assert not marks.is_made(UID, volume + "w")
    marks.keep([(UID, volume)])
    assert marks.is_made(UID, volume)
    marks.remove(UID, volume)
    assert not marks.is_made(UID, volume)
    marks.remove(UID, volume)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_mark_that_is_not_there_is_no_matter_on_a_disk_that_cannot_be_written_to(
    tmp_path: Path,
) -> None:
    marks = DoubtMarks(tmp_path)
    mount("tmpfs", tmp_path, "tmpfs", flags=MS_RDONLY)
    try:
        marks.make_if_room(UID, "v")
        assert not marks.is_made(UID, "v")
        marks.remove(UID, "v")
    finally:
        unmount(tmp_path)
