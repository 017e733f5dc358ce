"""List responses of CRI without decoding again what did not change.

Nearly all of a relist is the same as in the last one, yet the bytes are not: Go writes maps in
random order. Everything in an entry but its state is fixed when the sandbox or container is
created, so the response is scanned on the wire for each entry's id and state alone, and the
entry that was decoded the last time is used again while both are equal.
"""

from collections.abc import Mapping
from typing import Generic, TypeVar

import betterproto

from trio_kubelet.rpc.errors import Code, RpcError
from trio_kubelet.rpc.messages import decode

M = TypeVar("M", bound=betterproto.Message)

Entry = tuple[bytes, int, int, int]
"""An entry's id and state, and where its bytes start and stop in the response."""

_VARINT, _BYTES = 0, 2
_FIXED_SIZES = {1: 8, 5: 4}
_MORE = 0x80
_ENTRY = _ID = 1 << 3 | _BYTES
_KIND = _MORE | 7
"""Of a tag: its wire type, and whether it goes on in a second byte."""


def scan_entries(response: bytes, state_field: int) -> list[Entry]:
    """Find the entries of a list response, which are its field 1, and their ids, field 1 too.

    `state_field` is the number of the state in an entry (below 16); an absent one is 0. Fields
    may stand in any order; what follows the state and the id is passed over. Raises ValueError
    when the bytes are not such a message.
    """
    entries: list[Entry] = []
    position, end = 0, len(response)
    try:
        while position < end:
            if response[position] != _ENTRY:
                position = _skip(response, position)
                continue
            size, start = _varint(response, position + 1)
            position = start + size
            entries.append(_scan_entry(response, start, position, state_field << 3 | _VARINT))
    except IndexError:
        position = end + 1
    if position != end:
        raise ValueError("the response is cut short")
    return entries


def _scan_entry(data: bytes, start: int, stop: int, state_tag: int) -> Entry:
    """Scan one entry; a thousand of them take a millisecond or two, hence the short cuts."""
    identifier, state, position = b"", 0, start
    while position < stop:
        tag, size = data[position], data[position + 1]
        if tag & _KIND == _BYTES and size < _MORE:
            position += 2
            if tag == _ID:
                identifier = data[position : position + size]
            position += size
        elif tag == state_tag:
            state, position = _varint(data, position + 1)
            if identifier:
                return identifier, state, start, stop
        elif tag & _KIND == _VARINT:
            position += 1
            while data[position] >= _MORE:
                position += 1
            position += 1
        elif tag == _ID:
            size, position = _varint(data, position + 1)
            identifier = data[position : position + size]
            position += size
        else:
            position = _skip(data, position)
    if position != stop:
        raise ValueError("an entry does not end where it says")
    return identifier, state, start, stop


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Read the number at a position; returns it and the position behind it."""
    value, shift = data[position], 0
    if value < _MORE:
        return value, position + 1
    value = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < _MORE:
            return value, position
        shift += 7


def _skip(data: bytes, position: int) -> int:
    """Return the position behind the field that starts at a position."""
    tag, position = _varint(data, position)
    kind = tag & 7
    if kind == _VARINT:
        return _varint(data, position)[1]
    if kind == _BYTES:
        size, position = _varint(data, position)
        return position + size
    if kind in _FIXED_SIZES:
        return position + _FIXED_SIZES[kind]
    raise ValueError(f"wire type {kind} is unknown")


class ListReuse(Generic[M]):
    """The decoded entries of one list, kept from response to response.

    Entries are handed out again and again: they must not be changed by those who get them.
    """

    __slots__ = ("_answer", "_entries", "_state_field", "_type")

    def __init__(self, entry_type: type[M], *, state_field: int) -> None:
        self._type = entry_type
        self._state_field = state_field
        self._entries: Mapping[bytes, tuple[int, M]] = {}
        self._answer: tuple[M, ...] = ()

    def decode(self, response: bytes) -> tuple[M, ...]:
        """Return the response's entries in its order, decoding those that are new or changed.

        If none came, went or changed, whatever their order, it is the very tuple that was
        returned before: `is` tells. Entries that are not in this response are forgotten. Raises
        RpcError(INTERNAL) when the bytes are not such a response; what was kept stays then.
        """
        try:
            scanned = scan_entries(response, self._state_field)
        except ValueError as error:
            text = f"cannot decode a list of {self._type.__name__}: {error}"
            raise RpcError(Code.INTERNAL, text) from error
        kept = self._entries
        entries: dict[bytes, tuple[int, M]] = {}
        answer: list[M] = []
        same = len(scanned) == len(kept) == len(self._answer)
        for identifier, state, start, stop in scanned:
            entry = kept.get(identifier)
            if entry is None or entry[0] != state:
                entry = (state, decode(self._type, response[start:stop]))
                same = False
            if identifier:
                entries[identifier] = entry
            answer.append(entry[1])
        self._entries = entries
        if not same or len(entries) != len(kept):
            self._answer = tuple(answer)
        return self._answer
