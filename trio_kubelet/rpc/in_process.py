"""A transport straight onto Python objects: no socket, no asyncio, the same behaviour.

Messages are encoded and decoded on the way as on a wire, so that nothing is shared by reference
and what does not survive the wire is noticed. Works on a mock clock. A call is a checkpoint
before its handler starts; the handler runs in the caller's task and is cancelled with it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import trio

from trio_kubelet.rpc.call_metadata import sent_callback
from trio_kubelet.rpc.field_cut import FieldCut, Head
from trio_kubelet.rpc.messages import encode
from trio_kubelet.rpc.methods import (
    Method,
    RequestT,
    ResponseT,
    StreamStub,
    Transport,
    UnaryStub,
    method_of,
)
from trio_kubelet.rpc.responses import Inbox, check_gathered, read_responses, within
from trio_kubelet.rpc.services import Services


class InProcess(Transport):
    """Calls methods of service objects; a method goes to the first object that has it."""

    def __init__(self, *services: object) -> None:
        self._services = Services(*services)

    async def unary_raw(
        self,
        method: UnaryStub[RequestT, ResponseT],
        request: RequestT,
        *,
        deadline_seconds: float | None = None,
        cut: FieldCut | None = None,
    ) -> bytes:
        """Call a method with one answer and return the answer's bytes; raises RpcError."""
        called = method_of(method)
        call = self._unary(called, encode(request))
        answer = await within(deadline_seconds, called.path, call)
        if cut is None:
            return answer
        cut.feed(answer)
        return cut.message()

    async def gather_raw(
        self,
        method: StreamStub[RequestT, ResponseT],
        request: RequestT,
        *,
        max_bytes: int,
        deadline_seconds: float | None = None,
    ) -> bytes:
        """Call a method with many answers, as `Transport.gather_raw` says."""
        called = method_of(method)
        answers = bytearray()

        async def add(answer: bytes) -> None:
            check_gathered(len(answers) + len(answer), max_bytes)
            answers.extend(answer)

        await within(deadline_seconds, called.path, self._gather(called, encode(request), add))
        return bytes(answers)

    async def _gather(
        self,
        method: Method[RequestT, ResponseT],
        request: bytes,
        add: Callable[[bytes], Awaitable[None]],
    ) -> None:
        await trio.lowlevel.checkpoint()
        await self._services.stream(method, request, add)

    def stream(
        self,
        method: StreamStub[RequestT, ResponseT],
        request: RequestT,
        *,
        deadline_seconds: float | None = None,
        head: Head | None = None,
    ) -> AbstractAsyncContextManager[AsyncIterator[ResponseT]]:
        """Call a method with many answers, as `Transport.stream` says."""
        called = method_of(method)
        data = encode(request)

        async def call(inbox: Inbox) -> None:
            await trio.lowlevel.checkpoint()
            inbox.request_is_sent()
            await self._services.stream(called, data, inbox.put)

        return read_responses(call, called, deadline_seconds, head)

    async def _unary(self, method: Method[RequestT, ResponseT], request: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        sent_callback()()
        return await self._services.unary(method, request)
