"""The lock file, between processes: flock knows open files, so each agent here is a process."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from trio_kubelet.kernel.file_lock import hold_lock

HOLDER = """
import sys, trio
from pathlib import Path
from trio_kubelet.kernel.file_lock import hold_lock

async def main():
    async with hold_lock(Path(sys.argv[1]), lambda: print("waits", flush=True)) as lock:
        print("holds", flush=True)
        if "until-wanted" in sys.argv:
            await lock.wanted()
        else:
            await trio.to_thread.run_sync(sys.stdin.read)

trio.run(main)
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts another process that wants the lock; it says `holds`, perhaps `waits` before."""
    processes: list[subprocess.Popen[str]] = []

    def start(*words: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path / "lock"), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        with process:
            process.kill()


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def nothing() -> None:
    raise AssertionError("it had to wait")


async def is_wanted_after(path: Path, act: Callable[[], object]) -> None:
    """Wait until who holds the lock learns that it is wanted from an act."""
    async with hold_lock(path, nothing) as lock:
        act()
        with trio.fail_after(60):
            await lock.wanted()


async def is_not_wanted_after(path: Path, act: Callable[[], object]) -> None:
    """Check that who holds the lock learns of no such thing within a tenth of a second."""
    async with hold_lock(path, nothing) as lock:
        act()
        with trio.move_on_after(0.1) as scope:
            await lock.wanted()
        assert scope.cancelled_caught


async def test_a_free_lock_is_taken_at_once_and_the_file_is_its_owners(tmp_path: Path) -> None:
    async with hold_lock(tmp_path / "lock", nothing):
        assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
    async with hold_lock(tmp_path / "lock", nothing):
        pass


async def test_a_lock_that_is_held_is_waited_for(tmp_path: Path, start: Start) -> None:
    other = start()
    assert said(other) == "holds"
    waited = trio.Event()
    held = trio.Event()

    async def hold() -> None:
        async with hold_lock(tmp_path / "lock", waited.set):
            held.set()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold)
            await waited.wait()
            assert not held.is_set()
            assert other.stdin is not None
            other.stdin.close()
            await held.wait()


async def test_waiting_ends_when_it_is_cancelled(tmp_path: Path, start: Start) -> None:
    assert said(start()) == "holds"
    with trio.move_on_after(0.3) as scope:
        async with hold_lock(tmp_path / "lock", lambda: None):
            raise AssertionError("two hold one lock")
    assert scope.cancelled_caught


def test_the_lock_goes_with_its_process_however_that_ends(start: Start) -> None:
    first = start()
    assert said(first) == "holds"
    second = start()
    assert said(second) == "waits"
    first.kill()
    assert said(second) == "holds"


def test_who_ends_when_the_lock_is_wanted_hands_it_over(start: Start) -> None:
    first = start("until-wanted")
    assert said(first) == "holds"
    second = start("until-wanted")
    assert first.wait(60) == 0
    if said(second) == "waits":
        assert said(second) == "holds"
    third = start()
    assert second.wait(60) == 0
    assert said(third) in ("waits", "holds")


async def test_opening_removing_or_renaming_the_file_shows_that_it_is_wanted(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lock"
    await is_wanted_after(path, lambda: path.open().close())
    await is_wanted_after(path, path.unlink)
    await is_wanted_after(path, lambda: path.rename(tmp_path / "other"))


async def test_what_needs_no_open_file_does_not_show_that_it_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    await is_not_wanted_after(path, path.stat)
    await is_not_wanted_after(path, lambda: path.chmod(0o640))
    await is_not_wanted_after(path, (tmp_path / "neighbour").touch)


async def test_a_lock_file_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        async with hold_lock(tmp_path / "no" / "lock", nothing):
            pass
