"""Marks of volumes about which a driver was asked."""

from pathlib import Path

import pytest

from trio_kubelet.volumes.doubt_marks import DoubtMarks

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
