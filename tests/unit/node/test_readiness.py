"""Why a node is not ready, and from when on."""

import math

import pytest
import trio
from trio.testing import MockClock

from trio_kubelet.node.observer import (
    START_SECONDS,
    Readiness,
    relist_errors,
    runtime_errors,
)
from trio_kubelet.runtime.health import RuntimeHealth, RuntimeState

UP = RuntimeState(answered=True, up=True, network_ready=True, reason="")
NO_NETWORK = RuntimeState(
    answered=True,
    up=True,
    reason="",
    network_reason="NetworkReady=false reason:NetworkPluginNotReady message:cni not initialized",
)
BROKEN = RuntimeState(
    answered=True, network_ready=True, reason="RuntimeReady=false reason:Disk message:full"
)


@pytest.mark.parametrize(
    ("last", "silent", "expected"),
    [
        (
            None,
            0.0,
            (
                "container runtime status check may not have completed yet",
                "network state unknown",
            ),
        ),
        (UP, 0.0, ()),
        (UP, 29.0, ()),
        (UP, 30.0, ("container runtime is down",)),
        (
            NO_NETWORK,
            0.0,
            (
                "container runtime network not ready: NetworkReady=false "
                "reason:NetworkPluginNotReady message:cni not initialized",
            ),
        ),
        (
            BROKEN,
            0.0,
            ("container runtime not ready: RuntimeReady=false reason:Disk message:full",),
        ),
    ],
)
def test_what_the_runtime_said_and_its_silence_are_told_in_the_go_kubelets_words(
    last: RuntimeState | None, silent: float, expected: tuple[str, ...]
) -> None:
    assert runtime_errors(last, silent) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (1.0, ()),
        (math.inf, ("PLEG is not healthy: pleg has yet to be successful",)),
        (
            200.4,
            ("PLEG is not healthy: pleg was last seen active 200s ago; threshold is 180s",),
        ),
    ],
)
def test_an_old_relist_keeps_a_node_from_being_ready(
    seconds: float, expected: tuple[str, ...]
) -> None:
    assert relist_errors(seconds, 180.0) == expected


async def test_a_runtime_that_is_restarted_leaves_the_node_ready(autojump_clock: MockClock) -> None:
    runtime_health = RuntimeHealth()
    readiness = Readiness(runtime_health)
    runtime_health.update(UP)
    runtime_health.mark_down("container runtime is down: connection refused")
    await trio.sleep(20)
    assert readiness.errors() == ()
    runtime_health.update(UP)
    runtime_health.mark_down("container runtime is down: connection refused")
    await trio.sleep(20)
    assert readiness.errors() == ()
    await trio.sleep(10)
    assert readiness.errors() == ("container runtime is down",)


async def test_silence_does_not_make_a_broken_network_whole(autojump_clock: MockClock) -> None:
    runtime_health = RuntimeHealth()
    readiness = Readiness(runtime_health)
    runtime_health.update(NO_NETWORK)
    runtime_health.mark_down("container runtime is down: connection refused")
    assert "cni not initialized" in readiness.errors()[0]


async def test_others_are_asked_after_the_runtime() -> None:
    runtime_health = RuntimeHealth()
    runtime_health.update(UP)
    readiness = Readiness(runtime_health, [lambda: ("node is shutting down",)])
    assert readiness.errors() == ("node is shutting down",)


async def test_whoever_listens_is_told_of_a_change() -> None:
    runtime_health, changes = RuntimeHealth(), list[int]()
    readiness = Readiness(runtime_health)
    readiness.on_change.add(lambda: changes.append(len(readiness.errors())))
    runtime_health.update(UP)
    runtime_health.update(UP)
    runtime_health.update(NO_NETWORK)
    assert changes == [0, 1]


async def test_a_start_is_early_until_the_runtime_has_answered_and_listed(
    autojump_clock: MockClock,
) -> None:
    runtime_health, listed = RuntimeHealth(), list[str]()
    readiness = Readiness(runtime_health, has_listed=lambda: bool(listed))
    assert readiness.is_early()
    runtime_health.update(UP)
    assert readiness.is_early()
    listed.append("all")
    assert not readiness.is_early()


async def test_a_start_is_not_early_for_ever(autojump_clock: MockClock) -> None:
    readiness = Readiness(RuntimeHealth(), has_listed=lambda: False)
    await trio.sleep(START_SECONDS)
    assert not readiness.is_early()
