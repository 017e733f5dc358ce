"""The share of the node that the probes of one pod have."""

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from trio_kubelet.pod_clients.share import SAVED_SECONDS, SHARE, ProbeShare


async def test_who_has_used_nothing_does_not_wait(mock_clock: MockClock) -> None:
    share = ProbeShare("uid")
    await share.wait()
    share.use(SAVED_SECONDS)
    await share.wait()


async def test_who_has_used_more_waits_until_its_share_has_come_to_it(
    autojump_clock: MockClock,
) -> None:
    share, began = ProbeShare("uid"), trio.current_time()
    with capture_logs() as lines:
        share.use(SAVED_SECONDS + 1.0)
        await share.wait()
    assert trio.current_time() - began == pytest.approx(1.0 / SHARE)
    assert [line["log_level"] for line in lines] == ["warning"]
    await trio.sleep(3600)
    share.use(SAVED_SECONDS)
    began = trio.current_time()
    await share.wait()
    assert trio.current_time() == began


async def test_no_more_is_saved_than_that(autojump_clock: MockClock) -> None:
    share = ProbeShare("uid")
    await trio.sleep(3600)
    share.use(SAVED_SECONDS + 0.1)
    began = trio.current_time()
    await share.wait()
    assert trio.current_time() > began
