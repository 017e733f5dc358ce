"""A message read in pieces is the message with its long fields cut, whatever the pieces."""

from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.rpc import FieldCut
from trio_kubelet.rpc.stubs.runtime import v1 as cri

LIMIT = 20
OUTPUT = st.binary(max_size=200)


def pieces(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    found, position = [], 0
    for size in (*sizes, len(data)):
        found.append(data[position : position + size])
        position += size
    return found


@given(OUTPUT, OUTPUT, st.integers(-(2**31), 2**31 - 1), st.lists(st.integers(0, 50)))
def test_what_is_short_stays_and_what_is_long_is_cut(
    stdout: bytes, stderr: bytes, exit_code: int, sizes: Sequence[int]
) -> None:
    message = cri.ExecSyncResponse(stdout=stdout, stderr=stderr, exit_code=exit_code)
    cut, data = FieldCut(LIMIT), bytes(message)
    for piece in pieces(data, sizes):
        cut.feed(piece)
    found = cri.ExecSyncResponse().parse(cut.message())
    assert (found.stdout, found.stderr) == (stdout[:LIMIT], stderr[:LIMIT])
    assert (found.exit_code, cut.received) == (exit_code, len(data))


@given(st.binary(), st.lists(st.integers(0, 50)))
def test_bytes_that_are_no_message_are_an_error_or_stay_small(
    data: bytes, sizes: Sequence[int]
) -> None:
    cut = FieldCut(LIMIT)
    with suppress(ValueError):
        for piece in pieces(data, sizes):
            cut.feed(piece)
        assert len(cut.message()) <= len(data)


def test_a_message_that_is_cut_short_is_an_error() -> None:
    data = bytes(cri.ExecSyncResponse(stdout=b"x" * 100))
    for end in range(1, len(data)):
        cut = FieldCut(LIMIT)
        cut.feed(data[:end])
        with pytest.raises(ValueError, match="cut short"):
            cut.message()


@pytest.mark.parametrize("data", [b"\x0b", b"\x08" + b"\xff" * 10, b"\xff" * 11])
def test_what_no_message_has_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"wire type|ten bytes"):
        FieldCut(LIMIT).feed(data)
