"""Files of state that cannot be read, or would be larger than what is read."""

import json
from pathlib import Path

import pytest
import structlog
import trio
from trio.testing import MockClock

from trio_kubelet.kernel import state_file as module
from trio_kubelet.kernel.state_file import StateFile

UNREADABLE = Path("/proc/self/mem")
"""Opens, and cannot be read at its beginning: EIO."""


def state_file(path: Path, state: dict[str, str]) -> StateFile[dict[str, str]]:
    return StateFile(path, trio.CapacityLimiter(1), lambda: dict(state), json.dumps)


def names(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


async def test_a_file_that_cannot_be_read_now_is_read_when_it_can(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    path, found = tmp_path / "state", list[object]()
    path.symlink_to(UNREADABLE)

    async def read() -> None:
        found.append(await state_file(path, {}).read(json.loads))

    with structlog.testing.capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.sleep(100)
            assert not found
            path.unlink()
            path.write_text('{"a": "b"}')
    assert found == [{"a": "b"}]
    assert {(each["event"], each["error"][:10]) for each in logs} == {
        ("state file cannot be read, will retry", "[Errno 5] ")
    }
    assert names(tmp_path) == ["state"]


async def test_what_is_no_file_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.mkdir()
    assert await state_file(path, {}).read(json.loads) is None
    assert names(tmp_path) == ["state.damaged"]


async def test_no_file_is_written_that_could_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    state = {"a": "b"}
    file = state_file(tmp_path / "state", state)
    file.changed()
    assert await file.keep()
    state["c"] = "d" * 100
    file.changed()
    with structlog.testing.capture_logs() as logs:
        assert not await file.keep()
    (line,) = logs
    assert line["error"] == "it would have 119 bytes, must have at most 100"
    assert await file.read(json.loads) == {"a": "b"}
    del state["c"]
    assert await file.keep()
