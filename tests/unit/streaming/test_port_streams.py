"""Streams to ports of pods: counted by their frames, given back when over, refused beyond."""

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from tests.hostile.streams import SpdyStreams
from trio_kubelet.server.connections import Place
from trio_kubelet.streaming.port_streams import (
    ANSWERED_SECONDS,
    GIVEN_UP_SECONDS,
    MOST_OF_A_NAMESPACE,
    MOST_STREAMS,
    CountedStreams,
    StreamCounts,
)
from trio_kubelet.streaming.spdy import StreamChange, StreamChanges, data_frame

PORT = 8080
FULL = range(MOST_OF_A_NAMESPACE // 2)


def changes(pieces: Sequence[bytes]) -> list[tuple[StreamChange, int]]:
    reader, found = StreamChanges(), list[tuple[StreamChange, int]]()
    for piece in pieces:
        reader.feed(piece)
        while reader.has_more:
            found += reader.changes()
    return found


@pytest.mark.parametrize("size", [1, 3, 11, 10_000])
def test_changes_are_read_however_their_frames_are_cut(size: int) -> None:
    streams = SpdyStreams()
    data = streams.port(PORT, 0) + data_frame(3, b"x" * 100) + streams.reset()
    data += data_frame(1, b"", is_last=True)
    pieces = [data[begin : begin + size] for begin in range(0, len(data), size)]
    opened = [(StreamChange.OPENED, 1), (StreamChange.OPENED, 3)]
    sent = (StreamChange.SENT, 3)
    assert changes(pieces) == [*opened, sent, (StreamChange.RESET, 3), (StreamChange.ENDED, 1)]


def test_a_namespace_has_its_share_and_all_have_theirs() -> None:
    counts = StreamCounts()
    shares = MOST_STREAMS // MOST_OF_A_NAMESPACE
    for number in range(shares):
        assert counts.take(f"n{number}", MOST_OF_A_NAMESPACE, now=0)
        assert not counts.take(f"n{number}", 1, now=0)
    assert not counts.take("other", 1, now=0)
    counts.give_back("n0")
    assert counts.take("other", 1, now=0)


def test_what_a_client_gives_up_counts_on_for_a_while() -> None:
    counts = StreamCounts()
    assert counts.take("n", MOST_OF_A_NAMESPACE, now=0)
    counts.give_up("n", MOST_OF_A_NAMESPACE, until=GIVEN_UP_SECONDS + 1)
    assert not counts.take("n", 1, now=GIVEN_UP_SECONDS)
    assert counts.take("n", MOST_OF_A_NAMESPACE, now=GIVEN_UP_SECONDS + 1)


class Forwarded:
    """A client's connection, whose streams are counted."""

    def __init__(self, counts: StreamCounts) -> None:
        ours, self.client = trio.testing.memory_stream_pair()
        self.counted = CountedStreams(ours, Place.alone(), counts)

    async def sends(self, data: bytes) -> bytes:
        await self.client.send_all(data)
        return await self.counted.receive_some()


async def test_streams_that_the_runtime_has_ended_make_room() -> None:
    forwarded, streams = Forwarded(StreamCounts()), SpdyStreams()
    for request in range(2 * MOST_OF_A_NAMESPACE):
        opened = streams.port(PORT, request)
        assert await forwarded.sends(opened) == opened
        last = 4 * request + 3
        for stream in (last - 2, last):
            await forwarded.counted.send_all(data_frame(stream, b"x", is_last=True))


async def test_streams_that_their_client_resets_when_it_has_read_them_make_room_soon(
    autojump_clock: trio.testing.MockClock,
) -> None:
    forwarded, streams = Forwarded(StreamCounts()), SpdyStreams()
    for request in range(2 * MOST_OF_A_NAMESPACE):
        await forwarded.sends(streams.port(PORT, request))
        last = 4 * request + 3
        await forwarded.counted.send_all(data_frame(last, b"an answer"))
        await forwarded.counted.send_all(data_frame(last - 2, b"", is_last=True))
        await forwarded.sends(streams.reset())
        await trio.sleep(2 * ANSWERED_SECONDS / MOST_OF_A_NAMESPACE)


@pytest.mark.parametrize("is_reset", [True, False], ids=["reset", "cut-off"])
async def test_one_stream_too_many_ends_the_connection_and_others_wait(
    autojump_clock: trio.testing.MockClock, *, is_reset: bool
) -> None:
    counts, streams = StreamCounts(), SpdyStreams()
    forwarded = Forwarded(counts)
    for request in FULL:
        opened = streams.port(PORT, request)
        await forwarded.sends(opened + (streams.reset() if is_reset else b""))
    with pytest.raises(trio.BrokenResourceError):
        await forwarded.sends(streams.port(PORT, 0))
    await forwarded.counted.aclose()
    first = SpdyStreams().port(PORT, 0)
    with pytest.raises(trio.BrokenResourceError):
        await Forwarded(counts).sends(first)
    await trio.sleep(GIVEN_UP_SECONDS)
    assert await Forwarded(counts).sends(first) == first
