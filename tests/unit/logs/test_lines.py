"""What is made of CRI's log format, and what a query may ask of it: tables."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.k8s.time import parse_ns
from trio_kubelet.logs.lines import MAX_LINE_BYTES, LogLines
from trio_kubelet.logs.options import LogOptions, log_options
from trio_kubelet.server import RequestError
from trio_kubelet.server.messages import Values

T1, T2 = b"2026-01-01T00:00:01.5Z", b"2026-01-01T00:00:02.000000001+01:00"
LOG = (
    T1 + b" stdout F one\n" + T1 + b" stderr P tw\n" + T2 + b" stderr F o\n" + T2 + b" stdout F \n"
)


@pytest.mark.parametrize(
    ("log", "options", "sent"),
    [
        (LOG, {}, b"one\ntwo\n\n"),
        (LOG, {"stream": b"stderr"}, b"two\n"),
        (LOG, {"limit_bytes": 6}, b"one\ntw"),
        (LOG, {"limit_bytes": 100}, b"one\ntwo\n\n"),
        (
            LOG,
            {"limit_bytes": 36, "timestamps": True},
            b"2026-01-01T00:00:01.500000000Z one\n2",
        ),
        (
            LOG,
            {"timestamps": True},
            b"2026-01-01T00:00:01.500000000Z one\n2026-01-01T00:00:01.500000000Z two\n"
            + T2
            + b" \n",
        ),
        (LOG, {"since_ns": parse_ns("2026-01-01T00:00:01.5Z")}, b"one\ntwo\n\n"),
        (LOG, {"since_ns": parse_ns("2026-01-01T00:00:01.6Z")}, b""),
        (b"x stdout F bad time\n" + LOG, {"since_ns": 0}, b"one\ntwo\n\n"),
        (T1 + b" stdout F:x one\n" + T1 + b" stdout P:x t\n", {}, b"one\nt"),
        (b"\n\0\xff\nnonsense\n" + T1 + b" stdin F x\n" + LOG, {}, b"one\ntwo\n\n"),
        (T1 + b" stdout F \xff\r\n", {}, b"\xff\r\n"),
        (T1 + b" stdout F no end", {}, b"no end\n"),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_log_becomes_what_was_printed(
    log: bytes, options: dict[str, Any], sent: bytes, size: int
) -> None:
    lines = LogLines(LogOptions(**options))
    pieces = [lines.feed(log[at : at + size]) for at in range(0, len(log), size)]
    assert b"".join([*pieces, lines.end()]) == sent
    assert lines.full == (options.get("limit_bytes") == len(sent))


def test_a_line_without_an_end_takes_no_memory() -> None:
    lines = LogLines(LogOptions())
    for _ in range(5):
        assert lines.feed(b"x" * (MAX_LINE_BYTES // 2)) == b""
    assert lines.feed(b" stdout F x y\n" + T1 + b" stdout F next\n") == b"next\n"


@given(st.lists(st.binary(max_size=30)), st.booleans())
def test_anything_may_stand_in_a_log(pieces: list[bytes], timestamps: bool) -> None:
    lines = LogLines(LogOptions(timestamps=timestamps, since_ns=0))
    for piece in pieces:
        lines.feed(piece)


NOW = parse_ns("2026-01-01T00:01:00Z")


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ({}, {}),
        ({"follow": "true", "timestamps": "1"}, {"follow": True, "timestamps": True}),
        ({"follow": "false", "previous": "t"}, {"previous": True}),
        ({"follow": "true", "previous": "true"}, {"previous": True}),
        ({"tailLines": "0", "limitBytes": "7"}, {"tail_lines": 0, "limit_bytes": 7}),
        ({"tailLines": "+5"}, {"tail_lines": 5}),
        ({"sinceSeconds": "60"}, {"since_ns": NOW - 60 * 10**9}),
        ({"sinceTime": "2026-01-01T00:01:00Z"}, {"since_ns": NOW}),
        ({"stream": "Stderr"}, {"stream": b"stderr"}),
        ({"stream": "All", "tailLines": "1"}, {"tail_lines": 1}),
        ({"other": "x"}, {}),
    ],
)
def test_a_query_is_read(query: dict[str, str], options: dict[str, Any]) -> None:
    found = log_options(Values(tuple(query.items())), NOW, streams=True)
    assert found == LogOptions(**options)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"follow": "maybe"}, 400),
        ({"tailLines": "x"}, 400),
        ({"tailLines": "-"}, 400),
        ({"tailLines": "1.5"}, 400),
        ({"tailLines": "٣"}, 400),
        ({"tailLines": "9" * 19}, 400),
        ({"tailLines": "9" * 5000}, 400),
        ({"sinceTime": "yesterday"}, 400),
        ({"tailLines": "-1"}, 422),
        ({"limitBytes": "0"}, 422),
        ({"sinceSeconds": "0"}, 422),
        ({"sinceSeconds": "1", "sinceTime": "2026-01-01T00:01:00Z"}, 422),
        ({"stream": "stderr"}, 422),
        ({"stream": ""}, 422),
        ({"stream": "Stderr", "tailLines": "1"}, 422),
    ],
)
def test_a_query_that_makes_no_sense_is_refused(query: dict[str, str], status: int) -> None:
    with pytest.raises(RequestError) as refused:
        log_options(Values(tuple(query.items())), NOW, streams=True)
    assert refused.value.status == status


@pytest.mark.parametrize("stream", ["Stderr", "Stdout", "All", ""])
def test_no_stream_may_be_asked_for_where_the_gate_is_off(stream: str) -> None:
    with pytest.raises(RequestError) as refused:
        log_options(Values((("stream", stream),)), NOW, streams=False)
    assert (refused.value.status, str(refused.value)) == (422, '{"message": "Invalid request."}')
