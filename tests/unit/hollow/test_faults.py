"""Faults of single calls."""

import random

import pytest
import trio
from trio.testing import MockClock

from tests.unit.hollow.conftest import simulate
from trio_kubelet.hollow import CallFault, FaultRates, Latencies, RandomFaults, ScriptedFaults
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri

UNAVAILABLE = RpcError(Code.UNAVAILABLE, "gone")


async def test_an_error_comes_instead_of_the_effect_and_only_once(
    autojump_clock: MockClock,
) -> None:
    faults = ScriptedFaults([("RunPodSandbox", CallFault(error=UNAVAILABLE))])
    async with simulate(faults=faults) as node:
        with pytest.raises(RpcError, match="gone"):
            await node.run_pod()
        assert await node.pods() == []
        await node.run_pod()


async def test_a_lost_reply_comes_after_the_effect(autojump_clock: MockClock) -> None:
    faults = ScriptedFaults([("RunPodSandbox", CallFault(lost_reply=UNAVAILABLE))])
    async with simulate(faults=faults) as node:
        with pytest.raises(RpcError, match="gone"):
            await node.run_pod()
        assert len(await node.pods()) == 1


async def test_a_delay_comes_first(autojump_clock: MockClock) -> None:
    faults = ScriptedFaults([("RunPodSandbox", CallFault(delay_seconds=7))])
    async with simulate(faults=faults, latencies=Latencies(run_pod_sandbox=1)) as node:
        start = trio.current_time()
        await node.run_pod()
        assert trio.current_time() - start == pytest.approx(8)


async def test_a_call_may_outlive_its_caller(autojump_clock: MockClock) -> None:
    faults = ScriptedFaults([("RunPodSandbox", CallFault(delay_seconds=10, outlives_cancel=True))])
    async with simulate(faults=faults) as node:
        with trio.move_on_after(5):
            await node.run_pod()
        assert await node.pods() == []
        await trio.sleep(6)
        assert len(await node.pods()) == 1


async def test_a_call_that_could_outlive_its_caller_answers_one_who_stays(
    autojump_clock: MockClock,
) -> None:
    fault = CallFault(outlives_cancel=True)
    faults = ScriptedFaults([("RunPodSandbox", fault), ("RunPodSandbox", fault)])
    async with simulate(faults=faults) as node:
        assert await node.run_pod() in await node.pods()
        with pytest.raises(RpcError, match="is reserved for"):
            await node.run_pod()


async def test_random_faults_are_the_same_for_the_same_seed(autojump_clock: MockClock) -> None:
    def draw(seed: int) -> list[str]:
        rates = FaultRates(delay=0.3, error=0.3, lost_reply=0.3, outlives_cancel=0.3)
        faults = RandomFaults(random.Random(seed), rates)
        return [repr(faults("Status", cri.StatusRequest())) for _ in range(50)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_random_faults_keep_to_their_rates_and_stop_when_told() -> None:
    on = True
    faults = RandomFaults(
        random.Random(0),
        FaultRates(error=0.5),
        rates_of_rpc={"Version": FaultRates()},
        enabled=lambda: on,
    )
    drawn = [faults("Status", cri.StatusRequest()) for _ in range(400)]
    assert 150 < sum(fault.error is not None for fault in drawn) < 250
    assert {fault.delay_seconds for fault in drawn} == {0}
    assert faults("Version", cri.VersionRequest()) == CallFault()
    on = False
    assert all(faults("Status", cri.StatusRequest()) == CallFault() for _ in range(20))
