"""Frames of WebSockets: read in whatever pieces they come, and refused where they are none."""

import struct
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

import pytest
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.server import RequestError
from trio_kubelet.server.messages import Headers
from trio_kubelet.streaming.websocket import (
    FRAMES_IN_A_TURN,
    Control,
    Piece,
    WebSocket,
    WebSocketError,
    WebSocketFrames,
    accepted,
    frame,
    offered_protocols,
)

CONTINUATION, TEXT, BINARY, CLOSE, PING = 0, 1, 2, 8, 9
FIN = 0x80


def masked(data: bytes, opcode: int = BINARY, *, last: bool = True) -> bytes:
    """A frame as a client sends it."""
    mask = b"\x12\x34\x56\x78"
    whole = bytearray(frame(data, opcode))
    head = len(whole) - len(data)
    whole[0] = opcode | (FIN if last else 0)
    whole[1] |= 0x80
    hidden = bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))
    return bytes(whole[:head]) + mask + hidden


def read(pieces: Sequence[bytes]) -> tuple[list[bytes], list[Control]]:
    """The messages and the control frames in these bytes."""
    reader, messages, controls = WebSocketFrames(), list[bytes](), list[Control]()
    for piece in pieces:
        reader.feed(piece)
        while events := reader.events():
            for event in events:
                if isinstance(event, Control):
                    controls.append(event)
                elif event.begins:
                    messages.append(event.data)
                else:
                    messages[-1] += event.data
    return messages, controls


SIZES = [0, 1, 125, 126, 65535, 65536, 200_000]


@pytest.mark.parametrize("size", SIZES)
def test_a_message_of_any_size_is_read(size: int) -> None:
    data = bytes(index % 251 for index in range(size))
    assert read([masked(data)]) == ([data], [])


@given(
    st.lists(st.tuples(st.binary(max_size=200), st.integers(0, 3)), max_size=4),
    st.lists(st.integers(0, 1000), max_size=20),
)
def test_frames_may_be_cut_anywhere(messages: list[tuple[bytes, int]], places: list[int]) -> None:
    """Each message is in a number of frames, with a ping between two of them."""
    data = b""
    for content, cuts in messages:
        parts = [content[index :: cuts + 1] for index in range(cuts + 1)]
        for index, part in enumerate(parts):
            opcode = BINARY if index == 0 else CONTINUATION
            data += masked(part, opcode, last=index == cuts)
            data += masked(b"p", PING)
    ends = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    pieces = [data[begin:end] for begin, end in pairwise(ends)]
    found, controls = read(pieces)
    assert found == [
        b"".join(content[index :: cuts + 1] for index in range(cuts + 1))
        for content, cuts in messages
    ]
    assert controls == [Control(PING, b"p")] * sum(cuts + 1 for _, cuts in messages)


def test_many_small_frames_are_read_in_several_turns() -> None:
    reader = WebSocketFrames()
    reader.feed(masked(b"x") * (FRAMES_IN_A_TURN + 1))
    assert reader.events() == [Piece(b"x", begins=True)] * FRAMES_IN_A_TURN
    assert reader.events() == [Piece(b"x", begins=True)]
    assert reader.events() == []


@pytest.mark.parametrize(
    "data",
    [
        frame(b"not masked"),
        masked(b"x" * 126, PING),
        masked(b"", PING, last=False),
        masked(b"", CONTINUATION),
        masked(b"a", last=False) + masked(b"b"),
        masked(b"", 3),
        masked(b"", 11),
        bytes((masked(b"")[0] | 0x40,)) + masked(b"")[1:],
        struct.pack(">BBQ4s", FIN | BINARY, 0x80 | 127, 1 << 63, b"mask"),
    ],
)
def test_what_breaks_the_protocol_is_refused(data: bytes) -> None:
    reader = WebSocketFrames()
    reader.feed(masked(b"good") + data)
    found = reader.events()
    assert found[0] == Piece(b"good", begins=True)
    for _ in range(2):
        with pytest.raises(WebSocketError):
            reader.events()


@given(st.lists(st.binary(max_size=30), max_size=5))
def test_bytes_of_any_kind_are_frames_or_refused(pieces: list[bytes]) -> None:
    with suppress(WebSocketError):
        read(pieces)


KEY = ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")


def test_a_websocket_is_accepted_as_its_rfc_has_it() -> None:
    headers = Headers((KEY, ("Sec-WebSocket-Version", "13")))
    assert ("Sec-WebSocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=") in accepted(headers, "p")


@pytest.mark.parametrize(
    "pairs",
    [
        (),
        (KEY,),
        (KEY, ("Sec-WebSocket-Version", "12")),
        (("Sec-WebSocket-Key", "short"), ("Sec-WebSocket-Version", "13")),
        (("Sec-WebSocket-Key", "é" * 24), ("Sec-WebSocket-Version", "13")),
    ],
)
def test_what_is_no_websocket_is_not_accepted(pairs: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(RequestError) as caught:
        accepted(Headers(pairs), "p")
    assert caught.value.status == 400


def test_protocols_are_offered_in_one_header_or_in_several() -> None:
    offers = (("Sec-WebSocket-Protocol", "a, b"), ("Sec-WebSocket-Protocol", "c"))
    assert offered_protocols(Headers((("Upgrade", "WebSocket"), *offers))) == ("a", "b", "c")
    assert offered_protocols(Headers((("Upgrade", "SPDY/3.1"), *offers))) == ()


async def test_what_a_client_sends_right_before_its_close_is_received() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    await theirs.send_all(masked(b"last words") + masked(struct.pack(">H", 1000), CLOSE))
    client = WebSocket(ours, trio.lowlevel.checkpoint)
    assert await client.receive(None) == [Piece(b"last words", begins=True)]
    assert await client.receive(None) is None
    assert await client.receive(None) is None
    assert await theirs.receive_some() == frame(struct.pack(">H", 1000), CLOSE)


async def test_what_came_at_once_is_read_in_turns() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    turns = 0

    async def turn() -> None:
        nonlocal turns
        turns += 1

    await theirs.send_all(masked(b"") * (3 * FRAMES_IN_A_TURN) + masked(b"x"))
    client = WebSocket(ours, turn)
    for number in (1, 2, 3):
        assert await client.receive(None) == [Piece(b"", begins=True)] * FRAMES_IN_A_TURN
        assert turns == number
    assert await client.receive(None) == [Piece(b"x", begins=True)]
    assert turns == 3
