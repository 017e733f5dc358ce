"""Whether the sync loop gets on, as the health endpoint and systemd's watchdog are told."""

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from tests.trio_clock import TrioClock
from tests.unit.sync.sync_loops import make_pod, running
from trio_kubelet.config.model import KubeletConfiguration, NodeOptions
from trio_kubelet.config.settings import Settings
from trio_kubelet.debugging import LoopMeter
from trio_kubelet.k8s import Pod
from trio_kubelet.ports.listeners import Listeners
from trio_kubelet.server import AnswerWriters
from trio_kubelet.sources import PodOperation
from trio_kubelet.sync.monitor import LoopMonitor
from trio_kubelet.sync.undecided import UndecidedPods
from trio_kubelet.telemetry import Journal

A, B = make_pod("a"), make_pod("b")


def health(monitor: LoopMonitor) -> tuple[str, bool]:
    """What /healthz/syncloop would say is wrong, and whether systemd's watchdog would be fed."""
    settings = Settings(configuration=KubeletConfiguration(), options=NodeOptions())
    listeners = Listeners(
        settings=settings,
        journal=Journal(TrioClock()),
        loop_meter=LoopMeter(),
        monitor=monitor,
        writers=AnswerWriters(),
        pods=lambda: (),
    )
    return listeners.loop_health(), monitor.seconds_busy() < 60


@pytest.mark.parametrize("up", [True, False], ids=["nothing to do", "no runtime"])
async def test_a_loop_that_waits_is_healthy(autojump_clock: MockClock, up: bool) -> None:
    async with running(up=up) as at:
        await at.say(PodOperation.ADD, A)
        await at.say(PodOperation.ADD, B)
        await trio.sleep(3600)
        assert health(at.monitor) == ("", True)


async def test_housekeeping_that_waits_for_a_disk_is_logged_and_no_reason_for_a_restart(
    autojump_clock: MockClock,
) -> None:
    async def wait_for_disk() -> None:
        await answered.wait()

    def told() -> list[tuple[str, float]]:
        return [(entry["event"], entry["seconds"]) for entry in logged if "seconds" in entry]

    answered = trio.Event()
    with capture_logs() as logged:
        async with running(clean_up=wait_for_disk) as at:
            await trio.sleep(29)
            assert told() == []
            await trio.sleep(3600)
            assert health(at.monitor) == ("", True)
            assert told() == [("housekeeping is taking longer than expected", 30)]
            answered.set()
            await trio.sleep(3600)
            assert told()[1:] == [("housekeeping took longer than expected", 3627)]


async def test_housekeeping_that_fails_is_logged_and_tried_again(
    autojump_clock: MockClock,
) -> None:
    async def fail() -> None:
        rounds.append(trio.current_time())
        raise RuntimeError("the disk is gone")

    rounds: list[float] = []
    with capture_logs() as logged:
        async with running(clean_up=fail):
            await trio.sleep(5)
    assert rounds == [2, 4]
    assert [each["event"] for each in logged] == ["housekeeping failed"] * 2


async def test_a_consumer_is_seen_while_it_is_at_a_message(autojump_clock: MockClock) -> None:
    seen: list[str] = []

    def look(_pod: Pod) -> bool:
        seen.append(at.monitor.slowest()[0])
        return False

    async with running(undecided=UndecidedPods(look, trio.sleep_forever)) as at:
        await at.say(PodOperation.ADD, A)
        assert seen == ["config"]
        assert at.monitor.slowest() == ("", 0)


async def test_a_consumer_that_is_stuck_is_told_of_and_then_ended(
    autojump_clock: MockClock,
) -> None:
    monitor = LoopMonitor()
    with monitor.busy("config"):
        await trio.sleep(29)
        assert health(monitor) == ("", True)
        await trio.sleep(3)
        assert health(monitor) == ("config stuck for 32 s", True)
        await trio.sleep(30)
        assert health(monitor) == ("config stuck for 62 s", False)
    assert health(monitor) == ("", True)
