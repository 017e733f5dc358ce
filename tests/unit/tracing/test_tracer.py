"""Spans: what is a part of what, which are sampled, and what is noted of them."""

import pytest
import trio
from trio.testing import MockClock

from tests.trio_clock import TrioClock
from trio_kubelet.tracing import Span, SpanKind, SpanQueue, Tracer, parse_traceparent
from trio_kubelet.tracing.queue import BATCH_SPANS, MOST_SPANS
from trio_kubelet.tracing.tracer import MILLION, MOST_ATTRIBUTE_CHARACTERS, SpanContext

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def tracer(sampled_of_a_million: int = MILLION) -> tuple[Tracer, list[Span]]:
    ended: list[Span] = []
    return Tracer(TrioClock(), sampled_of_a_million, ended.append), ended


async def test_a_span_in_another_is_a_part_of_it() -> None:
    made, ended = tracer()
    attributes = {"rpc.method": "Version"}
    with made.span("sync") as sync, made.span("call", SpanKind.CLIENT, attributes):
        pass
    with made.span("other"):
        pass
    call, found, other = ended
    assert found is sync
    assert (call.parent_id, sync.parent_id, other.parent_id) == (sync.context.span_id, 0, 0)
    assert call.context.trace_id == sync.context.trace_id != other.context.trace_id
    assert call.kind is SpanKind.CLIENT
    assert call.attributes == {"rpc.method": "Version"}


async def test_a_task_of_some_work_makes_parts_of_it_as_long_as_the_work_lasts() -> None:
    made, ended = tracer()
    go_on = trio.Event()

    async def work() -> None:
        with made.span("in it"):
            pass
        await go_on.wait()
        with made.span("after it"):
            pass

    async with trio.open_nursery() as nursery:
        with made.span("sync") as sync:
            nursery.start_soon(work)
            await trio.testing.wait_all_tasks_blocked()
        go_on.set()
    parents = {each.name: each.parent_id for each in ended}
    assert parents == {"in it": sync.context.span_id, "sync": 0, "after it": 0}


async def test_a_span_takes_the_time_of_its_body(autojump_clock: MockClock) -> None:
    made, ended = tracer()
    with made.span("sync"):
        await trio.sleep(2)
    (span,) = ended
    assert span.ended_at_ns - span.began_at_ns == 2_000_000_000


async def test_what_is_raised_is_the_error_of_the_span() -> None:
    made, ended = tracer()
    with pytest.raises(ValueError, match="odd"), made.span("sync"):
        raise ValueError("odd")
    with trio.CancelScope() as scope, made.span("cut off"):
        scope.cancel()
        await trio.lowlevel.checkpoint()
    with made.span("good"):
        pass
    assert [each.error for each in ended] == ["ValueError: odd", None, None]
    assert [each.attributes for each in ended] == [{}, {"cancelled": "true"}, {}]


async def test_long_texts_are_cut() -> None:
    made, ended = tracer()
    with pytest.raises(ValueError, match="x"), made.span("s", attributes={"a": "x" * 10_000}):
        raise ValueError("x" * 10_000)
    (span,) = ended
    assert len(str(span.attributes["a"])) == MOST_ATTRIBUTE_CHARACTERS
    assert span.error is not None
    assert len(span.error) == MOST_ATTRIBUTE_CHARACTERS


@pytest.mark.parametrize(
    ("rate", "parent", "is_sampled"),
    [
        (0, None, False),
        (MILLION, None, True),
        (0, PARENT, True),
        (MILLION, PARENT[:-1] + "0", False),
        (MILLION, PARENT[:-2] + "ff", True),
    ],
)
async def test_a_part_is_sampled_with_its_whole(
    rate: int, parent: str | None, is_sampled: bool
) -> None:
    made, ended = tracer(rate)
    context = parse_traceparent(parent) if parent else None
    with made.span("request", parent=context), made.span("part"):
        pass
    assert [each.name for each in ended] == (["part", "request"] if is_sampled else [])
    if is_sampled and parent is not None:
        assert f"{ended[1].parent_id:016x}" == parent.split("-")[2]


async def test_some_of_a_million_are_sampled_by_the_number_of_the_trace() -> None:
    made, _ = tracer(250_000)
    limit = 1 << 62
    assert made._is_sampled(limit // 2 - 1 << 1)
    assert not made._is_sampled(limit // 2 << 1)
    assert made._is_sampled(0xFFFF << 64), "its lower half decides"


def test_a_context_is_told_and_read() -> None:
    context = parse_traceparent(PARENT)
    assert context == SpanContext(
        0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, sampled=True
    )
    assert context is not None
    assert context.traceparent == PARENT


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        PARENT.upper(),
        PARENT[:-1],
        f"{PARENT}-more",
        f"ff{PARENT[2:]}",
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
        "0" * 1_000_000,
    ],
)
def test_what_is_no_context_counts_as_none(text: str) -> None:
    assert parse_traceparent(text) is None


def test_a_context_of_a_later_version_may_have_more() -> None:
    assert parse_traceparent(f"01{PARENT[2:]}-more") is not None


def a_span() -> Span:
    return Span("s", SpanKind.INTERNAL, SpanContext(1, 2, sampled=True), 0, 1, ended_at_ns=2)


async def test_the_queue_drops_what_is_too_much_and_counts_it(autojump_clock: MockClock) -> None:
    queue, dropped = SpanQueue(), list[int]()
    queue.on_dropped.add(dropped.append)
    for _ in range(MOST_SPANS + 3):
        queue.put(a_span())
    assert (len(queue), sum(dropped)) == (MOST_SPANS, 3)
    began_at = trio.current_time()
    for _ in range(MOST_SPANS // BATCH_SPANS):
        assert len(await queue.take(5)) == BATCH_SPANS
    assert trio.current_time() == began_at, "where there are many, nobody waits"
    queue.put(a_span())
    assert len(await queue.take(5)) == 1
    assert trio.current_time() - began_at == 5
    assert await queue.take(5) == []
