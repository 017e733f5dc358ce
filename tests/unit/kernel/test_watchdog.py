import time

import pytest
import trio
from trio.testing import MockClock

from trio_kubelet.kernel.systemd import ServiceNotifier, feed_watchdog


class Listener(ServiceNotifier):
    """Notes when the service manager would have heard that the agent lives."""

    def __init__(self) -> None:
        super().__init__({})
        self.heard_at: list[float] = []

    def alive(self) -> None:
        self.heard_at.append(trio.current_time())


@pytest.fixture
def listener() -> Listener:
    return Listener()


async def test_while_the_loop_gets_on_messages_come_well_within_the_period(
    listener: Listener, autojump_clock: MockClock
) -> None:
    with trio.move_on_after(60):
        await feed_watchdog(listener, 30.0, lambda: 1.0)
    assert listener.heard_at == [pytest.approx(at) for at in (0, 10, 20, 30, 40, 50)]


async def test_a_loop_that_is_stuck_is_not_vouched_for(
    listener: Listener, autojump_clock: MockClock
) -> None:
    with trio.move_on_after(120):
        await feed_watchdog(listener, 30.0, trio.current_time)
    assert max(listener.heard_at) < 30


async def test_nothing_is_sent_while_the_event_loop_is_blocked(listener: Listener) -> None:
    blocked: list[float] = []

    async def block() -> None:
        blocked.append(trio.current_time())
        time.sleep(0.3)  # noqa: ASYNC251 - what a hanging handler does
        blocked.append(trio.current_time())
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed_watchdog, listener, 0.06, lambda: 0.0)
        await trio.testing.wait_all_tasks_blocked()
        assert listener.heard_at
        nursery.start_soon(block)
    assert not [at for at in listener.heard_at if blocked[0] < at < blocked[1]]
