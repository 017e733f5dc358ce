"""The kernel's queue of events: how much of it is read at a time."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from tests.turns import making_test_data
from trio_kubelet.kernel.inotify import Inotify, InotifyEvent, InotifyMask

WRITES = 6000
"""Of two files in turns, so that no two events of the kernel's queue, which has 16,384, are one."""


@pytest.fixture
def files(tmp_path: Path) -> Iterator[tuple[int, ...]]:
    with ExitStack() as stack:
        opened = [stack.enter_context((tmp_path / name).open("wb")) for name in ("a", "b")]
        yield tuple(file.fileno() for file in opened)


async def test_a_queue_is_read_in_pieces_and_nothing_of_it_is_lost(
    tmp_path: Path, files: tuple[int, ...]
) -> None:
    with Inotify() as inotify, trio.fail_after(60):
        inotify.watch(tmp_path, InotifyMask.MODIFY)
        with making_test_data():
            for number in range(WRITES):
                os.pwrite(files[number % 2], b"x", 0)
        pieces: list[tuple[InotifyEvent, ...]] = []
        while sum(map(len, pieces)) < WRITES:
            pieces.append(await inotify.events())
    assert max(map(len, pieces)) < WRITES / 4
    assert [event.name for piece in pieces for event in piece] == ["a", "b"] * (WRITES // 2)
