"""Logs as files: their ends, rotations that are followed, and paths that lead elsewhere."""

import errno
import gzip
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import pytest
import trio
from attrs import define
from trio.testing import MockClock

from trio_kubelet.k8s import ObjectMeta
from trio_kubelet.kernel.inotify import Inotify
from trio_kubelet.logs import LogChanges, LogReader
from trio_kubelet.logs.changes import PAUSE_SECONDS, Follower
from trio_kubelet.logs.files import BLOCK_BYTES, NoLogError, TailSearch, place_of
from trio_kubelet.logs.lines import MAX_LINE_BYTES
from trio_kubelet.logs.options import LogOptions
from trio_kubelet.logs.reader import LAST_LINES_SECONDS
from trio_kubelet.runtime.observed import ObservedPod

UID = "u1"
POD = ObjectMeta(namespace="ns", name="pod", uid=UID)
HEAD = b"2026-01-01T00:00:01.5Z stdout "


def line(text: str, tag: str = "F") -> bytes:
    return HEAD + f"{tag} {text}\n".encode()


@define
class Log:
    """A container's log below a folder, and what a runtime and a kubelet do with it."""

    root: Path
    changes: LogChanges | None = None
    ended: bool = False
    rotations: int = 0
    _file: FileIO | None = None

    @property
    def path(self) -> Path:
        return self.root / "ns_pod_u1" / "c" / "0.log"

    def reopen(self) -> None:
        """Write to the log by its name from now on, and close the file from before."""
        before, self._file = self._file, FileIO(self.path, "ab")
        if before is not None:
            before.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, *texts: str) -> None:
        self.write_entries(*(line(text) for text in texts))

    def write_entries(self, *entries: bytes) -> None:
        if self._file is None or not self.path.exists():
            self.reopen()
        assert self._file is not None
        self._file.write(b"".join(entries))

    def rename(self) -> Path:
        self.rotations += 1
        return self.path.rename(f"{self.path}.20260101-{self.rotations:06}")

    def rotate(self, *, pack: bool = False) -> None:
        rotated = self.rename()
        self.reopen()
        if pack:
            Path(f"{rotated}.gz").write_bytes(gzip.compress(rotated.read_bytes()))
            rotated.unlink()

    def end(self) -> None:
        self.ended = True
        self.tell()

    def tell(self) -> None:
        """Somebody has looked at the pod."""
        seen = ObservedPod(uid=UID, name="pod", namespace="ns", observed_at=0.0)
        if self.changes is not None:
            self.changes.pod_changed(seen, seen)

    @asynccontextmanager
    async def reading(self, **options: object) -> AsyncIterator["Reading"]:
        place = place_of(str(self.path), str(self.root))
        wanted = LogOptions(**options)  # type: ignore[arg-type]
        changes = self.changes = LogChanges()
        body = LogReader(changes).read(place, wanted, POD, lambda: self.ended)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(changes.run)
                async with aclosing(body):
                    yield Reading(body)
                nursery.cancel_scope.cancel()

    async def read(self, **options: object) -> list[str]:
        async with self.reading(**options) as reading:
            return await reading.rest()


@define
class Reading:
    body: AsyncIterator[bytes]
    text: str = ""

    async def until(self, end: str) -> None:
        """Read until a line has come."""
        while not self.text.endswith(f"{end}\n"):
            self.text += (await anext(self.body)).decode()

    async def rest(self) -> list[str]:
        async for piece in self.body:
            self.text += piece.decode()
        return self.text.splitlines()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    found = Log(tmp_path)
    found.path.parent.mkdir(parents=True)
    found.path.touch()
    yield found
    found.close()


def numbers(*parts: range) -> list[str]:
    return [str(number) for part in parts for number in part]


async def test_a_log_is_read_to_its_end(log: Log) -> None:
    log.write(*numbers(range(5)))
    assert await log.read() == numbers(range(5))
    assert await log.read(limit_bytes=3) == ["0", "1"]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 100])
async def test_the_last_lines_are_whole_lines(log: Log, count: int) -> None:
    text = line("first") + line("lo", "P") + line("n", "P") + line("g") + line("") + line("last")
    log.path.write_bytes(text)
    expected = ["first", "long", "", "last"]
    assert await log.read(tail_lines=count) == (expected[-count:] if count else [])
    log.path.write_bytes(text + line("go", "P"))
    assert await log.read(tail_lines=count) == ([*expected, "go"][-count:] if count else [])


@pytest.mark.parametrize("count", [0, 1, 999, 30_000, 60_000, 60_001])
def test_the_last_lines_of_a_long_log_are_found_in_blocks(tmp_path: Path, count: int) -> None:
    lines = [line(f"{number:07}" + "x" * (number % 50)) for number in range(60_000)]
    path = tmp_path / "log"
    path.write_bytes(b"".join(lines))
    with path.open("rb") as file:
        search = TailSearch(file, count)
        while (offset := search.step()) is None:
            pass
    wanted = b"".join(lines[max(0, len(lines) - count) :])
    assert path.stat().st_size - offset == len(wanted)


def test_a_log_of_a_terabyte_takes_no_longer(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    os.truncate(path, 1 << 40)
    with path.open("ab") as file:
        file.write(b"\n" + line("a") + line("b"))
    with path.open("rb") as file:
        search = TailSearch(file, 3)
        assert search.step() is None, "what lies before may be anything"
        assert len(search._carry) <= MAX_LINE_BYTES + BLOCK_BYTES
        assert TailSearch(file, 1).step() == path.stat().st_size - len(line("b"))


async def test_a_follower_has_each_line_as_it_comes(log: Log) -> None:
    async with log.reading(follow=True) as reading:
        for number in range(20):
            log.write(str(number))
            await reading.until(str(number))
        log.end()
        assert await reading.rest() == numbers(range(20))


async def test_what_is_printed_before_the_end_is_not_lost(log: Log) -> None:
    async with log.reading(follow=True) as reading:
        log.write("a")
        await reading.until("a")
        log.tell()
        await trio.testing.wait_all_tasks_blocked()
        log.write("b")
        log.ended = True
        log.write("c")
        log.tell()
        assert await reading.rest() == ["a", "b", "c"]


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("read_between", [False, True])
async def test_rotations_are_followed_without_loss_or_repeat(
    log: Log, pack: bool, read_between: bool
) -> None:
    async with log.reading(follow=True) as reading:
        log.write("begin")
        await reading.until("begin")
        for number in range(20):
            log.write(f"{number} old")
            log.rotate(pack=pack)
            log.write(f"{number} new")
            if read_between:
                await reading.until(f"{number} new")
        log.end()
        expected = [f"{number} {which}" for number in range(20) for which in ("old", "new")]
        assert await reading.rest() == ["begin", *expected]


@pytest.mark.parametrize("pack", [False, True])
async def test_a_log_that_was_removed_takes_no_other_one_with_it(log: Log, pack: bool) -> None:
    async with log.reading(follow=True) as reading:
        log.write("a")
        await reading.until("a")
        log.write("b")
        removed = log.rename()
        log.write("perhaps the end of a line that was lost", "the next one")
        removed.unlink()
        log.rotate(pack=pack)
        log.write("c")
        log.end()
        assert await reading.rest() == ["a", "b", "the next one", "c"]


@pytest.mark.parametrize("damage", ["cut off", "rubbish inside", "rubbish"])
async def test_a_packed_log_that_is_damaged_ends_there(log: Log, damage: str) -> None:
    async with log.reading(follow=True) as reading:
        log.write("a")
        await reading.until("a")
        log.rotate()
        log.write(*(f"old {number}" for number in range(1000)))
        log.rotate(pack=True)
        [packed] = log.path.parent.glob("*.gz")
        text = packed.read_bytes()
        cut = text[: len(text) // 2]
        packed.write_bytes(
            {"cut off": cut, "rubbish inside": cut + bytes(9), "rubbish": b"x"}[damage]
        )
        log.write("perhaps the end of a line that was lost", "b")
        log.end()
        lines = await reading.rest()
    assert (lines[0], lines[-1]) == ("a", "b")
    assert all(each.startswith("old ") for each in lines[1:-1])


async def test_a_renamed_log_is_read_until_the_new_one_is_written_to(log: Log) -> None:
    async with log.reading(follow=True) as reading:
        log.write("a")
        await reading.until("a")
        with log.path.open("ab") as old:
            log.rename()
            old.write(line("b"))
            old.flush()
            await reading.until("b")
            log.path.touch()
            await trio.testing.wait_all_tasks_blocked()
            old.write(line("c"))
            old.flush()
            await reading.until("c")
        log.write("d")
        await reading.until("d")
        log.end()
        assert await reading.rest() == ["a", "b", "c", "d"]


@pytest.mark.parametrize("closes", [True, False])
async def test_a_rotated_log_is_read_until_its_writer_has_closed_it(
    log: Log, mock_clock: MockClock, closes: bool
) -> None:
    with log.path.open("ab") as old:
        async with log.reading(follow=True) as reading, trio.open_nursery() as nursery:

            def write(file: BinaryIO, text: str) -> None:
                file.write(line(text))
                file.flush()

            async def look_again(times: int) -> None:
                """Let the follower look so often, in less time than lines take that are late."""
                assert times * PAUSE_SECONDS < LAST_LINES_SECONDS
                for _ in range(times):
                    mock_clock.jump(PAUSE_SECONDS)
                    await trio.testing.wait_all_tasks_blocked(0.05)

            write(old, "a")
            await reading.until("a")
            nursery.start_soon(reading.until, "d")
            log.rename()
            with log.path.open("ab") as new:
                write(new, "c")
                await look_again(times=2)
                assert reading.text == "a\n", "the old one may get more"
                write(old, "b")
                if closes:
                    old.close()
                else:
                    mock_clock.jump(LAST_LINES_SECONDS)
                write(new, "d")
                await look_again(times=5)
                while not reading.text.endswith("d\n"):
                    await trio.testing.wait_all_tasks_blocked(0.01)
            log.end()
            assert await reading.rest() == ["a", "b", "c", "d"]


async def test_a_log_can_be_read_and_later_followed_where_the_kernel_has_no_queue_left(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_queue_left(_: Inotify) -> None:
        raise OSError(errno.EMFILE, "inotify_init1: Too many open files")

    log.write("a")
    async with log.reading() as reading:
        assert await reading.rest() == ["a"]
        place = place_of(str(log.path), str(log.root))
        assert log.changes is not None
        changes = LogReader(log.changes)
        with monkeypatch.context() as patch:
            patch.setattr(Inotify, "__init__", no_queue_left)
            with pytest.raises(OSError, match="Too many open files"):
                await anext(changes.read(place, LogOptions(follow=True), POD, lambda: log.ended))
        async with aclosing(
            changes.read(place, LogOptions(follow=True), POD, lambda: log.ended)
        ) as body:
            follower = Reading(body)
            await follower.until("a")
            log.write("b")
            await follower.until("b")


async def test_a_follower_of_a_log_that_never_stops_changing_pauses(
    autojump_clock: MockClock,
) -> None:
    follower = Follower(UID, "0.log")
    waited_at = []
    for _ in range(3):
        follower.wake()
        await follower.wait()
        waited_at.append(trio.current_time())
    pauses = [after - before for before, after in pairwise(waited_at)]
    assert pauses == pytest.approx([PAUSE_SECONDS, PAUSE_SECONDS])
    await trio.sleep(PAUSE_SECONDS)
    follower.wake()
    quiet_until = trio.current_time()
    await follower.wait()
    assert trio.current_time() == quiet_until, "what comes after a quiet time is read at once"


async def test_followers_share_what_they_watch_with(log: Log) -> None:
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    place = place_of(str(log.path), str(log.root))
    changes = log.changes = LogChanges()
    seen: list[str] = []

    async def follow(*, task_status: trio.TaskStatus[None]) -> None:
        body = LogReader(changes).read(place, LogOptions(follow=True), POD, lambda: log.ended)
        async with aclosing(body):
            reading = Reading(body)
            await anext(body)
            task_status.started()
            seen.extend(await reading.rest())

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(changes.run)
            async with trio.open_nursery() as followers:
                for _ in range(200):
                    await followers.start(follow)
                log.write("a")
                await trio.testing.wait_all_tasks_blocked()
                log.end()
            nursery.cancel_scope.cancel()
    log.close()
    assert seen == ["a"] * 200
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "{}/../secret",
        "{}/a/../../secret",
        "{}",
        "{}/0.log",
        "",
        "a/b",
        "{}x/a/0.log",
    ],
)
def test_a_path_outside_the_folder_of_logs_is_no_log(tmp_path: Path, path: str) -> None:
    with pytest.raises(NoLogError):
        place_of(path.format(tmp_path), str(tmp_path))


@pytest.mark.parametrize("what", ["file", "folder", "above", "pipe"])
async def test_no_symlink_is_followed(log: Log, tmp_path: Path, what: str) -> None:
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    (elsewhere / "c").mkdir(parents=True)
    (elsewhere / "c" / "0.log").write_bytes(line("secret"))
    replaced = {"file": log.path, "folder": log.path.parent, "above": log.path.parent.parent}
    target = {"file": "c/0.log", "folder": "c", "above": ""}
    log.path.unlink()
    if what == "pipe":
        os.mkfifo(log.path)
    else:
        place = replaced[what]
        for folder in [log.path, log.path.parent, log.path.parent.parent]:
            if folder.is_relative_to(place) and folder.exists():
                folder.rmdir()
        place.symlink_to(elsewhere / target[what])
        assert log.path.read_bytes() == line("secret")
    with pytest.RaisesGroup(OSError, flatten_subgroups=True, allow_unwrapped=True):
        await log.read()
