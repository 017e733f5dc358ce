"""The writer of statuses: what it sends, when, and what failures do to it."""

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from tests.unit.status.api import UNREACHABLE, a_named_pod
from tests.unit.status.test_merge import condition
from tests.unit.status.writers import RUNNING, SOON, SUCCEEDED, refused, running
from trio_kubelet.k8s import (
    PodStatus,
)
from trio_kubelet.k8s.client import ApiError
from trio_kubelet.status.writer import (
    PODS_IN_FLIGHT,
    RESYNC_SECONDS,
    RETRY,
)


async def test_a_status_is_sent_at_once(autojump_clock: MockClock) -> None:
    async with running("p") as node:
        node.report("p", RUNNING)
        await trio.testing.wait_all_tasks_blocked()
        assert node.phase("p") == "Running"
        await node.until(["patch p status"])


async def test_a_status_that_the_api_has_is_not_sent(autojump_clock: MockClock) -> None:
    async with running() as node:
        node.api.put(evolve(a_named_pod("p"), status=RUNNING))
        node.report("p", RUNNING)
        await node.until([], within=3 * RESYNC_SECONDS)


async def test_a_status_that_was_overtaken_is_never_sent(autojump_clock: MockClock) -> None:
    async with running("p") as node:
        node.api.faults = [1.0]
        node.report("p", PodStatus(phase="Pending"))
        await trio.sleep(0.5)
        node.report("p", PodStatus(phase="Running", reason="first"))
        node.report("p", PodStatus(phase="Running", reason="second"))
        await trio.sleep(SOON)
        assert [body for _, body in node.api.patches] == [
            {"phase": "Pending"},
            {"phase": "Running", "reason": "second"},
        ]


@pytest.mark.parametrize(
    ("faults", "seconds"),
    [([], 0), ([4.0], 4), ([refused(429, "TooManyRequests", retry_after_seconds=20)], 20)],
)
async def test_it_is_told_how_long_the_api_took_to_show_the_newest_status(
    autojump_clock: MockClock, faults: list[ApiError | str], seconds: float
) -> None:
    told: list[float] = []
    async with running("p") as node:
        node.writer.on_synced.add(told.append)
        node.api.faults = list(faults)
        node.report("p", PodStatus(phase="Pending"))
        await trio.sleep(1)
        node.report("p", RUNNING)
        await trio.sleep(3 * RESYNC_SECONDS)
        node.report("p", RUNNING)
        await trio.sleep(SOON)
        assert node.phase("p") == "Running"
    assert told == [pytest.approx(each, abs=0.1) for each in ([seconds] if seconds else [0, 0])]


async def test_a_change_that_was_taken_back_before_it_was_sent_is_nothing_to_tell(
    autojump_clock: MockClock,
) -> None:
    told: list[float] = []
    async with running("p") as node:
        node.writer.on_synced.add(told.append)
        for status in (SUCCEEDED, PodStatus()):
            node.report("p", status)
        await trio.sleep(SOON)
        assert node.api.log == []
        node.report("p", RUNNING)
        await trio.sleep(SOON)
    assert told == [0]


async def test_a_status_that_is_there_before_its_mirror_is_sent_with_it(
    autojump_clock: MockClock,
) -> None:
    told: list[float] = []
    async with running() as node:
        node.writer.on_synced.add(told.append)
        node.api.faults = [2.0]
        node.report("p", RUNNING)
        await trio.sleep(SOON)
        node.add("p")
        await trio.sleep(SOON)
    assert told == [2]


async def test_a_pod_that_the_api_does_not_have_has_nothing_to_send(
    autojump_clock: MockClock,
) -> None:
    async with running() as node:
        node.report("p", RUNNING)
        await node.until([])
        node.add("p")
        await node.until(["patch p status"])


async def test_many_pods_of_a_namespace_hold_up_no_other(autojump_clock: MockClock) -> None:
    names, other = [f"p{i}" for i in range(40)], a_named_pod("other")
    async with running(*names) as node:
        node.api.put(evolve(other, metadata=evolve(other.metadata, namespace="elsewhere")))
        for name in (*names, "other"):
            node.report(name, RUNNING)
        await trio.sleep(1)
        assert node.api.log.index("patch other status") < 2 * PODS_IN_FLIGHT


async def test_a_slow_answer_holds_up_its_own_pod_only(autojump_clock: MockClock) -> None:
    names = [f"p{i}" for i in range(20)]
    async with running(*names) as node:
        node.api.faults = [1000.0]
        node.report("p0", RUNNING)
        await trio.sleep(1)
        for name in names:
            node.report(name, RUNNING)
        await trio.sleep(1)
        assert [node.phase(name) for name in names] == ["", *["Running"] * 19]
        assert node.api.most_in_flight == 8


@pytest.mark.parametrize(
    "fault",
    [
        UNREACHABLE,
        refused(500, "InternalError"),
        refused(503, "ServiceUnavailable"),
        refused(403, "Forbidden"),
        refused(409, "Conflict"),
        refused(401, "Unauthorized"),
        "lost",
    ],
)
async def test_what_failed_is_sent_again(autojump_clock: MockClock, fault: ApiError | str) -> None:
    async with running("p") as node:
        node.api.faults = [fault, fault, fault]
        node.report("p", RUNNING)
        await trio.sleep(1.5)
        assert node.phase("p") == "Running"


async def test_the_server_says_how_long_to_wait(autojump_clock: MockClock) -> None:
    async with running("p", "q") as node:
        node.api.faults = [refused(429, "TooManyRequests", retry_after_seconds=20)]
        node.report("p", RUNNING)
        await trio.sleep(1)
        node.report("q", RUNNING)
        await trio.sleep(15)
        assert (node.phase("p"), node.phase("q")) == ("", "Running")
        await trio.sleep(15)
        assert node.phase("p") == "Running"


async def test_after_an_outage_of_hours_the_newest_statuses_come_at_once(
    autojump_clock: MockClock,
) -> None:
    names = ["p", "q"]
    async with running(*names) as node:
        node.api.faults = [UNREACHABLE] * 1_000_000
        for name in names:
            node.report(name, PodStatus(phase="Pending"))
        await trio.sleep(4 * 3600)
        assert len(node.api.log) < len(names) * 4 * 3600 / RETRY.cap_seconds
        for name in names:
            node.report(name, RUNNING)
        node.api.faults = []
        node.writer.synced()
        await trio.sleep(0.1)
        assert {node.phase(name) for name in names} == {"Running"}


async def test_one_answer_wakes_all_that_wait_for_one(autojump_clock: MockClock) -> None:
    async with running("p", "q") as node:
        node.api.faults = [UNREACHABLE] * 30
        node.report("p", RUNNING)
        await trio.sleep(SOON)
        node.api.faults = []
        before = trio.current_time()
        node.report("q", RUNNING)
        await trio.sleep(0.01)
        assert (node.phase("p"), trio.current_time() - before < 1) == ("Running", True)


async def test_a_pod_that_is_gone_is_forgotten(autojump_clock: MockClock) -> None:
    async with running("p") as node:
        node.watching = False
        node.api.remove("p")
        node.report("p", RUNNING)
        node.report("p", SUCCEEDED)
        await node.until(["patch p status"], within=10 * RESYNC_SECONDS)


async def test_a_pod_of_the_same_name_is_another_one(autojump_clock: MockClock) -> None:
    async with running("p") as node:
        node.watching = False
        node.api.remove("p")
        node.api.put(a_named_pod("p", uid="another"))
        node.report("p", SUCCEEDED)
        await node.until(["patch p status", "get p"], within=10 * RESYNC_SECONDS)
        assert node.phase("p") == ""


async def test_what_others_change_in_the_nodes_part_is_put_right(
    autojump_clock: MockClock,
) -> None:
    ready = PodStatus(phase="Running", conditions=(condition("Ready"),))
    async with running("p") as node:
        node.report("p", ready)
        await trio.sleep(1)
        pod = node.api.pods["p"]
        spoilt = evolve(ready, conditions=(condition("Ready", "False"), condition("x/gate")))
        node.api.put(evolve(pod, status=spoilt))
        await trio.sleep(1)
        assert node.api.pods["p"].status.conditions == (condition("x/gate"), condition("Ready"))


async def test_what_the_server_does_not_take_is_not_sent_for_ever(
    autojump_clock: MockClock,
) -> None:
    async with running("p") as node:
        node.api.take = lambda status: evolve(status, resize="")
        node.report("p", PodStatus(phase="Running", resize="Proposed"))
        await node.until(["patch p status"], within=10 * RESYNC_SECONDS)


async def test_an_echo_of_the_watch_is_older_than_the_answer(autojump_clock: MockClock) -> None:
    async with running("p") as node:
        before = node.api.pods["p"]
        node.report("p", RUNNING)
        await trio.sleep(1)
        node.writer.changed(before)
        await node.until(["patch p status"])


async def test_a_deleted_pod_goes_when_its_task_is_over(autojump_clock: MockClock) -> None:
    async with running("p") as node:
        node.report("p", RUNNING)
        node.api.mark_deleted("p")
        await node.until(["patch p status"])
        node.report("p", SUCCEEDED)
        await node.until(["patch p status"] * 2)
        node.finish("p")
        await node.until(["patch p status", "patch p status", "delete p 0"])
        assert node.api.pods == {}


async def test_a_pod_that_ended_before_goes_when_it_is_deleted(autojump_clock: MockClock) -> None:
    async with running("p") as node:
        node.report("p", SUCCEEDED)
        node.finish("p")
        await node.until(["patch p status"])
        node.api.mark_deleted("p")
        await node.until(["patch p status", "delete p 0"])


async def test_no_pod_goes_before_its_last_status_is_there(autojump_clock: MockClock) -> None:
    async with running("p") as node:
        node.api.mark_deleted("p")
        node.api.faults = [UNREACHABLE] * 5
        node.report("p", SUCCEEDED)
        node.finish("p")
        await trio.sleep(SOON)
        assert node.api.log[-2:] == ["patch p status", "delete p 0"]
        assert node.api.patches == [("p", {"phase": "Succeeded"})]


async def test_no_pod_goes_while_an_older_status_is_on_its_way(autojump_clock: MockClock) -> None:
    async with running("p") as node:
        node.api.mark_deleted("p")
        node.api.faults = [1.0]
        node.report("p", RUNNING)
        await trio.sleep(0.5)
        node.report("p", SUCCEEDED)
        node.finish("p")
        await node.until(["patch p status", "patch p status", "delete p 0"])


async def test_a_pod_that_a_finalizer_holds_is_deleted_once(autojump_clock: MockClock) -> None:
    async with running() as node:
        node.api.put(a_named_pod("p", finalizers=("x/held",)))
        node.api.mark_deleted("p")
        node.report("p", SUCCEEDED)
        node.finish("p")
        await node.until(["patch p status", "delete p 0"], within=10 * RESYNC_SECONDS)
        assert "p" in node.api.pods


@pytest.mark.parametrize("fault", [UNREACHABLE, "lost", refused(409, "Conflict")])
async def test_a_deletion_that_failed_is_made_again(
    autojump_clock: MockClock, fault: ApiError | str
) -> None:
    async with running() as node:
        node.api.put(evolve(a_named_pod("p"), status=SUCCEEDED))
        node.report("p", SUCCEEDED)
        node.finish("p")
        node.api.faults = [fault]
        node.api.mark_deleted("p")
        await trio.sleep(SOON)
        assert node.api.pods == {}


async def test_a_static_pods_status_goes_to_its_mirror(autojump_clock: MockClock) -> None:
    async with running() as node:
        node.watching = False
        mirror = node.api.put(a_named_pod("p", uid="mirror"))
        node.report("p", RUNNING)
        await node.until([])
        node.writer.mirror_changed("uid-p", mirror)
        await node.until(["patch p status"])
        assert node.phase("p") == "Running"


async def test_a_new_mirror_gets_the_status_too(autojump_clock: MockClock) -> None:
    async with running() as node:
        node.watching = False
        node.report("p", RUNNING)
        node.writer.mirror_changed("uid-p", node.api.put(a_named_pod("p", uid="mirror-1")))
        await trio.sleep(1)
        node.api.remove("p")
        node.writer.mirror_changed("uid-p", None)
        node.writer.mirror_changed("uid-p", node.api.put(a_named_pod("p", uid="mirror-2")))
        await trio.sleep(1)
        assert node.phase("p") == "Running"


async def test_a_mirror_is_not_the_writers_to_delete(autojump_clock: MockClock) -> None:
    async with running() as node:
        node.watching = False
        node.report("p", RUNNING)
        node.finish("p")
        node.api.put(a_named_pod("p", uid="mirror"))
        node.writer.mirror_changed("uid-p", node.api.mark_deleted("p"))
        await node.until(["patch p status"])
