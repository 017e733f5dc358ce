import os
from pathlib import Path

import pytest

from trio_kubelet.kernel.mountinfo import (
    MountPoint,
    mount_of,
    mount_points,
    mounts_at_or_below,
    parse_mountinfo,
    takes_labels,
)

MOUNTINFO = rb"""22 27 0:21 / /proc rw,relatime - proc proc rw
36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:2 - ext3 /dev/root rw,errors=continue
40 22 0:45 / /pods/a\040b rw - tmpfs tmpfs rw,size=4k
41 22 0:46 / /pods/gone//deleted rw - tmpfs tmpfs
"""


def test_mountinfo_is_read_with_optional_fields_and_escapes() -> None:
    proc, bound, spaced, deleted = parse_mountinfo(MOUNTINFO)
    assert proc == MountPoint(
        path=Path("/proc"),
        fs_type="proc",
        source="proc",
        device="0:21",
        options=("rw", "relatime"),
        super_options=("rw",),
    )
    assert (bound.path, bound.root, bound.fs_type) == (Path("/mnt2"), "/mnt1", "ext3")
    assert [each.is_shared for each in (proc, bound, spaced)] == [False, True, False]
    assert spaced.path == Path("/pods/a b")
    assert spaced.super_options == ("rw", "size=4k")
    assert deleted.path == Path("/pods/gone")


def test_the_kernels_own_table_is_read() -> None:
    assert Path("/proc") in {each.path for each in mount_points()}


def test_the_table_can_be_read_for_one_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = tmp_path / "mountinfo"
    table.write_bytes(MOUNTINFO)
    monkeypatch.setattr("trio_kubelet.kernel.mountinfo._MOUNTINFO", table)
    assert [each.path for each in mount_points(Path("/mnt2"))] == [Path("/mnt2")]
    assert Path("/pods/a b") in {each.path for each in mount_points(Path("/pods/a b"))}
    assert mount_points(Path("/nowhere")) == ()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (rb"40 22 0:45 / /v rw - ext4 /dev/sdb rw,seclabel", True),
        (rb"40 22 0:45 / /v rw,seclabel - ext4 /dev/sdb rw", True),
        (rb"40 22 0:45 / /v rw - ext4 /dev/sdb rw,context=system_u:object_r:a_t:s0", False),
        (
            b"40 22 0:45 / /v rw - ext4 /dev/sdb rw,seclabel\n41 40 0:46 / /v rw - nfs s rw",
            False,
        ),
        (rb"40 22 0:45 / /v/w rw - ext4 /dev/sdb rw,seclabel", False),
    ],
)
def test_files_take_labels_where_the_newest_mount_says_so(
    line: bytes, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mountinfo"
    table.write_bytes(line.replace(b"/v", os.fsencode(tmp_path / "v")))
    monkeypatch.setattr("trio_kubelet.kernel.mountinfo._MOUNTINFO", table)
    assert takes_labels(tmp_path / "v") is expected


def test_mounts_are_unmounted_newest_first_and_only_inside_the_folder() -> None:
    paths = ("/pods/u", "/pods/uu/x", "/pods/u/v", "/pods/u/v", "/pods/u/v/deep")
    mounts = [MountPoint(path=Path(path), fs_type="tmpfs") for path in paths]
    order = [str(each.path) for each in mounts_at_or_below(Path("/pods/u"), mounts)]
    assert order == ["/pods/u/v/deep", "/pods/u/v", "/pods/u/v", "/pods/u"]


def test_a_folder_is_on_the_newest_mount_at_or_above_it() -> None:
    paths = ("/", "/var/lib", "/var", "/var/lib/kubelet")
    mounts = [MountPoint(path=Path(path), fs_type="ext4") for path in paths]
    assert mount_of(Path("/var/lib/kubelet/pods"), mounts) == mounts[3]
    assert mount_of(Path("/var/lib/kubelets"), mounts) == mounts[2]
    assert mount_of(Path("/opt"), mounts) == mounts[0]
    assert mount_of(Path("/opt"), ()) is None


def test_a_path_may_have_a_carriage_return_and_bytes_that_are_no_text() -> None:
    table = b"40 22 0:45 / /pods/a\rb\xff rw - tmpfs tmpfs rw\n"
    (found,) = parse_mountinfo(table)
    assert os.fsencode(found.path) == b"/pods/a\rb\xff"


def test_the_table_for_a_folder_with_a_carriage_return_has_its_mount(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = tmp_path / "mountinfo"
    table.write_bytes(MOUNTINFO + b"42 22 0:47 / /pods/a\rb rw - tmpfs tmpfs rw\n")
    monkeypatch.setattr("trio_kubelet.kernel.mountinfo._MOUNTINFO", table)
    assert [each.path for each in mount_points(Path("/pods/a\rb"))] == [Path("/pods/a\rb")]


@pytest.mark.parametrize(
    "line", [b"x", b"\xff\0", b"1 2 3 4 5 6", b"1 2 3:4 / / rw", b" - ", b"\r", b"1 - a b c"]
)
def test_lines_of_another_form_are_left_out(line: bytes) -> None:
    assert len(parse_mountinfo(line + b"\n" + MOUNTINFO)) == 4
