from pathlib import Path

import pytest

from lab import LabError
from lab.host import cgroups_named, mounts_below
from lab.packages import Packages
from lab.processes import last_words
from lab.tools import fits, in_package

MOUNTS = """\
21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
22 21 0:20 / /lab rw - tmpfs tmpfs rw
23 22 0:21 / /lab/run/with\\040space rw - tmpfs tmpfs rw
24 21 0:22 / /laboratory rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("version", "wish", "expected"),
    [
        ("1.6.20", "1.6", True),
        ("1.6.20", "default", True),
        ("2.1.9", "2.1.9", True),
        ("2.10.0", "2.1", False),
        ("1.7.24", "1.6", False),
    ],
)
def test_a_version_fits_a_wish_for_its_beginning(version: str, wish: str, expected: bool) -> None:
    assert fits(version, wish) is expected


def test_a_program_whose_package_is_installed_is_the_system_s(tmp_path: Path) -> None:
    (tmp_path / "busybox-static.list").touch()
    packages = Packages(tmp_path, installed=tmp_path)
    with pytest.raises(LabError, match="has no bin/absent"):
        in_package(packages, "busybox-static", "bin/absent")
    assert in_package(packages, "busybox-static", "bin/absent", "bin/sh") == Path("/bin/sh")


def test_mounts_below_a_folder_include_its_own_and_not_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    found = mounts_below(Path("/lab"), tmp_path / "mountinfo")
    assert found == ("/lab", "/lab/run/with space")


@pytest.mark.parametrize(
    "hierarchies",
    [["."], ["cpu", "memory"], [".", "cpu"]],
    ids=["version 2", "version 1", "a leftover of another version"],
)
def test_a_cgroup_is_found_in_every_hierarchy(tmp_path: Path, hierarchies: list[str]) -> None:
    for hierarchy in ("cpu", "memory"):
        (tmp_path / hierarchy / "other").mkdir(parents=True)
    wanted = {tmp_path / hierarchy / "node" / "pods" for hierarchy in hierarchies}
    for folder in wanted:
        folder.mkdir(parents=True)
    assert set(cgroups_named("/node/pods", tmp_path)) == wanted


def test_last_words_are_one_line() -> None:
    assert last_words("a\nb\nc\nd\n") == "b / c / d"
    assert last_words("") == "failed without a word"
