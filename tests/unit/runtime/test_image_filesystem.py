"""The filesystem of the images: told of when it has no size, and only then."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.trio_clock import TrioClock
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.gate import RuntimeGate, RuntimeState
from trio_kubelet.runtime.images import filesystem
from trio_kubelet.runtime.images.filesystem import capacity_bytes, watch_image_filesystem
from trio_kubelet.telemetry import EventRecorder, Journal


class Runtime(RuntimeClient):
    """Keeps images at these places, or does not answer where there is None."""

    def __init__(self, *answers: list[str] | None) -> None:
        self._answers = list(answers)

    async def image_fs_info(self) -> cri.ImageFsInfoResponse:
        await trio.lowlevel.checkpoint()
        places = self._answers.pop(0)
        if places is None:
            raise RpcError(Code.UNAVAILABLE, "gone")
        return cri.ImageFsInfoResponse(
            image_filesystems=[
                cri.FilesystemUsage(fs_id=cri.FilesystemIdentifier(mountpoint=place))
                for place in places
            ]
        )


async def told(*answers: list[str] | None) -> list[tuple[float, str, str]]:
    """The node's events, with the minute of each, after one look for each answer."""
    journal, gate = Journal(TrioClock()), RuntimeGate()
    gate.update(RuntimeState(up=True, network_ready=True))
    events = EventRecorder(journal, "node")
    began = trio.current_time()
    seen: list[tuple[float, str, str]] = []
    events.on_event.add(
        lambda event: seen.append(
            (round(trio.current_time() - began) / 60, event.reason, event.message)
        )
    )
    with trio.move_on_after(300 * len(answers) - 1):
        await watch_image_filesystem(Runtime(*answers), gate, events, trio.CapacityLimiter(1))
    return seen


NO_SIZE = ("InvalidDiskCapacity", "invalid capacity 0 on image filesystem")


@pytest.mark.parametrize(
    ("answers", "minutes"),
    [
        ((["/"],), []),
        ((["/nowhere"],), [0]),
        ((["/proc"],), [0]),
        (([""],), [0]),
        ((["nul\0"],), [0]),
        (([],), []),
        ((["/", "/nowhere"],), []),
        ((["/nowhere"], ["/"], ["/nowhere"]), [0, 10]),
        ((None, ["/nowhere"]), [5]),
    ],
)
async def test_a_filesystem_without_size_is_told_of_every_five_minutes(
    autojump_clock: MockClock, answers: tuple[list[str] | None, ...], minutes: list[int]
) -> None:
    assert await told(*answers) == [(minute, *NO_SIZE) for minute in minutes]


def test_the_size_is_that_of_the_filesystem(tmp_path: Path) -> None:
    assert capacity_bytes([str(tmp_path)]) > 1 << 20


async def test_an_answer_that_is_stumbled_over_ends_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stumbles = [True]

    def stumble(places: list[str]) -> int:
        if stumbles:
            stumbles.pop()
            raise RuntimeError("a bug")
        return capacity_bytes(places)

    monkeypatch.setattr(filesystem, "capacity_bytes", stumble)
    assert await told(["/nowhere"], ["/nowhere"]) == [(5, *NO_SIZE)]
