"""Pods that a shutdown has ended do not come back with the machine."""

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from betterproto import Message
from trio.testing import MockClock

from tests.apiserver.faults import RequestFault
from tests.unit.node.fake_logind import FakeLogind
from tests.unit.sync.admission.test_on_a_node import make_pod, one_node
from trio_kubelet.hollow import CallFault, ScriptedFaults
from trio_kubelet.kernel.logind import open_logind
from trio_kubelet.node.shutdown_record import FILE, MOST_PODS, EndedPod, ShutdownRecord


@pytest.mark.parametrize("held", ["StopContainer", "the status"])
async def test_a_pod_whose_end_the_api_does_not_show_ends_again_after_the_boot(
    held: str, autojump_clock: MockClock, tmp_path: Path
) -> None:
    faults, reached = ScriptedFaults(), trio.Event()

    def hold(rpc: str, request: Message) -> CallFault:
        if rpc == held:
            reached.set()
        return faults(rpc, request)

    logind = FakeLogind(tmp_path, delay_seconds=100)
    fields: dict[str, Any] = {
        "open_logind": partial(open_logind, logind.address, tmp_path / "99-kubelet.conf"),
        "shutdown_grace_period": timedelta(seconds=30),
    }
    async with one_node(tmp_path, hold) as node, trio.open_nursery() as nursery:
        await nursery.start(logind.run)
        async with node.agent(**fields):
            await node.run(make_pod("web"))
            await logind.came.wait()
            refused = RequestFault(verb="patch", resource="pods", code=500)
            node.server.faults.rules.append(refused)
            faults.add(held, CallFault(delay_seconds=1e6))
            await logind.announce(goes_down=True)
            if held == "the status":
                await trio.sleep(33)
                assert not logind.is_held_up()
            else:
                await reached.wait()
                await trio.sleep(1)
        assert node.status("web").phase == "Running"
        node.server.faults.rules.remove(refused)
        logind.is_shutting_down = False
        async with node.agent(**fields):
            status = await node.becomes("web", "Failed")
            assert status.reason == "Terminated"
            assert status.message == "Pod was terminated in response to imminent node shutdown."
            assert any(c.type == "DisruptionTarget" for c in status.conditions)
        nursery.cancel_scope.cancel()


async def test_the_pods_that_were_ended_last_are_kept(tmp_path: Path) -> None:
    record = ShutdownRecord(tmp_path)
    await record.add([])
    assert not (tmp_path / FILE).exists()
    await record.add(EndedPod(f"old-{number}", 3) for number in range(5))
    await record.add(EndedPod(f"new-{number}", 7) for number in range(MOST_PODS - 1))
    again = ShutdownRecord(tmp_path)
    await again.load()
    assert again.ended("old-3") is None
    assert again.ended("old-4") == EndedPod("old-4", 3)
    assert again.ended("new-0") == EndedPod("new-0", 7)


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"pods": {"a": "b"}}', b"[" * 100_000])
async def test_a_record_that_says_nothing_is_none(tmp_path: Path, text: bytes) -> None:
    (tmp_path / FILE).write_bytes(text)
    record = ShutdownRecord(tmp_path)
    await record.load()
    assert record.ended("a") is None
