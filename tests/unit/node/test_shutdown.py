"""The machine goes down: pods end in groups, and logind waits for them."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import structlog.testing
import trio
from attrs import define, field
from trio.testing import MockClock

from state_machines.pod import PodEvent
from state_machines.pod_ending import Ending
from tests.trio_clock import TrioClock
from tests.unit.node.fake_logind import FakeLogind
from trio_kubelet.k8s import ObjectMeta, Pod, PodSpec
from trio_kubelet.kernel.logind import open_logind
from trio_kubelet.kernel.system_bus import BusError
from trio_kubelet.node.shutdown import (
    FILE,
    GracePeriod,
    NodeShutdown,
    ShutdownPods,
    ShutdownTimes,
)
from trio_kubelet.node.shutdown_record import ShutdownRecord, ended_pod
from trio_kubelet.pod_source import CONFIG_SOURCE
from trio_kubelet.sources import Source
from trio_kubelet.telemetry import EventRecorder, Journal

CRITICAL = 2_000_000_000
PERIODS = (GracePeriod(0, 20), GracePeriod(1000, 10), GracePeriod(CRITICAL, 5))
ALL_SECONDS = 35
DELAY_SECONDS = 37
"""All of these, and what the last statuses need."""


def a_pod(name: str, priority: int | None = None, grace: int | None = None) -> Pod:
    return Pod(
        metadata=ObjectMeta(name=name, namespace="ns", uid=f"uid-{name}"),
        spec=PodSpec(priority=priority, termination_grace_period_seconds=grace),
    )


LOW, MIDDLE, HIGH = a_pod("low", 0), a_pod("middle", 1000), a_pod("high", CRITICAL + 1000)


@define(eq=False)
class Scene:
    """A machine with logind, and a node whose pods take `stop_seconds` to end."""

    folder: Path
    pods: tuple[Pod, ...] = (HIGH, LOW, MIDDLE)
    stop_seconds: dict[str, float] = field(factory=dict)
    tell_seconds: float = 0.0
    periods: tuple[GracePeriod, ...] = PERIODS
    ended: list[tuple[str, float, Ending]] = field(factory=list)
    gone: set[str] = field(factory=set)
    told: set[str] = field(factory=set)
    changes: int = 0
    logind: FakeLogind = field(init=False)
    shutdown: NodeShutdown = field(init=False)
    nursery: trio.Nursery = field(init=False)
    journal: Journal = field(factory=lambda: Journal(TrioClock()))

    def __attrs_post_init__(self) -> None:
        self.told = {pod.metadata.uid for pod in self.pods}  # That they run.
        self.logind = FakeLogind(self.folder, reloaded_seconds=DELAY_SECONDS)
        self.shutdown = NodeShutdown(
            periods=self.periods,
            open_logind=partial(open_logind, self.logind.address, self.folder / "99-kubelet.conf"),
            file=self.folder / FILE,
            clock=TrioClock(),
            journal=self.journal,
            recorder=EventRecorder(self.journal, "node-1"),
            record=ShutdownRecord(self.folder),
        )
        self.shutdown.on_change.add(self._changed)

    def _changed(self) -> None:
        self.changes += 1

    def end(self, uid: str, ending: Ending) -> None:
        self.ended.append((uid, trio.current_time(), ending))
        self.nursery.start_soon(self._stop, uid)

    async def _stop(self, uid: str) -> None:
        await trio.sleep(self.stop_seconds.get(uid.removeprefix("uid-"), 1))
        self.told.discard(uid)
        self.gone.add(uid)
        self.shutdown.look_again(uid, 1)
        await trio.sleep(self.tell_seconds)
        self.told.add(uid)
        self.shutdown.look_again(0.1)

    def when(self, name: str) -> float:
        """When the end of a pod began."""
        (at,) = (at for uid, at, _ in self.ended if uid == f"uid-{name}")
        return at

    def events(self) -> list[str]:
        return [e.cause for e in self.journal.entries() if e.event == "Shutdown"]

    async def announce(self, *, goes_down: bool) -> None:
        await self.logind.announce(goes_down=goes_down)
        await trio.testing.wait_all_tasks_blocked()


@asynccontextmanager
async def running(scene: Scene, *, guarded: bool = True) -> AsyncIterator[Scene]:
    pods = ShutdownPods(
        active=lambda: scene.pods,
        end=scene.end,
        is_gone=lambda uid: uid in scene.gone,
        is_told=lambda uid: uid in scene.told,
    )
    async with trio.open_nursery() as nursery:
        scene.nursery = nursery
        await nursery.start(scene.logind.run)
        nursery.start_soon(scene.shutdown.run, pods)
        if guarded:
            await scene.logind.came.wait()
            await trio.testing.wait_all_tasks_blocked()
        yield scene
        nursery.cancel_scope.cancel()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


async def test_groups_end_in_the_order_of_their_priorities_as_soon_as_they_can(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.stop_seconds = {"low": 3, "middle": 2, "high": 1}
    async with running(scene):
        began = trio.current_time()
        await scene.announce(goes_down=True)
        assert scene.logind.is_held_up()
        assert scene.shutdown.errors() == ("node is shutting down",)
        await trio.sleep(7)
        assert [scene.when(name) - began for name in ("low", "middle", "high")] == [0, 3, 5]
        assert not scene.logind.is_held_up()
        assert scene.shutdown.is_under_way
        assert scene.changes == 1
    assert scene.events() == ["Shutdown manager detected shutdown event"]


async def test_a_group_that_does_not_end_has_its_time_and_no_more(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.stop_seconds = {"low": 1000, "middle": 1000, "high": 1000}
    async with running(scene):
        began = trio.current_time()
        await scene.announce(goes_down=True)
        await trio.sleep(ALL_SECONDS + 0.5)
        assert [scene.when(name) - began for name in ("low", "middle", "high")] == [0, 20, 30]
        assert scene.logind.is_held_up(), "the last statuses have two seconds"
        await trio.sleep(2)
        assert not scene.logind.is_held_up()


async def test_the_machine_waits_for_statuses_of_pods_that_are_killed_at_the_very_end(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.stop_seconds = {"low": 20.5, "middle": 10.5, "high": 5.5}
    scene.tell_seconds = 0.5
    async with running(scene):
        await scene.announce(goes_down=True)
        await trio.sleep(ALL_SECONDS + 0.9)
        assert scene.logind.is_held_up()
        await trio.sleep(0.2)
        assert scene.told == scene.gone
        assert not scene.logind.is_held_up()


async def test_the_machine_waits_for_statuses_but_not_for_an_api_server_that_is_away(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.tell_seconds = 8
    async with running(scene):
        await scene.announce(goes_down=True)
        await trio.sleep(10.9)
        assert scene.gone == {"uid-low", "uid-middle", "uid-high"}
        assert scene.logind.is_held_up()
        await trio.sleep(0.2)
        assert not scene.logind.is_held_up()
        assert scene.told == scene.gone


async def test_statuses_that_never_arrive_do_not_hold_the_machine_longer_than_asked_for(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.tell_seconds = float("inf")
    async with running(scene):
        await scene.announce(goes_down=True)
        await trio.sleep(ALL_SECONDS - 1)
        assert scene.logind.is_held_up()
        await trio.sleep(2)
        assert not scene.logind.is_held_up()


async def test_a_machine_whose_api_server_was_a_static_pod_of_its_own_goes_down_soon(
    scene: Scene, autojump_clock: MockClock
) -> None:
    static = ObjectMeta(
        name="api", namespace="ns", uid="uid-api", annotations={CONFIG_SOURCE: Source.FILE}
    )
    scene.pods = (*scene.pods, Pod(metadata=static, spec=PodSpec(priority=CRITICAL + 1000)))
    scene.tell_seconds = float("inf")
    async with running(scene):
        await scene.announce(goes_down=True)
        await trio.sleep(4.9)
        assert len(scene.gone) == 4
        assert scene.logind.is_held_up(), "the last statuses have two seconds"
        await trio.sleep(0.2)
        assert not scene.logind.is_held_up()


async def test_a_machine_waits_for_no_status_of_a_static_pod(
    scene: Scene, autojump_clock: MockClock
) -> None:
    static = ObjectMeta(
        name="dns", namespace="ns", uid="uid-dns", annotations={CONFIG_SOURCE: Source.FILE}
    )
    scene.pods, scene.tell_seconds = (Pod(metadata=static, spec=PodSpec()),), float("inf")
    async with running(scene):
        await scene.announce(goes_down=True)
        await trio.sleep(1.1)
        assert not scene.logind.is_held_up()


async def test_a_shutdown_that_is_called_off_leaves_the_pods_that_were_not_ended_yet(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.stop_seconds = {"low": 15}
    async with running(scene):
        await scene.announce(goes_down=True)
        await trio.sleep(10)
        await scene.announce(goes_down=False)
        assert not scene.shutdown.is_under_way
        assert scene.shutdown.errors() == ()
        await trio.sleep(100)
        assert [uid for uid, *_ in scene.ended] == ["uid-low"]
        assert scene.logind.is_held_up(), "the next shutdown waits as well"
        assert scene.changes == 2
    assert scene.events()[-1] == "Shutdown manager detected shutdown cancellation"


async def test_a_shutdown_may_be_called_off_as_its_last_pod_ends(
    scene: Scene, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def called_off_meanwhile(*_args: object, **_options: object) -> None:
        """The end of a write to the disk, and news of logind in the same turn of the loop."""
        if len(scene.gone) == len(scene.pods):
            scene.shutdown._call_off()
        await trio.lowlevel.cancel_shielded_checkpoint()

    async with running(scene):
        monkeypatch.setattr("trio_kubelet.node.shutdown.run_in_thread", called_off_meanwhile)
        await scene.announce(goes_down=True)
        await trio.sleep(5)
        assert not scene.shutdown.is_under_way
        assert scene.logind.is_held_up()


async def test_after_a_shutdown_that_was_called_off_the_next_one_ends_the_rest(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with running(scene):
        await scene.announce(goes_down=True)
        await trio.sleep(0.5)
        await scene.announce(goes_down=False)
        scene.pods = (HIGH, MIDDLE)
        await scene.announce(goes_down=True)
        await trio.sleep(5)
        assert [uid for uid, *_ in scene.ended] == ["uid-low", "uid-middle", "uid-high"]
        assert not scene.logind.is_held_up()


async def test_a_logind_that_begins_anew_gives_a_new_lock_before_the_old_one_goes(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with running(scene):
        await scene.logind.begin_anew()
        await trio.sleep(2)
        assert len(scene.logind.locks) == 2
        assert scene.logind.is_held_up()
        await scene.announce(goes_down=True)
        await trio.sleep(5)
        assert len(scene.ended) == 3


async def test_a_shutdown_that_was_announced_while_the_bus_was_away_is_found(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with running(scene):
        scene.logind.is_shutting_down = True
        await scene.logind.connections[0].aclose()
        await trio.sleep(5)
        assert len(scene.ended) == 3


async def test_a_bus_that_breaks_in_the_middle_calls_nothing_off(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.stop_seconds = {"low": 10}
    async with running(scene):
        await scene.announce(goes_down=True)
        await scene.logind.connections[0].aclose()
        await trio.sleep(5)
        assert scene.shutdown.is_under_way
        assert scene.logind.is_held_up()
        await trio.sleep(10)
        assert len(scene.ended) == 3
        assert not scene.logind.is_held_up()


async def test_a_shutdown_that_ended_while_the_bus_was_away_is_called_off(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.stop_seconds = {"low": 10}
    async with running(scene):
        await scene.announce(goes_down=True)
        scene.logind.is_shutting_down = False
        await scene.logind.connections[0].aclose()
        await trio.sleep(30)
        assert not scene.shutdown.is_under_way
        assert len(scene.ended) == 1


async def test_a_lock_that_is_refused_is_asked_for_again(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.logind.refuses_locks = True
    async with running(scene, guarded=False):
        await trio.sleep(10)
        assert not scene.logind.is_held_up()
        scene.logind.refuses_locks = False
        await scene.logind.came.wait()
        assert scene.logind.is_held_up()


@pytest.mark.parametrize(
    "odd",
    [
        ("Get", "v", (("s", "soon"),)),
        ("Get", "", ()),
        ("Get", "s", ("5000000",)),
        ("Inhibit", "s", ("yours",)),
        ("Inhibit", "", ()),
    ],
)
async def test_a_logind_that_answers_oddly_is_asked_again(
    scene: Scene, autojump_clock: MockClock, odd: tuple[str, str, tuple[object, ...]]
) -> None:
    scene.logind.odd = odd
    async with running(scene, guarded=False):
        await trio.sleep(10)
        scene.logind.odd = None
        await scene.logind.came.wait()
        assert scene.logind.is_held_up()


@pytest.mark.parametrize("address", ["nonsense", "unix:nonsense", "tcp:host=localhost,port=1"])
async def test_a_bus_whose_address_cannot_be_used_is_away(address: str) -> None:
    with pytest.raises(BusError, match="the address of the bus cannot be used"):
        async with open_logind(address):
            pass


async def test_a_bus_that_hangs_is_not_waited_for(scene: Scene, autojump_clock: MockClock) -> None:
    scene.logind.hangs = True
    async with running(scene, guarded=False):
        await trio.sleep(10)
        scene.logind.hangs = False
        await scene.logind.came.wait()
        assert scene.logind.is_held_up()


async def test_a_lock_is_taken_though_logind_cannot_be_told_how_long_to_wait(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.logind.refuses_reloads = True
    async with running(scene):
        await trio.sleep(10)
        await scene.announce(goes_down=True)
        await trio.sleep(5)
        assert len(scene.ended) == 3
        assert not scene.logind.is_held_up()


async def test_what_logind_grants_is_shared_by_all_groups(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.logind.reloaded_seconds = 9
    scene.stop_seconds = {pod.metadata.name: 1000 for pod in scene.pods}
    async with running(scene):
        await trio.sleep(10)
        await scene.announce(goes_down=True)
        began = scene.when("low")
        await trio.sleep(8.9)
        assert scene.logind.is_held_up()
        await trio.sleep(0.2)
        assert not scene.logind.is_held_up()
    assert (scene.when("middle") - began, scene.when("high") - began) == (4, 6)
    graces = {uid: ending.grace_seconds for uid, _, ending in scene.ended}
    assert graces == {"uid-low": 4, "uid-middle": 2, "uid-high": 1}


async def test_a_message_that_is_too_long_is_not_kept(
    scene: Scene, autojump_clock: MockClock
) -> None:
    with structlog.testing.capture_logs() as logs:
        async with running(scene):
            await scene.logind.send_too_much()
            await trio.sleep(10)
            await scene.announce(goes_down=True)
            await trio.sleep(5)
    assert len(scene.ended) == 3
    (away,) = (each for each in logs if each["event"] == "logind is away, will retry")
    assert "of more than 1048576 bytes" in away["error"]


async def test_nobody_else_can_announce_a_shutdown(scene: Scene, autojump_clock: MockClock) -> None:
    async with running(scene):
        await scene.logind.forge()
        await trio.sleep(5)
        assert scene.ended == []
    rules = [body[0] for method, body in scene.logind.calls if method == "AddMatch"]
    assert all("sender='org.freedesktop." in rule for rule in rules)


async def test_logind_is_told_how_long_to_wait(scene: Scene, autojump_clock: MockClock) -> None:
    async with running(scene):
        await trio.sleep(1)
        assert (scene.folder / "99-kubelet.conf").read_text() == (
            "# Kubelet logind override\n[Login]\nInhibitDelayMaxSec=37\n"
        )
    assert ("KillUnit", ("systemd-logind.service", "all", 1)) in scene.logind.calls


async def test_a_logind_that_waits_long_enough_is_told_nothing(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.logind.delay_seconds = 100
    async with running(scene):
        assert not (scene.folder / "99-kubelet.conf").exists()
    assert "KillUnit" not in {method for method, _ in scene.logind.calls}


async def test_times_of_the_last_shutdown_are_kept(scene: Scene, autojump_clock: MockClock) -> None:
    async with running(scene):
        await scene.announce(goes_down=True)
        await trio.sleep(10)
        began, ended = scene.shutdown.times.seconds
        assert ended - began == 3
    kept = json.loads((scene.folder / FILE).read_text())
    assert kept.keys() == {"startTime", "endTime"}
    again = Scene(scene.folder)
    async with running(again):
        assert again.shutdown.times.start_ns // 10**9 == scene.shutdown.times.start_ns // 10**9


@pytest.mark.parametrize("left", [b"", b"\xff", b"[]", b'{"startTime": 7}', b"[" * 100_000])
async def test_a_file_that_says_nothing_is_no_time(
    scene: Scene, autojump_clock: MockClock, left: bytes
) -> None:
    (scene.folder / FILE).write_bytes(left)
    async with running(scene):
        assert scene.shutdown.times == ShutdownTimes()


async def test_without_periods_logind_is_not_asked(tmp_path: Path) -> None:
    scene = Scene(tmp_path, periods=())
    async with running(scene, guarded=False):
        await trio.testing.wait_all_tasks_blocked()
        assert scene.logind.calls == []


@pytest.mark.parametrize(
    ("own", "given_seconds"), [(None, 20), (5, 5), (20, 20), (3600, 20), (0, 0)]
)
def test_a_pod_has_its_own_time_but_not_more_than_its_group(
    own: int | None, given_seconds: int
) -> None:
    assert ended_pod(a_pod("p", grace=own), 20).ending == Ending(
        causes=(PodEvent.NODE_SHUTDOWN,),
        grace_seconds=given_seconds,
        reason="Terminated",
        message="Pod was terminated in response to imminent node shutdown.",
        disruption="Pod was terminated in response to imminent node shutdown.",
    )
