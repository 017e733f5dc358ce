"""The head of a message is what it begins with, and its reader never sees the rest."""

from contextlib import suppress

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.rpc import Head
from trio_kubelet.rpc.responses import Inbox
from trio_kubelet.rpc.stubs.runtime import v1 as cri

EVENT = Head(5, {4: Head(3)})
LABELS = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)
TEXT = st.text(max_size=200)


@given(TEXT, st.integers(-(2**63), 2**63 - 1), TEXT, LABELS, st.integers(0, 3))
def test_the_head_has_what_it_names_and_nothing_else(
    container: str, created_at: int, uid: str, labels: dict[str, str], count: int
) -> None:
    metadata = cri.PodSandboxMetadata(name="pod", uid=uid)
    begin = cri.ContainerEventResponse(
        container_id=container,
        container_event_type=cri.ContainerEventType(cri.ContainerEventType.CONTAINER_STARTED_EVENT),
        created_at=created_at,
        pod_sandbox_status=cri.PodSandboxStatus(id="id", metadata=metadata),
    )
    whole = cri.ContainerEventResponse().parse(bytes(begin))
    whole.pod_sandbox_status.labels = labels
    whole.pod_sandbox_status.created_at = created_at
    whole.containers_statuses = [cri.ContainerStatus(id="x", labels=labels)] * count
    assert EVENT.of(bytes(whole)) == bytes(begin)


def test_numbers_of_each_kind_are_read_over() -> None:
    fixed = b"\x09" + bytes(8) + b"\x15" + bytes(4)
    assert Head(3).of(fixed + b"\x1a\xff") == fixed


@given(st.binary())
def test_bytes_that_are_no_message_are_an_error_or_stay_small(data: bytes) -> None:
    with suppress(ValueError):
        assert len(EVENT.of(data)) <= len(data)


def test_a_message_that_is_cut_short_is_an_error() -> None:
    data = bytes(cri.ContainerEventResponse(container_id="x" * 100))
    for end in range(1, len(data)):
        with pytest.raises(ValueError, match="cut short"):
            EVENT.of(data[:end])
    with pytest.raises(ValueError, match="wire type"):
        EVENT.of(b"\x0b")


async def test_a_reader_that_is_behind_keeps_heads_only_and_what_is_no_message_reaches_it() -> None:
    inbox = Inbox(EVENT)
    whole = cri.ContainerEventResponse(
        container_id="c", containers_statuses=[cri.ContainerStatus(id="x" * 1000)]
    )
    inbox.put_nowait(bytes(whole))
    with trio.fail_after(60):
        await inbox.put(b"\x0b")
        assert await inbox.get() == bytes(cri.ContainerEventResponse(container_id="c"))
        assert await inbox.get() == b"\x0b"
    inbox.end(None)
    inbox.close()
