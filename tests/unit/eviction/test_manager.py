"""The steps against pressure, on a machine whose figures the test sets."""

from itertools import pairwise
from pathlib import Path

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from state_machines.pod_ending import Ending
from tests.unit.eviction.candidates import MI, pod
from tests.unit.eviction.managed_node import HARD, running, settled
from trio_kubelet.config.eviction import ThresholdValue
from trio_kubelet.eviction.decision import Victim
from trio_kubelet.eviction.manager import (
    DISKS_LATE_SECONDS,
    LATE_SECONDS,
    LAYERS_SECONDS,
    RECLAIM_SECONDS,
    REMOVAL_SECONDS,
)
from trio_kubelet.eviction.records import EvictionRecords, record_of
from trio_kubelet.k8s import PodPhase


async def test_one_pod_after_the_other_goes_until_there_is_enough(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as node:
        for name, memory in (("a", 300), ("b", 400), ("c", 250)):
            node.add(name, memory)
        await settled()
    assert node.victims == ["b"]
    assert node.reasons() == ["EvictionThresholdMet", "Evicted"]


async def test_the_next_one_goes_only_after_the_last_one_has_ended_and_was_not_enough(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as node:
        node.ends_after = 7
        for name, memory in (("a", 500), ("b", 450), ("c", 950), ("d", 850)):
            node.add(name, memory)
        await settled()
    assert node.victims == ["c", "d", "a"]
    times = [at for at, _, _ in node.ended]
    assert all(later - earlier >= 7 for earlier, later in pairwise(times))


async def test_the_decision_is_on_the_disk_before_the_pod_is_ended(
    tmp_path: Path,
) -> None:
    found: list[Ending | None] = []
    async with running(tmp_path) as node:

        def end(uid: str, ending: Ending, stopped: trio.Event) -> None:
            text = (tmp_path / "evictions.json").read_text()
            found.append(ending if uid in text else None)
            node.end(uid, ending, stopped)

        node.manager._pods = evolve(node.manager._pods, end=end)
        node.add("a", 950)
        node.watch.look_now()
        with trio.fail_after(20):
            await node.any_ended.wait()
    assert [each is not None for each in found] == [True]


async def test_a_disk_is_cleared_before_a_pod_has_to_go(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as node:
        node.add("a", 10)
        node.reclaim_gives = 200
        node.machine.disk = 950
        await settled()
    assert node.reclaimed == ["dead containers", "unused images"]
    assert node.victims == []
    assert node.reasons() == ["EvictionThresholdMet"]


async def test_a_pod_goes_where_clearing_gave_too_little(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as node:
        node.add("a", 10)
        node.add("b", 20)
        node.machine.disk = 950
        await node.any_ended.wait()
        assert node.victims == ["b"]
        assert node.machine.asked_for_layers == [True]
        assert node.machine.asked_for_files == [True]
        assert node.reclaimed == ["dead containers", "unused images"]
        node.machine.disk = 0
        await settled()
        assert node.victims == ["b"]


async def test_no_pod_goes_for_a_disk_that_has_room_again_when_the_pods_are_measured(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path, thresholds=HARD[1:]) as node:
        node.machine.seconds_of_disks = 8
        node.add("a", 10)
        node.machine.disk = 950
        await node.machine.measures_pods.wait()
        await trio.sleep(4)
        node.machine.disk = 0
        await settled()
    assert node.victims == []


async def test_the_layers_of_a_pod_that_has_gone_are_given_back_before_another_one_goes(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as node:
        node.add("a", 10)
        node.add("b", 20)
        node.machine.disk = 950
        await node.any_ended.wait()
        await trio.sleep(node.ends_after + LAYERS_SECONDS - 1)
        node.machine.disk = 0
        await settled()
    assert node.victims == ["b"]


async def test_no_pod_goes_for_figures_that_lack_what_the_runtime_does_not_say(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as node:
        node.machine.problems = {"runtime": "away"}
        node.add("a", 10)
        node.machine.disk = 950
        await settled()
        assert node.victims == []
        node.machine.problems = {}
        await node.any_ended.wait()
        assert node.victims == ["a"]


async def test_memory_is_made_free_by_what_the_kernel_says_whatever_the_runtime_does_not_say(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as node:
        node.machine.problems = {"runtime": "away"}
        node.add("a", 950)
        await settled()
        assert node.victims == ["a"]


@pytest.mark.parametrize(
    ("is_disk_full", "waits"), [(False, REMOVAL_SECONDS), (True, DISKS_LATE_SECONDS)]
)
async def test_what_a_pod_leaves_is_waited_for_as_long_as_it_is_what_lacks(
    autojump_clock: MockClock, tmp_path: Path, is_disk_full: bool, waits: float
) -> None:
    async with running(tmp_path) as node:
        node.removal_hangs = True
        node.add("a", 950 if not is_disk_full else 10)
        node.add("b", 960 if not is_disk_full else 20)
        node.machine.disk = 950 if is_disk_full else 0
        await settled(DISKS_LATE_SECONDS + 20)
    assert node.victims == ["b", "a"]
    waited = node.ended[1][0] - node.ended[0][0]
    assert waits <= waited < waits + 10


async def test_a_pod_that_does_not_end_is_not_waited_for_for_ever(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as node:
        node.ends_after = float("inf")
        node.add("a", 500)
        node.add("b", 600)
        await settled(LATE_SECONDS + 20)
    assert node.victims == ["b", "a"]
    assert node.ended[1][0] - node.ended[0][0] >= LATE_SECONDS


async def test_a_soft_threshold_gives_pods_their_grace(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    soft = evolve(HARD[0], is_hard=False, grace_seconds=30)
    async with running(tmp_path, thresholds=(soft,)) as node:
        node.add("a", 950, terminationGracePeriodSeconds=7)
        await settled(60)
    ((_, _, ending),) = node.ended
    assert ending.grace_seconds == 7


async def test_a_hard_threshold_leaves_a_pod_that_goes_for_a_soft_one_no_more_time(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    soft = evolve(HARD[0], value=ThresholdValue.parse("300Mi"), is_hard=False, grace_seconds=5)
    async with running(tmp_path, thresholds=(*HARD, soft)) as node:
        node.takes_its_time = True
        node.add("a", 750, terminationGracePeriodSeconds=20)
        await node.any_ended.wait()
        await trio.sleep(3)
        node.add("b", 200)
        node.watch.look_now()
        await settled(30)
        (record,) = node.records
    assert [(uid, ending.grace_seconds) for _, uid, ending in node.ended] == [("a", 20), ("a", 1)]
    assert node.ended[1][0] - node.ended[0][0] < 4
    assert record.grace_seconds == 1


async def test_memory_does_not_wait_for_the_files_of_a_pod_that_went_for_a_disk(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as node:
        node.removal_hangs = True
        node.add("a", 10)
        node.add("b", 20)
        node.machine.disk = 950
        await node.any_ended.wait()
        node.add("c", 940)
        await settled(DISKS_LATE_SECONDS / 2)
    assert node.victims == ["b", "c"]
    assert node.ended[1][0] - node.ended[0][0] < REMOVAL_SECONDS + 5


async def test_a_disk_waits_for_the_files_of_a_pod_that_went_for_memory(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as node:
        node.removal_hangs = True
        node.add("a", 10)
        node.add("b", 960)
        await node.any_ended.wait()
        node.machine.disk = 950
        await settled(DISKS_LATE_SECONDS - 10)
        assert node.victims == ["b"]
        await settled(40)
    assert node.victims == ["b", "a"]


async def test_a_disk_is_cleared_though_no_pod_can_go_for_memory(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as node:
        node.machine.seconds_of_cgroups = 1
        node.machine.memory, node.machine.disk = 950, 950
        await settled(30)
    assert node.reclaimed


async def test_pods_that_break_their_own_limits_go_though_the_node_has_enough(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path, own_limits=True) as node:
        node.add("a", 10, limits={"ephemeral-storage": "5Mi"})
        node.add("b", 3, limits={"ephemeral-storage": "5Mi"})
        node.add("c", 10)
        await settled(20)
    assert node.victims == ["a"]
    (event,) = node.events
    assert event.message == (
        "Pod ephemeral local storage usage exceeds the total limit of containers 5Mi. "
    )
    assert node.ended[0][2].disruption == ""


async def test_no_pod_goes_for_a_disk_before_those_over_their_own_limits_have_gone(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path, own_limits=True) as node:
        node.ends_after = 9
        node.add("a", 10, limits={"ephemeral-storage": "5Mi"})
        node.add("c", 10)
        await node.any_ended.wait()
        node.machine.disk = 950
        node.watch.look_now()
        await settled(8)
        assert (node.victims, node.reclaimed) == (["a"], [])
        await settled(10)
        assert node.victims == ["a", "c"]


async def test_pods_that_exceed_their_own_limits_one_after_the_other_do_not_keep_a_disk_full(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    own, limited = [f"own-{number}" for number in range(20)], {"ephemeral-storage": "5Mi"}

    async def exceed_in_turn() -> None:
        for name in own:
            node.add(name, 10, limits=limited)
            await node.any_ended.wait()
            node.any_ended = trio.Event()

    async with running(tmp_path, own_limits=True) as node:
        node.ends_after = 15
        for name in own:
            node.add(name, 1, limits=limited)
        node.add("full", 50)
        node.nursery.start_soon(exceed_in_turn)
        await node.any_ended.wait()
        node.machine.disk = 950
        await settled(60)
    assert "full" in node.victims


async def test_memory_does_not_wait_for_pods_over_their_own_limits(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path, own_limits=True) as node:
        node.ends_after = 20
        node.add("a", 10, limits={"ephemeral-storage": "5Mi"})
        await node.any_ended.wait()
        node.add("b", 950)
        node.watch.look_now()
        await settled(2)
        assert node.victims == ["a", "b"]


async def test_a_runtime_that_hangs_while_it_clears_a_disk_keeps_no_pod(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as node:
        node.reclaim_hangs = True
        node.add("a", 10)
        node.machine.disk = 950
        with trio.fail_after(2 * RECLAIM_SECONDS + 15):
            await node.any_ended.wait()
    assert node.victims == ["a"]


async def test_memory_that_runs_out_waits_for_no_measurement_of_disks(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path, own_limits=True) as node:
        node.machine.seconds_of_disks = 15
        node.add("a", 3, limits={"ephemeral-storage": "5Mi"})
        await settled(12)
        node.add("b", 950)
        began_at = trio.current_time()
        node.watch.look_now()
        await node.any_ended.wait()
        assert node.victims == ["b"]
        assert node.ended[0][0] - began_at < 1


async def test_memory_that_is_free_again_lets_no_pod_go_by_its_name_for_a_disk(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as node:
        node.machine.seconds_of_disks, node.machine.seconds_of_cgroups = 8, 3
        node.add("a", 10)
        node.add("b", 20)
        node.machine.disk = 950
        await node.machine.measures_pods.wait()
        node.machine.memory = 950
        await node.machine.measures_cgroups.wait()
        node.measure()  # Memory is what the pods use again, and the kernel says so.
        node.watch.look_now()
        await node.any_ended.wait()
    assert node.machine.asked_for_layers == [True, False, True]
    assert node.victims == ["b"]


async def test_memory_that_runs_out_behind_a_measurement_of_disks_is_measured_anew(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as node:
        node.machine.seconds_of_disks = 8
        node.add("a", 10)
        node.add("b", 20)
        node.machine.when_measured = lambda: node.add("a", 950)
        node.machine.disk = 950
        await node.any_ended.wait()
    assert node.machine.asked_for_layers == [True, False]
    assert node.victims == ["a"]


async def test_a_node_without_a_pod_that_may_go_is_not_tried_again_at_each_look(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path) as node:
        node.machine.memory = 950
        await settled(35)
    assert 3 <= len(node.machine.asked_for_layers) <= 4
    assert len(node.machine.read_at) > 30


async def test_what_users_and_programs_are_told(autojump_clock: MockClock, tmp_path: Path) -> None:
    evicted: list[str] = []
    ages: list[tuple[str, float]] = []
    async with running(tmp_path) as node:
        node.manager.on_evicted.add(evicted.append)
        node.manager.on_decided.add(lambda signal, age: ages.append((str(signal), age)))
        node.add("a", 950, requests={"memory": "1Mi"})
        await settled(15)
    threshold, event = node.events
    assert (threshold.pod, threshold.message) == (None, "Attempting to reclaim memory")
    assert event.message == (
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. "
        "Container c was using 950Mi, request is 1Mi, has larger consumption of memory. "
    )
    assert event.annotations["starved_resource"] == "memory"
    assert evicted == ["memory.available"]
    assert [signal for signal, _ in ages] == ["memory.available"]
    assert 950 * MI


async def test_what_an_earlier_agent_began_to_evict_goes_before_another_one(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    victim = Victim(
        pod=pod("a"),
        cause="memory.available",
        message="",
        disruption="low",
        grace_seconds=1,
        annotations={},
    )
    records = EvictionRecords(tmp_path)
    await records.add([record_of(victim, 1)])
    async with running(tmp_path, pods={"a": 500, "b": 450}) as node:
        await settled(8)
        assert node.victims == []
        node.end("a", record_of(victim, 1).ending, trio.Event())
        await settled(20)
        assert node.victims == ["a"]


async def test_what_an_earlier_agent_began_to_evict_holds_up_others_for_seconds_only(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    victim = Victim(
        pod=pod("a"),
        cause="memory.available",
        message="",
        disruption="low",
        grace_seconds=1,
        annotations={},
    )
    records = EvictionRecords(tmp_path)
    await records.add([record_of(victim, 1)])
    async with running(tmp_path, pods={"a": 500, "b": 450}, all_known=False) as node:
        await node.any_ended.wait()
        assert node.victims == ["b"]
        assert trio.current_time() < 13


@pytest.mark.parametrize("told_first", [True, False])
async def test_a_record_is_closed_when_the_pod_is_gone_and_the_api_shows_its_end(
    told_first: bool, autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running(tmp_path, pods={"a": 950}) as node:
        is_gone, shown = False, node.pods["a"]
        node.manager._pods = evolve(
            node.manager._pods, is_gone=lambda _uid: is_gone, source_version=lambda _uid: shown
        )
        await node.any_ended.wait()
        await settled(15)
        failed = evolve(shown, status=evolve(shown.status, phase=PodPhase.FAILED))
        if told_first:
            shown = failed
        else:
            is_gone = True
        await settled(15)
        assert node.records.open_uids() == {"a"}
        is_gone, shown = True, failed
        await settled(15)
        assert node.records.open_uids() == frozenset()
