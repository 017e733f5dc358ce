"""The one exception of every call, and the codes of gRPC."""

from collections.abc import Awaitable, Mapping
from enum import IntEnum
from typing import TypeVar

from h2.errors import ErrorCodes

T = TypeVar("T")

MOST_MESSAGE_CHARACTERS = 16 * 1024
"""Of a message: a runtime repeats in it what a pod or an image says, in megabytes perhaps."""


class Code(IntEnum):
    """The status of a call; the numbers are those on the wire."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


CODES_OF_RESETS: Mapping[int, Code] = {
    ErrorCodes.FLOW_CONTROL_ERROR: Code.RESOURCE_EXHAUSTED,
    ErrorCodes.REFUSED_STREAM: Code.UNAVAILABLE,
    ErrorCodes.CANCEL: Code.CANCELLED,
    ErrorCodes.ENHANCE_YOUR_CALM: Code.RESOURCE_EXHAUSTED,
    ErrorCodes.INADEQUATE_SECURITY: Code.PERMISSION_DENIED,
}


class RpcError(Exception):
    """A call that failed: at the peer, on the way, or by its deadline.

    After DEADLINE_EXCEEDED, UNAVAILABLE and CANCELLED nobody knows whether the peer did what it
    was asked to do. A service raises this error to answer with a status other than OK. A message
    that is very long is cut.
    """

    def __init__(self, code: Code, message: str) -> None:
        message = message[:MOST_MESSAGE_CHARACTERS]
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


def code_of_reset(error_code: int) -> Code:
    """Return gRPC's reading of the error code of HTTP/2 with which a server resets a call."""
    return CODES_OF_RESETS.get(error_code, Code.INTERNAL)


def code_name(code: Code) -> str:
    """Return the name of a code in Go's gRPC, which spells one of them in another way."""
    if code is Code.CANCELLED:
        return "Canceled"
    return "".join(word.capitalize() for word in code.name.split("_"))


def rpc_words(code: Code, message: str) -> str:
    """Return how Go's gRPC shows an error."""
    return f"rpc error: code = {code_name(code)} desc = {message}"


async def unless_gone(call: Awaitable[T]) -> T | None:
    """Await a call; None where the peer has nothing any more of what it is about (NOT_FOUND)."""
    try:
        return await call
    except RpcError as error:
        if error.code is Code.NOT_FOUND:
            return None
        raise
