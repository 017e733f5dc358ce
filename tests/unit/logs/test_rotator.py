"""Rotation of the log of a container that prints, with real files and threads."""

import errno
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.unit.logs.rotated_logs import LINE_BYTES, NOTHING, Printing
from trio_kubelet.logs import rotating_files
from trio_kubelet.logs.rotation import RotationPolicy
from trio_kubelet.logs.rotator import LogRotator
from trio_kubelet.runtime.observed import ObservedState

ROTATED = "0.log.20260101-00000"


@pytest.fixture
def printing(tmp_path: Path) -> Iterator[Printing]:
    with closing(Printing(root=tmp_path)) as made:
        yield made


@asynccontextmanager
async def running(rotator: LogRotator, printing: Printing) -> AsyncIterator[None]:
    rotator.pod_changed(NOTHING, printing.observed())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rotator.run)
        yield
        nursery.cancel_scope.cancel()


async def until_idle(seconds: float) -> None:
    """Let time pass in steps, so that threads come to their ends."""
    for _ in range(round(seconds)):
        await trio.sleep(1)
        await trio.testing.wait_all_tasks_blocked(0.01)


async def test_a_log_that_is_not_full_is_left_alone(
    autojump_clock: MockClock, printing: Printing
) -> None:
    printing.write(9)
    async with running(printing.rotator(), printing):
        await until_idle(30)
    assert (printing.names(), printing.calls) == (["0.log"], 0)


async def test_a_full_log_is_renamed_and_made_anew(
    autojump_clock: MockClock, printing: Printing
) -> None:
    printing.write(10)
    async with running(printing.rotator(), printing):
        await until_idle(3)
        printing.write(1)
        assert len(printing.names()) == 2
        assert printing.path.stat().st_size == LINE_BYTES
        assert printing.read() == list(range(11))


async def test_no_more_files_than_allowed_and_all_but_the_newest_packed(
    autojump_clock: MockClock, printing: Printing
) -> None:
    async with running(printing.rotator(max_files=4), printing):
        for _ in range(8):
            printing.write(10)
            await until_idle(12)
    names = printing.names()
    assert len(names) == 4
    assert [name.endswith(".gz") for name in names] == [False, True, True, False]
    assert printing.read() == list(range(50, 80))


async def test_a_smaller_size_holds_at_once(autojump_clock: MockClock, printing: Printing) -> None:
    printing.write(9)
    rotator = printing.rotator(interval_seconds=10_000)
    async with running(rotator, printing):
        await until_idle(30)
        assert printing.calls == 0
        rotator.use(RotationPolicy(max_bytes=50, max_files=3, interval_seconds=10_000))
        await until_idle(3)
        assert printing.calls == 1


async def test_packing_goes_on_with_another_number_of_threads(
    autojump_clock: MockClock, printing: Printing
) -> None:
    rotator = printing.rotator(max_files=4)
    async with running(rotator, printing):
        for workers in (2, 1, 3):
            rotator.use_workers(workers)
            printing.write(10)
            await until_idle(12)
    assert [name.endswith(".gz") for name in printing.names()] == [False, True, True, False]


async def test_a_log_that_grows_fast_is_looked_at_sooner(
    autojump_clock: MockClock, printing: Printing
) -> None:
    async with running(printing.rotator(interval_seconds=1000), printing):
        for _ in range(60):
            printing.write(5)
            await until_idle(1)
        assert printing.calls >= 15
        sizes = [each.stat().st_size for each in printing.path.parent.iterdir()]
        assert max(sizes) <= 30 * LINE_BYTES


@pytest.mark.parametrize("outcome", ["refused", "lost"])
async def test_a_log_that_is_not_made_anew_gets_its_name_back(
    autojump_clock: MockClock, printing: Printing, outcome: str
) -> None:
    printing.reopens += [outcome]
    printing.write(10)
    async with running(printing.rotator(), printing):
        await until_idle(3)
        assert printing.names()[0] == "0.log"
        assert len(printing.names()) == (1 if outcome == "refused" else 2)
        printing.write(10)
        await until_idle(30)
        assert printing.read() == list(range(20))
        assert len(printing.names()) > 1


async def test_a_log_whose_runtime_does_not_answer_has_its_name_when_the_agent_stops(
    autojump_clock: MockClock, printing: Printing, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(_self: Printing, _id: str) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(Printing, "reopen_container_log", hang)
    printing.write(10)
    async with running(printing.rotator(), printing):
        await until_idle(3)
        assert "0.log" not in printing.names()
    assert printing.names() == ["0.log"]


@pytest.mark.parametrize("ended", [False, True])
async def test_a_rotation_that_a_killed_agent_left_half_done_is_finished(
    autojump_clock: MockClock, printing: Printing, ended: bool
) -> None:
    printing.write(10)
    printing.path.rename(f"{printing.path}{ROTATED[5:]}1")
    printing.write(2)
    rotator = printing.rotator()
    state = ObservedState.EXITED if ended else ObservedState.RUNNING
    rotator.pod_changed(NOTHING, printing.observed(state))
    with trio.move_on_after(5):
        await rotator.run()
    assert printing.names() == (["0.log"] if ended else ["0.log", f"{ROTATED}1"])
    assert printing.calls == (0 if ended else 1)
    assert printing.read() == list(range(12))


async def test_packing_that_a_killed_agent_left_half_done_is_finished_of_dead_containers_too(
    autojump_clock: MockClock, printing: Printing
) -> None:
    folder = printing.path.parent
    printing.write(3)
    for number in (1, 2, 3):
        (folder / f"{ROTATED}{number}").write_text("")
    (folder / f"{ROTATED}1.gz").write_bytes(b"packed to its end")
    (folder / f"{ROTATED}2.tmp").write_bytes(b"cut off")
    rotator = printing.rotator(max_files=4)
    rotator.pod_changed(NOTHING, printing.observed(ObservedState.EXITED))
    with trio.move_on_after(5):
        await rotator.run()
    assert printing.names() == ["0.log", f"{ROTATED}1.gz", f"{ROTATED}2.gz", f"{ROTATED}3"]


async def test_on_a_full_disk_the_oldest_goes_and_rotation_goes_on(
    autojump_clock: MockClock, printing: Printing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(rotating_files, "_write", full)
    async with running(printing.rotator(max_files=5), printing):
        for _ in range(6):
            printing.write(10)
            await until_idle(15)
    names = printing.names()
    assert not [name for name in names if name.endswith((".gz", ".tmp"))]
    assert len(names) <= 3
    assert printing.read()[-10:] == list(range(50, 60))


async def test_a_folder_that_has_gone_and_a_log_that_is_none_hold_up_nobody(
    autojump_clock: MockClock, printing: Printing, tmp_path: Path
) -> None:
    gone = Printing(root=tmp_path / "other", id="gone")
    gone.close()
    gone.path.unlink()
    gone.path.parent.rmdir()
    link = Printing(root=tmp_path / "third", id="link")
    link.close()
    link.path.unlink()
    link.path.symlink_to(printing.path)
    printing.write(10)
    rotator = printing.rotator()
    for other in (gone, link):
        rotator.pod_changed(NOTHING, other.observed())
    async with running(rotator, printing):
        await until_idle(12)
        assert len(printing.names()) == 2
        assert link.names() == ["0.log"]


async def test_a_log_is_forgotten_with_its_container(
    autojump_clock: MockClock, printing: Printing
) -> None:
    rotator = printing.rotator()
    async with running(rotator, printing):
        rotator.pod_changed(printing.observed(), NOTHING)
        printing.write(50)
        await until_idle(12)
    assert printing.names() == ["0.log"]


async def test_a_negative_size_turns_rotation_off(
    autojump_clock: MockClock, printing: Printing
) -> None:
    printing.write(100)
    async with running(printing.rotator(max_bytes=-1), printing):
        await until_idle(12)
    assert printing.names() == ["0.log"]
