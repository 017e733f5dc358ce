"""The way from one life of the agent to the runtime, which can be cut.

An agent that is killed ends in the middle of its calls, the shielded ones too. So each life has a
transport of its own, which is cut when the agent is killed. Events may arrive twice.

Encoding and decoding is most of what a call costs, so messages are handed over as they are,
except lists and events; what the codec does to them is tested elsewhere.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from trio_kubelet.rpc import Code, FieldCut, Head, InProcess, RpcError
from trio_kubelet.rpc.messages import decode, encode
from trio_kubelet.rpc.methods import RequestT, ResponseT, StreamStub, UnaryStub, method_of
from trio_kubelet.rpc.responses import within
from trio_kubelet.rpc.stubs.runtime import v1 as cri

T = TypeVar("T")


class WrappedRuntime(InProcess):
    """A transport onto service objects, for those that change what arrives.

    They override `unary_raw` and `on_stream`.
    """

    @asynccontextmanager
    async def stream(
        self,
        method: StreamStub[RequestT, ResponseT],
        request: RequestT,
        *,
        deadline_seconds: float | None = None,
        head: Head | None = None,
    ) -> AsyncIterator[AsyncIterator[ResponseT]]:
        """As `Transport.stream`."""
        stream = super().stream(method, request, deadline_seconds=deadline_seconds, head=head)
        async with stream as answers:
            yield self.on_stream(method_of(method).response_type, answers)

    def on_stream(
        self, kind: type[ResponseT], answers: AsyncIterator[ResponseT]
    ) -> AsyncIterator[ResponseT]:
        """What arrives of a stream of answers."""
        return answers


class RuntimeTransport(WrappedRuntime):
    """A transport onto service objects. `doubling` is the share of events that come twice.

    `on_command` is called with each command whose end the agent learns, and whether it succeeded.
    """

    def __init__(
        self,
        service: object,
        chance: random.Random | None = None,
        doubling: float = 0.0,
        on_command: Callable[[cri.ExecSyncRequest, bool], None] = lambda _request, _succeeded: None,
    ) -> None:
        super().__init__(service)
        self._service = service
        self._on_command = on_command
        self._chance = chance or random.Random(0)
        self._doubling = doubling
        self._calls: dict[trio.CancelScope, None] = {}
        self._is_cut = False

    def cut(self) -> None:
        """Let all calls fail, those under way and those to come."""
        self._is_cut = True
        for call in tuple(self._calls):
            call.cancel()

    async def unary(
        self,
        method: UnaryStub[RequestT, ResponseT],
        request: RequestT,
        *,
        deadline_seconds: float | None = None,
        cut: FieldCut | None = None,
    ) -> ResponseT:
        """As `Transport.unary`; no command prints so much that it would be cut."""
        called = method_of(method)
        if isinstance(request, cri.ExecSyncRequest):  # It is encoded ahead, and has no command.
            request = decode(type(request), encode(request))
        handler: Callable[[RequestT], Awaitable[ResponseT]] = getattr(self._service, called.name)

        async def call() -> ResponseT:
            await trio.lowlevel.checkpoint()
            return await handler(request)

        try:
            response = await self._cuttable(within(deadline_seconds, called.path, call()))
        except RpcError as error:
            if isinstance(request, cri.ExecSyncRequest) and error.code is Code.DEADLINE_EXCEEDED:
                self._on_command(request, False)
            raise
        if isinstance(request, cri.ExecSyncRequest):
            assert isinstance(response, cri.ExecSyncResponse)
            self._on_command(request, response.exit_code == 0)
        return response

    async def unary_raw(
        self,
        method: UnaryStub[RequestT, ResponseT],
        request: RequestT,
        *,
        deadline_seconds: float | None = None,
        cut: FieldCut | None = None,
    ) -> bytes:
        """As `Transport.unary_raw`."""
        return await self._cuttable(
            super().unary_raw(method, request, deadline_seconds=deadline_seconds, cut=cut)
        )

    async def _cuttable(self, call: Awaitable[T]) -> T:
        with trio.CancelScope() as scope:
            self._calls[scope] = None
            if self._is_cut:
                scope.cancel()
            try:
                return await call
            finally:
                del self._calls[scope]
        raise RpcError(Code.UNAVAILABLE, "the agent is dead")

    async def on_stream(
        self, kind: type[ResponseT], answers: AsyncIterator[ResponseT]
    ) -> AsyncIterator[ResponseT]:
        """Events may arrive twice."""
        async for answer in answers:
            yield answer
            if self._chance.random() < self._doubling:
                yield answer
