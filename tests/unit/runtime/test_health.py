"""What is known of the runtime while it answers, and while it does not."""

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from tests.trio_clock import TrioClock
from trio_kubelet.hollow import HollowOptions, open_hollow_runtime
from trio_kubelet.rpc import InProcess
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.health import RuntimeHealth, RuntimeState, check_runtime, runtime_state

READY = cri.RuntimeCondition(type="RuntimeReady", status=True)
NETWORK = cri.RuntimeCondition(type="NetworkReady", status=True)
NO_NETWORK = cri.RuntimeCondition(
    type="NetworkReady", reason="NetworkPluginNotReady", message="cni plugin not initialized"
)


def said(*conditions: cri.RuntimeCondition) -> RuntimeState:
    status = cri.RuntimeStatus(conditions=list(conditions))
    return runtime_state(cri.StatusResponse(status=status))


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (RuntimeState(), "network state unknown"),
        (said(READY, NETWORK), ""),
        (
            said(READY, NO_NETWORK),
            "container runtime network not ready: NetworkReady=false "
            "reason:NetworkPluginNotReady message:cni plugin not initialized",
        ),
        (
            said(READY),
            "container runtime network not ready: "
            "container runtime status has no NetworkReady condition",
        ),
    ],
)
def test_what_is_wrong_with_the_network_is_told_in_the_go_kubelets_words(
    state: RuntimeState, error: str
) -> None:
    assert state.network_error == error


@pytest.mark.parametrize("last", [said(READY, NETWORK), said(READY, NO_NETWORK)])
def test_a_runtime_that_does_not_answer_says_nothing_new_of_its_network(
    last: RuntimeState,
) -> None:
    runtime_health = RuntimeHealth()
    runtime_health.update(last)
    runtime_health.mark_down("container runtime is down: connection refused")
    assert (runtime_health.state.answered, runtime_health.state.up) == (False, False)
    assert runtime_health.state.reason == "container runtime is down: connection refused"
    assert runtime_health.state.network_error == last.network_error


async def test_a_status_that_takes_too_long_is_down_and_leaves_the_network_as_it_was(
    autojump_clock: MockClock,
) -> None:
    class Slow(RuntimeClient):
        async def status(self, *, verbose: bool = False) -> cri.StatusResponse:
            await trio.sleep(latency)
            return await super().status(verbose=verbose)

    latency = 0.0
    async with (
        open_hollow_runtime(TrioClock(), HollowOptions()) as runtime,
        trio.open_nursery() as nursery,
    ):
        runtime_health, transport = RuntimeHealth(), InProcess(runtime)
        nursery.start_soon(check_runtime, Slow(transport, transport), runtime_health)
        await runtime_health.wait_up()
        latency = 11.0
        await trio.sleep(17)
        assert not runtime_health.state.up
        assert runtime_health.state.network_error == ""
        nursery.cancel_scope.cancel()


async def test_a_bug_in_whoever_is_told_keeps_the_health_true_and_the_others_told(
    autojump_clock: MockClock,
) -> None:
    told: list[bool] = []

    def stumble(before: RuntimeState, after: RuntimeState) -> None:
        raise RuntimeError("a bug")

    async with (
        open_hollow_runtime(TrioClock(), HollowOptions()) as runtime,
        trio.open_nursery() as nursery,
    ):
        runtime_health, transport = RuntimeHealth(), InProcess(runtime)
        runtime_health.on_change.add(stumble)
        runtime_health.on_change.add(lambda _, after: told.append(after.up))
        nursery.start_soon(check_runtime, RuntimeClient(transport, transport), runtime_health)
        await trio.sleep(20)
        runtime_health.state = evolve(runtime_health.state, up=False)
        await trio.sleep(20)
        assert runtime_health.state.up
        nursery.cancel_scope.cancel()
    assert told == [True, True]


async def test_a_status_that_is_stumbled_over_is_asked_for_more_and_more_rarely(
    autojump_clock: MockClock,
) -> None:
    class Odd(RuntimeClient):
        async def status(self, *, verbose: bool = False) -> cri.StatusResponse:
            asked_at.append(trio.current_time())
            raise RuntimeError("a bug")

    asked_at: list[float] = []
    async with open_hollow_runtime(TrioClock(), HollowOptions()) as runtime:
        transport = InProcess(runtime)
        with trio.move_on_after(60):
            await check_runtime(Odd(transport, transport), RuntimeHealth())
    assert 10 < len(asked_at) < 25
