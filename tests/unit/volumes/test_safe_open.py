import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import trio

from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.volumes.safe_open import (
    make_folders_beneath,
    open_beneath,
    opened_folder,
    remove_in_pieces,
    remove_tree,
)


def test_a_tree_is_removed_with_everything_in_it(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "c").mkdir()
    (tree / "a" / "file").write_text("x")
    os.mkfifo(tree / "pipe")
    remove_tree(tree)
    assert list(tmp_path.iterdir()) == []


def test_symlinks_are_removed_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "link").symlink_to(outside)
    remove_tree(tree)
    (tmp_path / "root_link").symlink_to(outside)
    remove_tree(tmp_path / "root_link")
    assert [each.name for each in tmp_path.iterdir()] == ["outside"]
    assert (outside / "precious").exists()


def test_removing_nothing_is_fine(tmp_path: Path) -> None:
    remove_tree(tmp_path / "absent")


def test_a_tree_may_be_deeper_than_paths_and_descriptors_allow(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    here = os.open(tree, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    remove_tree(tree)
    assert not tree.exists()


async def test_a_large_tree_is_removed_in_pieces_between_which_others_have_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_kubelet.volumes.safe_open.FILES_IN_A_PIECE", 10)
    tree, other = tmp_path / "tree", FairLimiter(1, 1)
    for number in range(50):
        (tree / str(number)).mkdir(parents=True)
        (tree / str(number) / "file").touch()
    left: list[int] = []

    async def have_turns() -> None:
        while tree.exists():
            async with other.share("good"):
                left.append(len(list(tree.glob("*/file"))))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(remove_in_pieces, other.share("large"), tree)
        nursery.start_soon(have_turns)
    assert {*range(5, 50, 5)} <= {*left}
    await remove_in_pieces(other.share("large"), tree)


async def test_a_removal_that_is_cut_off_leaves_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_kubelet.volumes.safe_open.FILES_IN_A_PIECE", 10)
    tree, descriptors = tmp_path / "tree", os.listdir("/proc/self/fd")  # noqa: PTH208
    tree.mkdir()
    for number in range(50):
        (tree / str(number)).touch()
    with trio.CancelScope() as scope:
        share = FairLimiter(1, 1).share("a")
        unlink = os.unlink

        def cancel_and_unlink(*args: Any, **options: Any) -> None:
            trio.from_thread.run_sync(scope.cancel)
            unlink(*args, **options)

        monkeypatch.setattr(os, "unlink", cancel_and_unlink)
        await remove_in_pieces(share, tree)
    assert len(list(tree.iterdir())) == 40
    assert os.listdir("/proc/self/fd") == descriptors  # noqa: PTH208


def test_paths_are_followed_inside_a_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("x")
    (tmp_path / "link").symlink_to("real")
    with opened_folder(tmp_path) as folder:
        found = open_beneath(folder, "link/file")
    assert os.fstat(found).st_ino == (tmp_path / "real" / "file").stat().st_ino
    os.close(found)


@pytest.mark.parametrize("target", ["/etc", "..", "../../etc", "a/../../.."])
def test_paths_are_not_followed_out_of_a_folder(tmp_path: Path, target: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(target)
    with opened_folder(tmp_path) as folder, pytest.raises(OSError) as caught:  # noqa: PT011
        open_beneath(folder, "link")
    assert caught.value.errno == errno.EXDEV


def test_folders_are_made_with_the_mode_asked_for(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with opened_folder(tmp_path) as folder:
            make_folders_beneath(folder, "a/b/c", 0o2775)
    finally:
        os.umask(before)
    for path in ("a", "a/b", "a/b/c"):
        assert stat.S_IMODE((tmp_path / path).stat().st_mode) == 0o2775


def test_folders_are_not_made_outside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    inside = tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (inside / "link").symlink_to("../outside")
    with opened_folder(inside) as folder, pytest.raises(OSError):  # noqa: PT011
        make_folders_beneath(folder, "link/new", 0o755)
    assert list(outside.iterdir()) == []
