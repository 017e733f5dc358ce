"""Tokens: bound to the pod, renewed in time, valid as long as anybody can make them so."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.apiserver.faults import RequestFault
from tests.unit.references.cluster import Cluster, open_cluster
from tests.unit.references.pods import pod_with
from trio_kubelet.k8s import Pod
from trio_kubelet.references import ObjectError
from trio_kubelet.references.tokens import MAX_TOKENS_OF_POD, renewal_time_ns

HOUR = 3600
SECOND_NS = 1_000_000_000


async def token(cluster: Cluster, pod: Pod, life_seconds: int = HOUR, audience: str = "") -> str:
    return await cluster.references.token(pod, audience, life_seconds)


def requests(cluster: Cluster) -> int:
    return sum(each.subresource == "token" for each in cluster.server.requests)


async def test_a_token_is_asked_for_once_for_each_pod_audience_and_life(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        one, other = pod_with("u1"), pod_with("u2")
        first = await token(cluster, one)
        assert await token(cluster, one) == first
        others = {
            await token(cluster, other),
            await token(cluster, one, audience="vault"),
            await token(cluster, one, life_seconds=600),
        }
        assert len(others | {first}) == 4
        assert requests(cluster) == 4


async def test_a_token_is_renewed_when_four_fifths_of_its_life_are_over(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        pod = pod_with("u1")
        first = await token(cluster, pod)
        await trio.sleep(HOUR * 0.8 - 15)
        assert await token(cluster, pod) == first
        assert cluster.told.uids == []
        await trio.sleep(15)
        assert await token(cluster, pod) == first
        assert await cluster.told.wait() == ["u1"]
        assert await token(cluster, pod) != first
        assert requests(cluster) == 2


async def test_a_token_serves_through_an_outage_until_it_ends(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        pod = pod_with("u1")
        first = await token(cluster, pod)
        cluster.server.go_away()
        await trio.sleep(HOUR - 30)
        began = trio.current_time()
        assert await token(cluster, pod) == first
        assert trio.current_time() == pytest.approx(began, abs=0.1)
        await trio.sleep(60)
        with pytest.raises(ObjectError, match=r"^token of service account shop/robot expired and"):
            await token(cluster, pod)
        cluster.server.come_back()
        assert await token(cluster, pod) != first


async def test_a_renewal_that_failed_is_tried_again(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        pod = pod_with("u1")
        first = await token(cluster, pod)
        cluster.server.faults.add(RequestFault(subresource="token", code=500, times=1))
        await trio.sleep(HOUR * 0.8)
        for _ in range(3):
            assert await token(cluster, pod) == first
            await wait_all_tasks_blocked()
        assert requests(cluster) == 2
        await trio.sleep(60)
        await token(cluster, pod)
        assert await cluster.told.wait() == ["u1"]
        assert await token(cluster, pod) != first


@pytest.mark.parametrize(
    "fault",
    [
        RequestFault(subresource="token", code=403, times=3),
        RequestFault(subresource="token", code=404, reason="NotFound", times=1),
    ],
    ids=["refused", "missing"],
)
async def test_a_first_token_waits_for_the_authorizer_but_not_for_an_account(
    autojump_clock: MockClock, fault: RequestFault
) -> None:
    async with open_cluster() as cluster:
        cluster.server.faults.add(fault)
        if fault.code == 403:
            assert await token(cluster, pod_with("u1"))
        else:
            with pytest.raises(ObjectError, match=r"^failed to fetch token: refused"):
                await token(cluster, pod_with("u1"))


async def test_the_tokens_of_a_pod_go_with_it(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        pod = pod_with("u1")
        cluster.references.register(pod)
        first = await token(cluster, pod)
        cluster.references.unregister("u1")
        assert await token(cluster, pod) != first


async def test_a_pod_has_no_more_tokens_than_its_number(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        pod = pod_with("u1")
        first = await token(cluster, pod, audience="0")
        for number in range(1, MAX_TOKENS_OF_POD):
            await token(cluster, pod, audience=str(number))
        with pytest.raises(ObjectError, match=r"^a pod has at most 100 service account tokens"):
            await token(cluster, pod, audience="one more")
        assert await token(cluster, pod, audience="0") == first
        assert await token(cluster, pod_with("u2"))
        assert requests(cluster) == MAX_TOKENS_OF_POD + 1


async def test_the_tokens_of_a_pod_are_renewed_one_after_another(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        pod = pod_with("u1")
        audiences = [str(number) for number in range(20)]
        first = [await token(cluster, pod, audience=each) for each in audiences]
        await trio.sleep(HOUR * 0.8)
        cluster.server.faults.add(RequestFault(subresource="token", code=500, times=1))
        before = len(trio_tasks())
        for each in audiences:
            await token(cluster, pod, audience=each)
        assert len(trio_tasks()) <= before + 1
        assert await cluster.told.wait() == ["u1"]
        then = [await token(cluster, pod, audience=each) for each in audiences]
        assert sum(now != old for now, old in zip(then, first, strict=True)) == 19
        assert cluster.told.uids == []  # once for all


def trio_tasks() -> list[trio.lowlevel.Task]:
    """All tasks of this run."""
    found = [trio.lowlevel.current_root_task()]
    for task in found:
        for nursery in task.child_nurseries if task is not None else ():
            found += nursery.child_tasks
    return [task for task in found if task is not None]


async def test_no_token_is_in_what_is_printed(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_cluster() as cluster:
        pod = pod_with("u1")
        text = await token(cluster, pod)
        cluster.server.faults.add(RequestFault(subresource="token", code=500))
        await trio.sleep(HOUR * 0.9)
        await token(cluster, pod)
        await wait_all_tasks_blocked()
        said = capsys.readouterr().out
        assert "token renewal failed" in said
        assert text not in said


@given(life=st.integers(600, 10 * 24 * HOUR), jitter=st.floats(0, 10))
def test_a_token_is_never_used_for_more_than_a_day_or_four_fifths(life: int, jitter: float) -> None:
    issued_ns = 1_000_000 * SECOND_NS
    due_ns = renewal_time_ns(issued_ns + life * SECOND_NS, life, jitter)
    used_seconds = (due_ns - issued_ns) / SECOND_NS
    assert min(life * 0.8, 24 * HOUR) - 11 < used_seconds <= min(life * 0.8, 24 * HOUR) + 1e-6
