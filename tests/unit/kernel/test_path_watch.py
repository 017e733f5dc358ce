import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from trio_kubelet.kernel import path_watch
from trio_kubelet.kernel.inotify import Inotify
from trio_kubelet.kernel.path_watch import PathWatch


async def is_seen(watch: PathWatch, act: Callable[[], object]) -> None:
    """Wait until the watch, armed before, notices what is done."""
    watch.arm()
    act()
    with trio.fail_after(60):
        await watch.changed()


async def is_not_seen(watch: PathWatch, act: Callable[[], object]) -> None:
    """Check that the watch, armed before, notices nothing within a tenth of a second."""
    watch.arm()
    act()
    with trio.move_on_after(0.1) as scope:
        await watch.changed()
    assert scope.cancelled_caught


def no_queue_left(*_: object) -> None:
    """What opening a queue does when the user has as many as are allowed."""
    raise OSError(errno.EMFILE, "inotify_init1: Too many open files")


def _move(old: Path, new: Path) -> Callable[[], object]:
    return lambda: old.rename(new)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "manifests"
    path.mkdir()
    (path / "old").write_text("x")
    return path


async def test_what_happens_to_files_of_a_folder_is_seen(folder: Path) -> None:
    with PathWatch(folder) as watch:
        await is_seen(watch, lambda: (folder / "new").write_text("x"))
        await is_seen(watch, lambda: (folder / "old").write_text("y"))
        await is_seen(watch, lambda: (folder / "old").chmod(0o600))
        await is_seen(watch, _move(folder / "old", folder / "moved"))
        await is_seen(watch, (folder / "moved").unlink)
        await is_seen(watch, lambda: (folder / "link").symlink_to("new"))
        await is_seen(watch, lambda: (folder / "hard").hardlink_to(folder / "new"))


async def test_a_file_is_seen_when_it_is_complete_and_not_before(folder: Path) -> None:
    with PathWatch(folder) as watch:
        file = os.open(folder / "slow", os.O_CREAT | os.O_WRONLY)
        await is_not_seen(watch, lambda: os.write(file, b"half"))
        await is_seen(watch, lambda: os.close(file))


async def test_other_files_beside_the_folder_are_not_seen(folder: Path) -> None:
    with PathWatch(folder) as watch:
        await is_not_seen(watch, lambda: (folder.parent / "other").write_text("x"))


async def test_a_folder_is_seen_when_it_comes_and_goes(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b" / "manifests"
    with PathWatch(folder) as watch:
        await is_seen(watch, (tmp_path / "a").mkdir)
        await is_seen(watch, (tmp_path / "a" / "b").mkdir)
        await is_seen(watch, folder.mkdir)
        await is_seen(watch, lambda: (folder / "new").write_text("x"))
        await is_seen(watch, _move(folder, tmp_path / "away"))
        await is_not_seen(watch, lambda: (tmp_path / "away" / "new").write_text("y"))
        await is_seen(watch, _move(tmp_path / "away", folder))
        await is_seen(watch, lambda: (folder / "new").write_text("z"))
        await is_seen(watch, _move(tmp_path / "a" / "b", tmp_path / "away"))


async def test_a_folder_that_was_replaced_is_watched_again(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "next").mkdir()
    with PathWatch(folder) as watch:
        await is_seen(watch, _move(folder, tmp_path / "previous"))
        await is_seen(watch, _move(tmp_path / "next", folder))
        await is_seen(watch, lambda: (folder / "new").write_text("x"))
        await is_not_seen(watch, lambda: (tmp_path / "previous" / "old").write_text("y"))


async def test_a_link_to_a_folder_is_followed_and_its_change_seen(
    folder: Path, tmp_path: Path
) -> None:
    link, other = tmp_path / "link", tmp_path / "other"
    other.mkdir()
    link.symlink_to(folder)
    (tmp_path / "next").symlink_to(other)
    with PathWatch(link) as watch:
        await is_seen(watch, lambda: (folder / "new").write_text("x"))
        await is_seen(watch, _move(tmp_path / "next", link))
        await is_seen(watch, lambda: (other / "new").write_text("x"))


async def test_a_single_file_is_seen_when_it_is_written_or_replaced(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    with PathWatch(file) as watch:
        await is_seen(watch, lambda: file.write_text("x"))
        await is_seen(watch, lambda: file.write_text("y"))
        (tmp_path / "new").write_text("z")
        await is_seen(watch, _move(tmp_path / "new", file))
        await is_seen(watch, file.unlink)


async def test_the_watch_leaves_no_descriptor_behind(folder: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with PathWatch(folder) as watch:
        watch.arm()
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_kernel_that_refuses_is_told_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []

    def refuses(*_: object) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PathWatch, "_add", refuses)
    monkeypatch.setattr(path_watch.log, "warning", lambda text, **_: warnings.append(text))
    with PathWatch(folder) as watch:
        watch.arm()
        watch.arm()
    assert warnings == ["file watch failed, falling back to polling"]


async def test_a_kernel_without_a_queue_is_told_once_and_asked_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems: list[str] = []
    monkeypatch.setattr(
        path_watch.log, "warning", lambda _, **facts: problems.append(facts["problem"])
    )
    with monkeypatch.context() as full:
        full.setattr(Inotify, "__init__", no_queue_left)
        watch = PathWatch(folder)
        with watch:
            watch.arm()
            await is_not_seen(watch, lambda: (folder / "new").write_text("x"))
            full.undo()
            await is_seen(watch, lambda: (folder / "newer").write_text("x"))
    assert problems == ["[Errno 24] inotify_init1: Too many open files"]
