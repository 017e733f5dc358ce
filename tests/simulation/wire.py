"""The way from one life of the agent to the runtime, which can be cut.

An agent that is killed ends in the middle of its calls, the shielded ones too. So each life of
the agent has a wire of its own: cutting it fails every call that is under way and all later
ones, while the runtime sees callers that went away. Events may arrive twice.
"""

import random
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from trio_kubelet.rpc import Code, InProcess, RpcError
from trio_kubelet.rpc.methods import Request, Response, StreamStub, UnaryStub

T = TypeVar("T")


class Wire:
    """A transport onto service objects. `doubling` is the share of events that come twice."""

    def __init__(self, service: object, chance: random.Random, doubling: float) -> None:
        self._inner = InProcess(service)
        self._chance = chance
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
        method: UnaryStub[Request, Response],
        request: Request,
        *,
        deadline_seconds: float | None = None,
    ) -> Response:
        """As `Transport.unary`."""
        return await self._cuttable(
            self._inner.unary(method, request, deadline_seconds=deadline_seconds)
        )

    async def unary_raw(
        self,
        method: UnaryStub[Request, Response],
        request: Request,
        *,
        deadline_seconds: float | None = None,
    ) -> bytes:
        """As `Transport.unary_raw`."""
        return await self._cuttable(
            self._inner.unary_raw(method, request, deadline_seconds=deadline_seconds)
        )

    @asynccontextmanager
    async def stream(
        self,
        method: StreamStub[Request, Response],
        request: Request,
        *,
        deadline_seconds: float | None = None,
    ) -> AsyncIterator[AsyncIterator[Response]]:
        """As `Transport.stream`."""
        inner = self._inner.stream(method, request, deadline_seconds=deadline_seconds)
        async with inner as answers:
            yield self._perhaps_twice(answers)

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

    async def _perhaps_twice(self, answers: AsyncIterator[T]) -> AsyncIterator[T]:
        async for answer in answers:
            yield answer
            if self._chance.random() < self._doubling:
                yield answer
