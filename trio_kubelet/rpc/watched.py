"""A transport that tells of its calls: how long they took, and what became of them."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import betterproto
import trio
from attrs import frozen

from trio_kubelet.rpc.errors import RpcError
from trio_kubelet.rpc.field_cut import FieldCut, Head
from trio_kubelet.rpc.methods import (
    RequestT,
    ResponseT,
    StreamStub,
    Transport,
    UnaryStub,
    method_of,
)
from trio_kubelet.tasks.callbacks import Callbacks


@frozen(kw_only=True)
class RpcCall:
    """A call with one answer that came to its end. `method` is its name in the stubs.

    `response` is None if it failed, and where it was not decoded.
    """

    method: str
    request: betterproto.Message
    seconds: float
    response: betterproto.Message | None = None
    error: RpcError | None = None


class WatchedTransport(Transport):
    """Passes calls on; `on_call` is told of each with one answer. Those cut off are no calls."""

    def __init__(self, transport: Transport, on_call: Callbacks[[RpcCall]]) -> None:
        self._transport = transport
        self._on_call = on_call

    async def unary(
        self,
        method: UnaryStub[RequestT, ResponseT],
        request: RequestT,
        *,
        deadline_seconds: float | None = None,
        cut: FieldCut | None = None,
    ) -> ResponseT:
        began_at = trio.current_time()
        response: ResponseT | None = None
        try:
            response = await self._transport.unary(
                method, request, deadline_seconds=deadline_seconds, cut=cut
            )
        except RpcError as error:
            self._tell(method_of(method).name, request, began_at, error=error)
            raise
        self._tell(method_of(method).name, request, began_at, response=response)
        return response

    async def unary_raw(
        self,
        method: UnaryStub[RequestT, ResponseT],
        request: RequestT,
        *,
        deadline_seconds: float | None = None,
        cut: FieldCut | None = None,
    ) -> bytes:
        began_at = trio.current_time()
        try:
            response = await self._transport.unary_raw(
                method, request, deadline_seconds=deadline_seconds, cut=cut
            )
        except RpcError as error:
            self._tell(method_of(method).name, request, began_at, error=error)
            raise
        self._tell(method_of(method).name, request, began_at)
        return response

    async def gather_raw(
        self,
        method: StreamStub[RequestT, ResponseT],
        request: RequestT,
        *,
        max_bytes: int,
        deadline_seconds: float | None = None,
    ) -> bytes:
        """As `Transport.gather_raw`: counts as a call with one answer, which is not decoded."""
        began_at = trio.current_time()
        try:
            answers = await self._transport.gather_raw(
                method, request, max_bytes=max_bytes, deadline_seconds=deadline_seconds
            )
        except RpcError as error:
            self._tell(method_of(method).name, request, began_at, error=error)
            raise
        self._tell(method_of(method).name, request, began_at)
        return answers

    def stream(
        self,
        method: StreamStub[RequestT, ResponseT],
        request: RequestT,
        *,
        deadline_seconds: float | None = None,
        head: Head | None = None,
    ) -> AbstractAsyncContextManager[AsyncIterator[ResponseT]]:
        """As `Transport.stream`; nobody is told."""
        return self._transport.stream(method, request, deadline_seconds=deadline_seconds, head=head)

    def _tell(
        self,
        method: str,
        request: betterproto.Message,
        began_at: float,
        *,
        response: betterproto.Message | None = None,
        error: RpcError | None = None,
    ) -> None:
        seconds = trio.current_time() - began_at
        self._on_call.call(
            RpcCall(method=method, request=request, seconds=seconds, response=response, error=error)
        )
