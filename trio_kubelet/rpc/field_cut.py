"""Messages of which their reader wants a part: long fields are cut, or only the head is kept.

The output of a command comes as one message of up to 16 MiB, of which a probe wants the begin and
the exit code behind it. Each event of a container comes with the statuses of all the containers of
its pod, behind what the event is about. Read whole, the one would be in memory several times for
each probe, the other cost the neighbours of a pod with a thousand containers 50 ms an event.
"""

from collections.abc import Mapping

from attrs import field, frozen

_VARINT, _BYTES = 0, 2
_FIXED_SIZES = {1: 8, 5: 4}
_MORE = 0x80
_LONGEST = 10


class FieldCut:
    """Keeps at most `limit` bytes of each field that has a length; `received` are all bytes.

    For messages whose fields with a length are text or bytes: a nested one would be cut in its
    midst.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._begun = b""  # a tag, length or number of which more is to come
        self._to_keep = 0
        self._to_drop = 0
        self.received = 0

    def feed(self, piece: bytes) -> None:
        """Take the next bytes of the message. Raises ValueError if it is none."""
        self.received += len(piece)
        data, position = self._begun + piece, 0
        self._begun = b""
        while position < len(data):
            if self._to_keep:
                kept = data[position : position + self._to_keep]
                self._kept += kept
                self._to_keep -= len(kept)
                position += len(kept)
            elif self._to_drop:
                dropped = min(self._to_drop, len(data) - position)
                self._to_drop -= dropped
                position += dropped
            else:
                end = self._begin_field(data, position)
                if end == position:
                    self._begun = data[position:]
                    return
                position = end

    def message(self) -> bytes:
        """Return the message with its fields cut. Raises ValueError if its end has not come."""
        if self._begun or self._to_keep or self._to_drop:
            raise ValueError("the message is cut short")
        return bytes(self._kept)

    def _begin_field(self, data: bytes, position: int) -> int:
        """Take a field up to its content; returns the same position if more is to come."""
        tag, start = _varint(data, position)
        if not start:
            return position
        kind = tag & 7
        if kind in _FIXED_SIZES:
            self._kept += data[position:start]
            self._to_keep = _FIXED_SIZES[kind]
            return start
        if kind not in (_VARINT, _BYTES):
            raise ValueError(f"wire type {kind} is unknown")
        value, end = _varint(data, start)
        if not end:
            return position
        if kind == _VARINT:
            self._kept += data[position:end]
            return end
        self._to_keep = min(value, self._limit)
        self._to_drop = value - self._to_keep
        self._kept += data[position:start] + _written(self._to_keep)
        return end


@frozen
class Head:
    """The fields of a message with numbers below `end`, and the heads of those nested in it."""

    end: int
    nested: Mapping[int, "Head"] = field(factory=dict)

    def of(self, message: bytes) -> bytes:
        """The head of a message: what comes before its first field that is not wanted.

        Fields are written in the order of their numbers. Raises ValueError if it is no message.
        """
        kept, position = bytearray(), 0
        while position < len(message):
            tag, content = _number(message, position)
            number, kind = tag >> 3, tag & 7
            if number >= self.end:
                break
            content, end = _bounds(message, kind, content)
            if kind == _BYTES and number in self.nested:
                inner = self.nested[number].of(message[content:end])
                kept += _written(tag) + _written(len(inner)) + inner
            else:
                kept += message[position:end]
            position = end
        return bytes(kept)


def _bounds(message: bytes, kind: int, position: int) -> tuple[int, int]:
    """Find begin and end of the content of a field, whose tag ends at this position."""
    if kind in _FIXED_SIZES:
        content, end = position, position + _FIXED_SIZES[kind]
    elif kind == _VARINT:
        content, end = position, _number(message, position)[1]
    elif kind == _BYTES:
        size, content = _number(message, position)
        end = content + size
    else:
        raise ValueError(f"wire type {kind} is unknown")
    if end > len(message):
        raise ValueError("the message is cut short")
    return content, end


def _number(message: bytes, position: int) -> tuple[int, int]:
    value, end = _varint(message, position)
    if not end:
        raise ValueError("the message is cut short")
    return value, end


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Read a number; returns it and the position behind it, which is 0 if more is to come."""
    value = 0
    for index, byte in enumerate(data[position : position + _LONGEST]):
        value |= (byte & 0x7F) << 7 * index
        if byte < _MORE:
            return value, position + index + 1
    if len(data) - position >= _LONGEST:
        raise ValueError("a number has more than ten bytes")
    return 0, 0


def _written(value: int) -> bytes:
    digits = bytearray()
    while value >= _MORE:
        digits.append(value & 0x7F | _MORE)
        value >>= 7
    digits.append(value)
    return bytes(digits)
