"""Messages of peers that are not trusted: how much is in one is known before it is decoded.

Two bytes are a nested message, which takes some microseconds and hundreds of bytes of memory: an
answer of 4 MiB could take seconds and half a gigabyte. So the fields of a message, at all levels,
are counted by one pass over its bytes.
"""

from functools import cache
from typing import TypeVar

import betterproto
import trio

from trio_kubelet.rpc.errors import Code, RpcError
from trio_kubelet.rpc.messages import decode
from trio_kubelet.tasks.threads import run_in_thread

M = TypeVar("M", bound=betterproto.Message)

SMALL_BYTES = 4 * 1024
"""A message of no more bytes is decoded at once, its fields uncounted: a few milliseconds."""
MAX_FIELDS = 16_384

_VARINT, _BYTES = 0, 2
_FIXED_SIZES = {1: 8, 5: 4}
_MORE = 0x80
_LONGEST_NUMBER = 10


async def decode_bounded(
    message_type: type[M],
    data: bytes,
    max_fields: int = MAX_FIELDS,
    limiter: trio.CapacityLimiter | None = None,
) -> M:
    """Decode a message, one that is not small in a thread. Cancelled, it finishes that first.

    Raises RpcError: RESOURCE_EXHAUSTED for more fields, INTERNAL for bytes that are no message.
    """
    if len(data) <= SMALL_BYTES:
        return decode(message_type, data)

    def work() -> M:
        check_fields(message_type, data, max_fields)
        return decode(message_type, data)

    return await run_in_thread(work, limiter=limiter)


def check_fields(message_type: type[betterproto.Message], data: bytes, most: int) -> None:
    """Raise RpcError (RESOURCE_EXHAUSTED) for a message of more fields than `most`.

    Takes a microsecond for each. INTERNAL for bytes whose fields cannot be told apart: the decoder
    would first read all that stands before them, of which not everything is counted by then.
    """
    count, parts = 0, [(message_type, 0, len(data))]
    try:
        while parts:
            kind, position, end = parts.pop()
            nested = _nested(kind)
            while position < end:
                count += 1
                if count > most:
                    text = f"received message has more than {most} fields"
                    raise RpcError(Code.RESOURCE_EXHAUSTED, text)
                tag, position = _varint(data, position)
                if tag & 7 == _BYTES:
                    size, position = _varint(data, position)
                    if (inner := nested.get(tag >> 3)) is not None:
                        parts.append((inner, position, min(end, position + size)))
                    position += size
                elif tag & 7 == _VARINT:
                    _, position = _varint(data, position)
                else:
                    position += _FIXED_SIZES[tag & 7]
    except (IndexError, KeyError):
        text = f"cannot decode {message_type.__name__} of {len(data)} bytes"
        raise RpcError(Code.INTERNAL, text) from None


@cache
def _nested(message_type: type[betterproto.Message]) -> dict[int, type[betterproto.Message]]:
    """The types of the fields that are messages, by their numbers."""
    shape: betterproto.ProtoClassMetadata = message_type()._betterproto  # type: ignore[arg-type]
    names = shape.field_name_by_number
    found = ((number, shape.cls_by_field[name]) for number, name in names.items())
    return {number: kind for number, kind in found if _is_message(kind)}


def _is_message(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, betterproto.Message)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Read a number; returns it and the position behind it. IndexError for one that is none."""
    value = data[position]
    if value < _MORE:
        return value, position + 1
    value = 0
    for shift in range(_LONGEST_NUMBER):
        byte = data[position + shift]
        value |= (byte & 0x7F) << 7 * shift
        if byte < _MORE:
            return value, position + shift + 1
    raise IndexError
