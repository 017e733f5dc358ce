"""Followers of a log that is rotated: whole lines whatever happens, all of them if they keep up.

The runtime splits lines at a rotation as containerd does, and goes over to the next file one stream
after the other; the agent's own code removes and packs files.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing, closing
from io import FileIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import pytest
import structlog.testing
import trio
import trio.testing
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st

from trio_kubelet.k8s import ObjectMeta
from trio_kubelet.logs import LogChanges, LogReader, changes
from trio_kubelet.logs.files import LogPlace, place_of
from trio_kubelet.logs.options import LogOptions
from trio_kubelet.logs.rotating_files import log_folder
from trio_kubelet.runtime.observed import ObservedPod
from trio_kubelet.tasks.pieces import StreamPieces

UID = "u1"
POD = ObjectMeta(namespace="ns", name="pod", uid=UID)
TIME = "2026-01-01T00:00:01.5Z"
PIECE_BYTES = 100
SMALL_PIECES = StreamPieces(PIECE_BYTES, PIECE_BYTES, PIECE_BYTES)
ALL_FILES = 1000

Stream = Literal["stdout", "stderr"]
STREAMS: Sequence[Stream] = ("stdout", "stderr")


@define
class RotatedLog:
    """A container's log, its runtime and the agent's rotator, which keeps some rotated files."""

    root: Path
    kept_files: int
    printed: list[str] = field(factory=list)
    rotations: int = 0
    ended: bool = False
    _file: FileIO | None = None
    _before: FileIO | None = None

    @property
    def place(self) -> LogPlace:
        return place_of(str(self.root / "ns_pod_u1" / "c" / "0.log"), str(self.root))

    def open(self) -> None:
        """Make the log, and write to it from now on."""
        self.place.path.parent.mkdir(parents=True, exist_ok=True)
        self._before, self._file = self._file, FileIO(self.place.path, "ab")

    def close(self) -> None:
        assert self._file is not None
        self._file.close()

    def _text(self, stream: Stream) -> str:
        number = len(self.printed)
        text = f"{stream} {number} " + "x" * (number % 5 * PIECE_BYTES // 2)
        self.printed.append(text)
        return text

    def print(self, stream: Stream, parts: int = 1) -> None:
        """Print a line, in so many parts."""
        texts = [self._text(stream)]
        for _ in range(parts - 1):
            text = texts.pop()
            texts += [text[: len(text) // 2], text[len(text) // 2 :]]
        tags = ["P"] * (parts - 1) + ["F"]
        entries = zip(tags, texts, strict=True)
        file = self._before if stream == "stderr" and self._before is not None else self._file
        self._write(file, *(entry(stream, tag, text) for tag, text in entries))

    def write_part(self, stream: Stream, text: str) -> None:
        """Print a text without the end of its line."""
        self._write(self._file, entry(stream, "P", text))

    def rename(self) -> None:
        """Rotate, as the agent does before it tells the runtime."""
        if self._before is not None or not self.place.path.exists():
            return
        with log_folder(self.place) as folder:
            for name in folder.rotated().excess(self.kept_files - 1):
                folder.remove(name)
            self.rotations += 1
            folder.rename(f"{self.place.name}.20260101-{self.rotations:06}")

    def reopen(self, *, split: bool) -> None:
        """Make the log anew, and go over to it with stdout, perhaps within a line."""
        if not self.place.path.exists():
            self.open()
            self._go_over("stdout", split)

    def close_rotated(self, *, split: bool) -> None:
        """Go over to the new file with stderr, and close the one before."""
        if self._before is not None:
            before = self._before
            self._go_over("stderr", split)
            before.close()

    def rotate(self, *, split: bool) -> None:
        self.rename()
        self.reopen(split=split)
        self.close_rotated(split=split)

    def _go_over(self, stream: Stream, split: bool) -> None:
        """Let a stream end in the file before, the last one to go over being stderr."""
        before, text = self._before, self._text(stream)
        if stream == "stderr":
            self._before = None
        if split:
            self._write(before, entry(stream, "P", text[:5]))
            self._write(self._file, entry(stream, "F", text[5:]))
        else:
            self._write(before, entry(stream, "F", text))
            self.print(stream)

    @staticmethod
    def _write(file: FileIO | None, *entries: bytes) -> None:
        assert file is not None
        file.write(b"".join(entries))

    def pack(self) -> None:
        with log_folder(self.place) as folder:
            files = folder.rotated()
            for name in files.to_pack(len(files.rotated)):
                with closing(folder.pack(name)) as packing:
                    for _ in packing:
                        pass


def entry(stream: str, tag: str, text: str) -> bytes:
    return f"{TIME} {stream} {tag} {text}\n".encode()


@define
class SlowFollower:
    """Reads a piece of a log whenever it is let to."""

    log: RotatedLog
    changes: LogChanges
    got: bytes = b""
    permits: trio.Semaphore = field(factory=lambda: trio.Semaphore(0))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        options = LogOptions(follow=True)
        body = LogReader(self.changes, pieces=SMALL_PIECES).read(
            self.log.place, options, POD, lambda: self.log.ended
        )
        async with aclosing(body):
            await anext(body)
            task_status.started()
            while True:
                await self.permits.acquire()
                try:
                    self.got += await anext(body)
                except StopAsyncIteration:
                    return


Step = tuple[str, int]
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.sampled_from(STREAMS), st.integers(1, 3)),
    st.tuples(st.sampled_from(["rename", "reopen", "close", "rotate"]), st.integers(0, 1)),
    st.tuples(st.just("pack"), st.just(0)),
    st.tuples(st.just("read"), st.integers(1, 20)),
)


def act(log: RotatedLog, step: Step) -> None:
    match step:
        case ("stdout" | "stderr" as stream, parts):
            log.print(stream, parts)
        case ("rename", _):
            log.rename()
        case ("reopen", split):
            log.reopen(split=bool(split))
        case ("close", split):
            log.close_rotated(split=bool(split))
        case ("rotate", split):
            log.rotate(split=bool(split))
        case ("pack", _):
            log.pack()


async def followed(log: RotatedLog, steps: Sequence[Step]) -> list[str]:
    """The lines of a follower that reads in some of the steps, and the rest at the end."""
    log.open()
    follower = SlowFollower(log, LogChanges())
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follower.changes.run)
            async with trio.open_nursery() as reading:
                await reading.start(follower.run)
                for step in steps:
                    act(log, step)
                    for _ in range(step[1] if step[0] == "read" else 0):
                        follower.permits.release()
                    await trio.testing.wait_all_tasks_blocked(0.001)
                log.reopen(split=False)
                log.close_rotated(split=False)
                log.ended = True
                seen = ObservedPod(uid=UID, name="pod", namespace="ns", observed_at=0.0)
                follower.changes.pod_changed(seen, seen)
                for _ in range(10_000):
                    follower.permits.release()
            nursery.cancel_scope.cancel()
    log.close()
    return follower.got.decode().splitlines()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "PAUSE_SECONDS", 0.0)


def of(stream: Stream, lines: Sequence[str]) -> list[str]:
    return [each for each in lines if each.startswith(stream)]


def lines_of(steps: Sequence[Step], kept_files: int) -> tuple[list[str], list[str]]:
    """The lines that are printed, and those that a follower has."""
    with TemporaryDirectory() as root:
        log = RotatedLog(Path(root), kept_files)
        got = trio.run(followed, log, steps)
        return log.printed, got


@settings(deadline=None, max_examples=50)
@given(st.lists(STEPS, max_size=40))
def test_a_follower_that_keeps_up_has_each_line_once(steps: list[Step]) -> None:
    printed, got = lines_of(steps, ALL_FILES)
    for stream in STREAMS:
        assert of(stream, got) == of(stream, printed)
    assert len(got) == len(printed)


@settings(deadline=None, max_examples=50)
@given(st.lists(STEPS, max_size=40), st.integers(1, 2))
def test_a_follower_that_falls_behind_loses_whole_lines_only(
    steps: list[Step], kept_files: int
) -> None:
    printed, got = lines_of(steps, kept_files)
    assert not Counter(got) - Counter(printed), "lines that were never printed, or twice"
    order = {text: number for number, text in enumerate(printed)}
    for stream in STREAMS:
        numbers = [order[text] for text in of(stream, got)]
        assert numbers == sorted(numbers)
    assert got[-1:] == printed[-1:]


async def test_the_half_of_a_line_whose_rest_is_lost_is_not_sent(tmp_path: Path) -> None:
    log = RotatedLog(tmp_path, kept_files=1)
    rotations = [("rotate", 1)] * 3
    with structlog.testing.capture_logs() as logged:
        got = await followed(log, [("stdout", 1), ("read", 2), *rotations, ("stdout", 1)])
    first, half, _, last_half, last = of("stdout", log.printed)
    assert of("stdout", got) == [first, last_half, last]
    assert half[:5] not in got
    assert set(got) <= set(log.printed)
    assert [each["event"] for each in logged] == ["log follower lost lines"]


async def test_a_part_of_a_line_is_sent_at_once_and_ended_if_the_rest_is_lost(
    tmp_path: Path,
) -> None:
    log = RotatedLog(tmp_path, kept_files=1)
    log.open()
    log.write_part("stdout", "a prompt: ")
    follower = SlowFollower(log, LogChanges())
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follower.changes.run)
            await nursery.start(follower.run)
            follower.permits.release()
            follower.permits.release()
            while follower.got != b"a prompt: ":
                await trio.testing.wait_all_tasks_blocked(0.001)
            for _ in range(3):
                log.rotate(split=True)
            log.print("stdout")
            log.ended = True
            for _ in range(100):
                follower.permits.release()
            while not follower.got.endswith(log.printed[-1].encode() + b"\n"):
                await trio.testing.wait_all_tasks_blocked(0.001)
            nursery.cancel_scope.cancel()
    log.close()
    assert follower.got.decode().splitlines()[0] == "a prompt: "
