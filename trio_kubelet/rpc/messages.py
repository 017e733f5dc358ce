"""Messages to bytes and back, and which of them are there at all.

A sub-message that is empty is not one that is absent: `run_as_user` with value 0 is root, absent
it is "as the image says". betterproto drops a sub-message from the wire when nothing was ever
assigned in it: `overhead=LinuxContainerResources()` does not arrive. It keeps one with any field
given, even at its default (`Int64Value(value=0)`, `Int64Value(0)`), any field assigned, or one
that was read off the wire; and those marked with `present()`. A copy by `copy.deepcopy` forgets
the mark. When reading, ask `is_present(message.run_as_user)`: reading an absent field makes an
empty message that is not present (and betterproto's own `is_set` is fooled by that).
"""

from collections.abc import Iterator
from types import ModuleType
from typing import TypeVar

import betterproto
import trio

from trio_kubelet.rpc.errors import Code, RpcError
from trio_kubelet.tasks.threads import run_in_thread

M = TypeVar("M", bound=betterproto.Message)

_ENCODED = "_encoded_ahead"
LARGE_BYTES = 64 * 1024
"""More is read in a thread: each message nested in it takes ten microseconds."""
PAUSE_SECONDS = 0.02
"""Between two classes, each of which takes a millisecond or two."""


def present(message: M) -> M:
    """Mark a message as one that must be sent though it be empty; returns the same message."""
    message._serialized_on_wire = True
    return message


def is_present(message: betterproto.Message) -> bool:
    """Tell a sub-message that was on the wire, or will be, from one that is absent."""
    return betterproto.serialized_on_wire(message)


def decode(message_type: type[M], data: bytes) -> M:
    """Read one message; raises RpcError(INTERNAL) when the bytes are not one.

    An enum's value that the contract does not name is read as a plain int.
    """
    try:
        return message_type().parse(data)
    except Exception as error:
        # The codec has no error of its own: malformed bytes are a RuntimeError there, and a
        # number too large for its field an OverflowError.
        text = f"cannot decode {message_type.__name__} of {len(data)} bytes: {error}"
        raise RpcError(Code.INTERNAL, text) from error


async def decode_of_any_size(message_type: type[M], data: bytes) -> M:
    """As `decode`, in a thread if there is much to read. Cancelled, it finishes that first."""
    if len(data) <= LARGE_BYTES:
        return decode(message_type, data)
    return await run_in_thread(decode, message_type, data)


def encode(message: betterproto.Message) -> bytes:
    """Write one message; raises RpcError(INVALID_ARGUMENT) for what no message can hold.

    Such as text that is no Unicode, or a number that is too large for its field.
    """
    try:
        return encode_answer(message)
    except Exception as error:
        text = f"cannot encode {type(message).__name__}: {error}"
        raise RpcError(Code.INVALID_ARGUMENT, text) from error


def encode_answer(message: betterproto.Message) -> bytes:
    """Write what a service answered; raises any exception of the codec, which is a bug there."""
    ahead: bytes | None = message.__dict__.pop(_ENCODED, None)
    return bytes(message) if ahead is None else ahead


def encode_ahead(message: betterproto.Message) -> int:
    """Write a large message, for the next call that sends it; returns its bytes. Raises RpcError.

    For a thread: each nested message takes two microseconds. What is changed in the message
    afterwards is not sent by that call.
    """
    data = encode(message)
    # No field has the name, so that betterproto neither compares nor sends it.
    message.__dict__[_ENCODED] = data
    return len(data)


async def look_over(stubs: ModuleType) -> None:
    """Have all message classes of a module ready, in passing, before they are used.

    betterproto looks a class over when it is first used: all that a first pod needs would take a
    quarter of a second of it.
    """
    for message_type in _message_types(stubs):
        bytes(message_type())
        await trio.sleep(PAUSE_SECONDS)


def _message_types(stubs: ModuleType) -> Iterator[type[betterproto.Message]]:
    for each in vars(stubs).values():
        is_message = isinstance(each, type) and issubclass(each, betterproto.Message)
        if is_message and each.__module__ == stubs.__name__:
            yield each
