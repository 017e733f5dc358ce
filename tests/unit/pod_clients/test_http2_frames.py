"""Frames of HTTP/2, good ones and any, in pieces of any size: what they mean to a probe."""

from collections.abc import Iterable, Iterator

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import ProtocolError
from hypothesis import given
from hypothesis import strategies as st

from lab.probe_targets import grpc_answer
from tests.unit.pod_clients.servers import goodbye
from trio_kubelet.pod_clients.http2 import STREAM, ServerFrames
from trio_kubelet.pod_clients.http_messages import Heads, HttpError

SETTINGS = b"\0\0\0\4\0\0\0\0\0"
ANSWER = SETTINGS + (grpc_answer("ok", STREAM) or b"")
KINDS = st.integers(0, 10) | st.integers(0, 255)
STREAMS = st.sampled_from([0, 1, 1, 1, 2, 2**31, 2**32 - 1])
# Heads and trailers as HPACK has them, some of which h2 refuses.
CONTENTS = st.sampled_from([b"", b"\x88", b"\x8d\0\1a\1b", b"\0\1a\1\xff", bytes(8)]) | st.binary()


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    content = draw(CONTENTS)
    size = draw(st.just(len(content)) | st.integers(0, 2**24 - 1))
    flags = draw(st.integers(0, 255))
    return size.to_bytes(3) + bytes((draw(KINDS), flags)) + draw(STREAMS).to_bytes(4) + content


SENT = st.lists(
    frames() | st.sampled_from([ANSWER, SETTINGS, goodbye(0), goodbye(1, 11, b"why")]), max_size=6
).map(b"".join)


def meaning(pieces: Iterable[bytes]) -> Iterator[str]:
    client = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
    client.initiate_connection()
    client.send_headers(
        STREAM,
        [(":method", "GET"), (":path", "/"), (":scheme", "http"), (":authority", "a")],
        end_stream=True,
    )
    reader = ServerFrames(client, Heads())
    try:
        for piece in pieces:
            for event in reader.take(piece):
                yield repr(event)
    except (HttpError, ProtocolError, UnicodeError) as error:
        yield repr(error)


@given(SENT, st.data())
def test_what_a_server_sends_means_the_same_in_however_many_pieces_it_comes(
    sent: bytes, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(sent)))))
    ends = [*cuts, len(sent)]
    pieces = [sent[at:end] for at, end in zip([0, *cuts], ends, strict=True)]
    assert list(meaning(pieces)) == list(meaning([sent]))
