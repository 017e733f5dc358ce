"""The task that measures a node: at once, every ten seconds, and whatever fails."""

from pathlib import Path

import pytest
import structlog
import trio
from trio.testing import MockClock

from tests.trio_clock import TrioClock
from trio_kubelet.config.eviction import Signal, ThresholdValue
from trio_kubelet.hollow import HollowOptions, open_hollow_runtime
from trio_kubelet.node.observer import Pressures
from trio_kubelet.node.pressure_monitor import PressureMonitor
from trio_kubelet.node.signals import MeasurementSources
from trio_kubelet.node.thresholds import Threshold
from trio_kubelet.rpc import InProcess
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.telemetry import Journal

FULL = Threshold(signal=Signal.PIDS, value=ThresholdValue.parse("50"))
TASKS = "0.1 0.2 0.3 1/{} 4711\n"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A machine with 100 process ids, of which ten are in use."""
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/pid_max").write_text("100")
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemFree: 1 kB\nInactive(file): 1 kB\n")
    use(tmp_path, 10)
    return tmp_path


def use(host: Path, tasks: int) -> None:
    (host / "proc/loadavg").write_text(TASKS.format(tasks))


def monitor(
    host: Path,
    *thresholds: Threshold,
    client: RuntimeClient | None = None,
    journal: Journal | None = None,
) -> PressureMonitor:
    return PressureMonitor(
        thresholds=thresholds,
        transition_seconds=30,
        client=client,
        sources=MeasurementSources(root_folder=host, host=host),
        journal=journal or Journal(TrioClock()),
    )


async def test_the_node_is_measured_before_others_start_and_every_ten_seconds(
    autojump_clock: MockClock, host: Path
) -> None:
    journal = Journal(TrioClock())
    at = monitor(host, FULL, journal=journal)
    heard: list[Pressures | None] = []
    at.on_change.add(lambda: heard.append(at.current()))
    assert at.current() is None
    async with trio.open_nursery() as nursery:
        await nursery.start(at.run)
        assert at.current() == Pressures()
        use(host, 60)
        await trio.sleep(11)
        assert at.current() == Pressures(pid=True)
        use(host, 10)
        await trio.sleep(20)
        assert at.current() == Pressures(pid=True)
        await trio.sleep(20)
        assert at.current() == Pressures()
        nursery.cancel_scope.cancel()
    assert heard == [Pressures(pid=True), Pressures()]
    steps = [(entry.key, entry.source, entry.event, entry.target) for entry in journal.entries()]
    assert steps == [
        ("PIDPressure", "Relieved", "Crossed", "Under"),
        ("PIDPressure", "Under", "Kept", "Eased"),
        ("PIDPressure", "Eased", "Kept", "Relieved"),
    ]


async def test_what_is_not_measured_is_logged_once_and_measured_again(
    autojump_clock: MockClock, host: Path
) -> None:
    use(host, 60)
    words = (host / "proc/loadavg").read_text()
    (host / "proc/loadavg").write_text("nonsense")
    at = monitor(host, FULL)
    with structlog.testing.capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            await nursery.start(at.run)
            await trio.sleep(25)
            assert at.current() == Pressures()
            (host / "proc/loadavg").write_text(words)
            await trio.sleep(10)
            assert at.current() == Pressures(pid=True)
            nursery.cancel_scope.cancel()
    said = [entry["what"] for entry in logs if entry["event"] == "node measurement incomplete"]
    assert said == ["process ids"]
    assert [e["signal"] for e in logs if e["event"] == "eviction threshold crossed"] == [
        FULL.signal
    ]


async def test_the_disk_of_images_is_where_the_runtime_says(
    autojump_clock: MockClock, host: Path
) -> None:
    """The hollow runtime names a folder that is not there."""
    async with open_hollow_runtime(TrioClock(), HollowOptions()) as runtime:
        at = monitor(host, FULL, client=RuntimeClient(InProcess(runtime)))
        with structlog.testing.capture_logs() as logs:
            async with trio.open_nursery() as nursery:
                await nursery.start(at.run)
                nursery.cancel_scope.cancel()
    (entry,) = (e for e in logs if e["event"] == "node measurement incomplete")
    assert entry["what"] == "the disk of images"
    assert "/var/lib/hollow/images" in entry["error"]


async def test_a_runtime_that_does_not_answer_holds_up_no_measurement(
    autojump_clock: MockClock, host: Path
) -> None:
    class Silent(RuntimeClient):
        def __init__(self) -> None:
            pass

        async def image_fs_info(self) -> object:  # type: ignore[override]
            await trio.sleep_forever()
            raise AssertionError

    use(host, 60)
    at = monitor(host, FULL, client=Silent())
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            await nursery.start(at.run)
            nursery.cancel_scope.cancel()
    assert at.current() == Pressures(pid=True)
