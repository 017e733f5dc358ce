"""The client's side of a call with many responses, the same for every transport.

A task of its own reads the responses into a bounded channel, so that being cancelled while waiting
for the next one loses nothing, and a slow reader holds up this call and no other.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Generic, TypeVar

import trio

from trio_kubelet.rpc.bounded import SMALL_BYTES
from trio_kubelet.rpc.errors import Code, RpcError
from trio_kubelet.rpc.field_cut import Head
from trio_kubelet.rpc.messages import decode, decode_of_any_size
from trio_kubelet.rpc.methods import Method, RequestT, ResponseT

T = TypeVar("T")

READ_AHEAD = 256
"""The responses that may wait for their reader before the peer has to."""


class Inbox:
    """The responses of one call, as a transport hands them over."""

    __slots__ = ("_arrived", "_channel", "_head", "_sent", "error")

    def __init__(self, head: Head | None = None, read_ahead: int = READ_AHEAD) -> None:
        self._head = head
        self._channel, self._arrived = trio.open_memory_channel[bytes](read_ahead)
        self._sent = trio.Event()
        self.error: Exception | None = None

    def request_is_sent(self) -> None:
        """The peer may respond from now on."""
        self._sent.set()

    def put_nowait(self, response: bytes) -> None:
        """Take one response; raises trio.WouldBlock when the reader is too far behind."""
        self._channel.send_nowait(self._wanted(response))

    async def put(self, response: bytes) -> None:
        """Take one response, after the reader has made room for it."""
        await self._channel.send(self._wanted(response))

    def _wanted(self, response: bytes) -> bytes:
        """Keep the head of a response; one that is no message is left to its reader."""
        with suppress(ValueError):
            return response if self._head is None else self._head.of(response)
        return response

    def end(self, error: Exception | None) -> None:
        """Let the reader see what arrived, then the error, if any, or the end."""
        self.error = error
        self._sent.set()
        self._channel.close()

    async def sent(self) -> None:
        """Wait until the request is sent; raises what prevented it."""
        await self._sent.wait()
        if self.error is not None and self._arrived.statistics().current_buffer_used == 0:
            raise self.error

    def close(self) -> None:
        """Forget what nobody read."""
        self._arrived.close()

    async def get(self) -> bytes:
        """Wait for the next response; raises StopAsyncIteration at the end of the call."""
        try:
            return await self._arrived.receive()
        except trio.EndOfChannel:
            if self.error is not None:
                raise self.error from None
            raise StopAsyncIteration from None


Decode = Callable[[type[ResponseT], bytes], Awaitable[ResponseT]]
"""Decodes a response of which it is not known how much work it is."""


class _Responses(Generic[ResponseT]):
    __slots__ = ("_decode", "_inbox", "_type")

    def __init__(
        self, inbox: Inbox, response_type: type[ResponseT], decode_large: Decode[ResponseT]
    ) -> None:
        self._inbox = inbox
        self._type = response_type
        self._decode = decode_large

    def __aiter__(self) -> AsyncIterator[ResponseT]:
        return self

    async def __anext__(self) -> ResponseT:
        data = await self._inbox.get()
        if len(data) <= SMALL_BYTES:
            return decode(self._type, data)
        with trio.CancelScope(shield=True):  # what has arrived is not lost
            response = await self._decode(self._type, data)
        return response  # noqa: RET504


def check_gathered(received_bytes: int, max_bytes: int) -> None:
    """Raise RpcError(RESOURCE_EXHAUSTED) if the answers of one call have become too many."""
    if received_bytes > max_bytes:
        text = f"received messages larger than max ({received_bytes} vs. {max_bytes})"
        raise RpcError(Code.RESOURCE_EXHAUSTED, text)


async def within(seconds: float | None, path: str, call: Awaitable[T]) -> T:
    """Await a call; after some seconds cancel it and raise RpcError(DEADLINE_EXCEEDED)."""
    if seconds is None:
        return await call
    with trio.move_on_after(seconds):
        return await call
    raise RpcError(Code.DEADLINE_EXCEEDED, f"{path} took longer than {seconds:g} s")


@asynccontextmanager
async def read_responses(
    call: Callable[[Inbox], Awaitable[None]],
    method: Method[RequestT, ResponseT],
    deadline_seconds: float | None,
    head: Head | None,
    read_ahead: int = READ_AHEAD,
    decode_large: Decode[ResponseT] = decode_of_any_size,
) -> AsyncIterator[AsyncIterator[ResponseT]]:
    """Run a call in a task while the body reads its responses; leaving the body cancels the call.

    Of each response only the `head` is read, if there is one. `read_ahead` may wait to be read.
    Errors of the body pass as they are, not in a group.
    """
    inbox = Inbox(head, read_ahead)
    failure: Exception | None = None

    async def read() -> None:
        error: Exception | None = None
        try:
            await within(deadline_seconds, method.path, call(inbox))
        except Exception as raised:
            error = raised
        finally:
            inbox.end(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        try:
            await inbox.sent()
            yield _Responses(inbox, method.response_type, decode_large)
        except Exception as raised:
            failure = raised
        nursery.cancel_scope.cancel()
    inbox.close()
    if failure is not None:
        raise failure
