"""The chains for others on a machine that has no threads left (the rest needs a real iptables)."""

import pytest
import structlog
import trio
from trio.testing import MockClock

from trio_kubelet.node.iptables import PERIOD_SECONDS, keep_chains


async def test_a_machine_without_threads_is_told_of_once_and_tried_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    async def no_thread(*_: object, **__: object) -> None:
        nonlocal tries
        tries += 1
        await trio.lowlevel.checkpoint()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(trio.to_thread, "run_sync", no_thread)
    with structlog.testing.capture_logs() as logs, trio.move_on_after(2.5 * PERIOD_SECONDS):
        await keep_chains(lambda name: f"/{name}" if name == "iptables" else None)
    assert tries == 3
    (told,) = logs
    assert told["error"] == "cannot be run: can't start new thread"
