"""A log that is rotated loses no line and has none twice, whenever the agent is killed.

Agents follow one another over one folder of logs, while a container prints. Each is killed before
some change of a file, or after it, and does nothing any more then, as a process that is gone; some
calls to the runtime fail, with or without effect. In the end all that was printed is there, in its
order, but for what the oldest files had that were too many.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import trio
from attrs import define
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.unit.logs.rotated_logs import NOTHING, Printing
from trio_kubelet.logs import rotating_files
from trio_kubelet.volumes.safe_open import rename_to_free_name

CHANGES = ("rename", "unlink", "open", "fsync")
FILES = 4
KEPT_LINES = 10 * (FILES - 1)


class KilledError(BaseException):
    """The process is gone."""


@define
class Killer:
    """Kills before or after the n-th change, and lets nothing be changed from then on."""

    left: int
    after: bool
    is_dead: bool = False

    def around(self, change: Callable[..., object]) -> Callable[..., object]:
        def changed(*args: object, **kwargs: object) -> object:
            if self.is_dead:
                raise KilledError
            self.left -= 1
            if self.left > 0:
                return change(*args, **kwargs)
            self.is_dead = True
            if self.after:
                change(*args, **kwargs)
            raise KilledError

        return changed

    @contextmanager
    def at_work(self) -> Iterator[None]:
        with ExitStack() as stack:
            restore = self.around(rename_to_free_name)
            stack.enter_context(patch.object(rotating_files, "rename_to_free_name", restore))
            for name in CHANGES:
                stack.enter_context(patch.object(os, name, self.around(getattr(os, name))))
            yield


@define
class Life:
    """One agent's life: what is printed meanwhile, second by second, and how it ends."""

    printed: list[int]
    reopens: list[str]
    killer: Killer


LIVES = st.lists(
    st.builds(
        Life,
        printed=st.lists(st.integers(0, 14), max_size=8),
        reopens=st.lists(st.sampled_from(["done", "refused", "lost"]), max_size=3),
        killer=st.builds(Killer, left=st.integers(1, 12), after=st.booleans()),
    ),
    max_size=4,
)


async def live(printing: Printing, printed: list[int]) -> None:
    rotator = printing.rotator(max_files=FILES, interval_seconds=3)
    rotator.pod_changed(NOTHING, printing.observed())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rotator.run)
        for lines in printed:
            printing.write(lines)
            await trio.sleep(2)
            await trio.testing.wait_all_tasks_blocked(0.005)
        nursery.cancel_scope.cancel()


def run_lives(printing: Printing, lives: list[Life]) -> None:
    for each in lives:
        printing.reopens[:] = each.reopens
        with each.killer.at_work(), suppress(BaseExceptionGroup, KilledError):
            trio.run(live, printing, each.printed, clock=MockClock(autojump_threshold=0.01))
    printing.reopens.clear()
    trio.run(live, printing, [0] * 6, clock=MockClock(autojump_threshold=0.01))


@settings(max_examples=60, deadline=None)
@given(lives=LIVES)
def test_no_line_is_lost_or_doubled_whenever_agents_are_killed(lives: list[Life]) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        with closing(Printing(root=folder)) as printing:
            run_lives(printing, lives)
            there, names = printing.read(), printing.names()
            assert there == list(range(printing.lines - len(there), printing.lines))
            assert len(there) >= min(printing.lines, KEPT_LINES), names
            assert names[0] == "0.log"
            assert len(names) <= FILES
            packed = [name.endswith(".gz") for name in names]
            assert packed == [False, *[True] * max(0, len(names) - 2), False][: len(names)]
    finally:
        shutil.rmtree(folder)
