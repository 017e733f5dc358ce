"""What becomes of statuses that the API server refuses as invalid."""

from typing import Any

import trio
from attrs import evolve
from trio.testing import MockClock

from tests.unit.status.api import a_named_pod
from tests.unit.status.writers import RUNNING, SOON, SUCCEEDED, refused, running
from trio_kubelet.k8s import (
    ContainerState,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    PodStatus,
)
from trio_kubelet.k8s.client import ApiError
from trio_kubelet.status.container_statuses import terminated
from trio_kubelet.status.writer import (
    RESYNC_SECONDS,
    RETRY_INVALID,
)


async def test_what_changes_after_a_refusal_is_sent_when_its_back_off_is_over(
    autojump_clock: MockClock,
) -> None:
    async with running("p") as node:
        node.api.faults = [refused(422, "Invalid")]
        node.report("p", RUNNING)
        await trio.sleep(1)
        node.report("p", SUCCEEDED)
        await node.until(["patch p status", "get p"], within=RETRY_INVALID.initial_seconds - 2)
        await trio.sleep(0.2 * RETRY_INVALID.initial_seconds + 2)
        assert node.phase("p") == "Succeeded"


def refuse(_status: PodStatus) -> PodStatus:
    raise refused(422, "Invalid")


async def test_statuses_that_are_refused_again_and_again_are_sent_ever_more_seldom(
    autojump_clock: MockClock,
) -> None:
    told: list[float] = []
    async with running("p") as node:
        take, node.api.take = node.api.take, refuse
        node.writer.on_refused.add(lambda _uid, _pod, _why, seconds: told.append(seconds))
        for number in range(3600):
            node.report("p", evolve(RUNNING, message=str(number)))
            await trio.sleep(1)
        assert node.api.log.count("patch p status") == len(told)
        assert 8 <= len(told) <= 12
        assert told[:5] == sorted(told[:5])
        node.api.take = take
        await trio.sleep(1.2 * RETRY_INVALID.cap_seconds)
        assert node.api.pods["p"].status.message == "3599"
        node.report("p", RUNNING)
        await trio.sleep(0.1)
        assert node.api.pods["p"].status.message == "", "the back-off is over"


async def test_a_pod_whose_statuses_are_refused_goes_when_it_is_deleted(
    autojump_clock: MockClock,
) -> None:
    async with running("p") as node:
        node.api.take = refuse
        node.report("p", RUNNING)
        await trio.sleep(1)
        node.api.mark_deleted("p")
        node.report("p", SUCCEEDED)
        await trio.sleep(1)
        node.finish("p")
        await trio.sleep(1)
        assert "p" not in node.api.pods
        assert node.api.log.count("patch p status") == 2, "the last status was tried at once"


async def test_what_was_refused_is_sent_again_later(autojump_clock: MockClock) -> None:
    async with running("p") as node:
        node.api.faults = [refused(422, "Invalid")]
        node.report("p", RUNNING)
        await trio.sleep(RESYNC_SECONDS + 1)
        assert node.phase("p") == "Running"


async def test_what_was_refused_is_not_forgotten_for_being_looked_at(
    autojump_clock: MockClock,
) -> None:
    async with running("p") as node:
        node.api.faults = [refused(422, "Invalid")]
        node.report("p", RUNNING)
        await trio.sleep(1)
        node.writer.look_at("uid-p")
        await trio.sleep(RESYNC_SECONDS + 1)
        assert node.phase("p") == "Running"


async def test_a_pod_whose_name_another_one_has_is_refused_in_silence(
    autojump_clock: MockClock,
) -> None:
    told: list[str] = []
    async with running("p") as node:
        node.watching = False
        node.writer.on_refused.add(lambda uid, _pod, _why, _seconds: told.append(uid))
        node.api.put(a_named_pod("p", uid="another"))
        node.api.faults = [refused(422, "Invalid")]
        node.report("p", RUNNING)
        node.report("p", SUCCEEDED)
        await node.until(["patch p status", "get p"], within=10 * RESYNC_SECONDS)
    assert not told


def container_status(**state: Any) -> ContainerStatus:
    return ContainerStatus(name="c", state=ContainerState(**state))


ENDED = container_status(terminated=ContainerStateTerminated(exit_code=0))
CREATING = container_status(waiting=ContainerStateWaiting(reason="ContainerCreating"))


async def test_of_a_status_that_is_refused_as_invalid_all_is_shown_that_can_be(
    autojump_clock: MockClock,
) -> None:
    told: list[tuple[str, str, str]] = []

    def take(status: PodStatus) -> PodStatus:
        if any(terminated(each) is None for each in status.container_statuses):
            raise ApiError(422, "Invalid", "may not be transitioned to non-terminated state")
        return status

    async with running() as node:
        node.api.put(evolve(a_named_pod("p"), status=evolve(RUNNING, container_statuses=(ENDED,))))
        node.api.take = take
        node.writer.on_refused.add(
            lambda uid, pod, why, _seconds: told.append((uid, pod.metadata.name, why))
        )
        node.report("p", PodStatus(phase="Running", reason="A", container_statuses=(CREATING,)))
        await trio.sleep(SOON)
        shown = node.api.pods["p"].status
        assert (shown.reason, shown.container_statuses) == ("A", (ENDED,))
        assert [(uid, name) for uid, name, _ in told] == [("uid-p", "p")]
        assert "non-terminated" in told[0][2]
        node.report("p", PodStatus(phase="Running", reason="B", container_statuses=(CREATING,)))
        await trio.sleep(3 * RESYNC_SECONDS)
        assert node.api.pods["p"].status.reason == "B"
        assert len(told) == 1
        assert node.api.log.count("patch p status") == 3
        again = container_status(terminated=ContainerStateTerminated(exit_code=3))
        node.report("p", PodStatus(phase="Failed", container_statuses=(again,)))
        await trio.sleep(SOON)
        assert node.api.pods["p"].status.container_statuses == (again,)
