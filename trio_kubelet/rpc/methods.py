"""The names of calls: by the method of a generated stub, `cri.RuntimeServiceStub.version`.

The stub's method is never called. It carries the types of request and response for the type
checker, and its class says where the contract stands in the generated module; everything that a
transport or a server needs to know is read from there once.
"""

import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from functools import cache
from typing import Any, Concatenate, Generic, Protocol, TypeVar

import betterproto
from attrs import frozen
from grpclib.const import Handler

from trio_kubelet.rpc.field_cut import FieldCut, Head
from trio_kubelet.rpc.messages import decode_of_any_size

RequestT = TypeVar("RequestT", bound=betterproto.Message)
ResponseT = TypeVar("ResponseT", bound=betterproto.Message)

UnaryStub = Callable[Concatenate[Any, RequestT, ...], Coroutine[Any, Any, ResponseT]]
StreamStub = Callable[Concatenate[Any, RequestT, ...], AsyncIterator[ResponseT]]


class GrpcService(Protocol):
    """The generated `...Base` classes as grpclib sees them."""

    def __mapping__(self) -> Mapping[str, Handler]:
        """All methods by their paths on the wire."""
        ...


Contract = type[GrpcService]


class Transport(Protocol):
    """A peer as a client needs it: calls with one answer, and calls with many.

    Every call raises RpcError and nothing else of its own. `deadline_seconds` None means none.
    When the caller is cancelled, or the deadline passes, the peer's handler is cancelled too;
    whether it had already done its work is unknown.
    """

    async def unary(
        self,
        method: UnaryStub[RequestT, ResponseT],
        request: RequestT,
        *,
        deadline_seconds: float | None = None,
        cut: FieldCut | None = None,
    ) -> ResponseT:
        """Call a method with one answer, of whose fields `cut` may drop the rest."""
        answer = await self.unary_raw(method, request, deadline_seconds=deadline_seconds, cut=cut)
        return await decode_of_any_size(method_of(method).response_type, answer)

    async def unary_raw(
        self,
        method: UnaryStub[RequestT, ResponseT],
        request: RequestT,
        *,
        deadline_seconds: float | None = None,
        cut: FieldCut | None = None,
    ) -> bytes:
        """Call a method with one answer and return the answer's bytes, not decoded."""
        ...

    async def gather_raw(
        self,
        method: StreamStub[RequestT, ResponseT],
        request: RequestT,
        *,
        max_bytes: int,
        deadline_seconds: float | None = None,
    ) -> bytes:
        """Call a method with many answers; returns their bytes one behind the other, at its end.

        Where each answer has some entries of a list, that is an answer which has all of them.
        RESOURCE_EXHAUSTED for more than `max_bytes`, the prefix of each answer included.
        """
        ...

    def stream(
        self,
        method: StreamStub[RequestT, ResponseT],
        request: RequestT,
        *,
        deadline_seconds: float | None = None,
        head: Head | None = None,
    ) -> AbstractAsyncContextManager[AsyncIterator[ResponseT]]:
        """Call a method with many answers, of each of which only the `head` is read.

        Entering the context sends the request; the iterator ends when the peer ends the call
        and raises RpcError when the call fails. Leaving the context ends the call. Being
        cancelled while waiting for the next answer loses none.
        """
        ...


@frozen
class Method(Generic[RequestT, ResponseT]):
    """One method of a contract: its path on the wire, the name of its coroutine, its types."""

    path: str
    name: str
    request_type: type[RequestT]
    response_type: type[ResponseT]
    streams: bool


AnyMethod = Method[betterproto.Message, betterproto.Message]


@cache
def methods_of(contract: Contract) -> Mapping[str, AnyMethod]:
    """All methods of a generated `...Base` class, by the names of their coroutines."""
    methods = (
        AnyMethod(
            path=path,
            name=handler.func.__name__.removeprefix("__rpc_"),
            request_type=handler.request_type,
            response_type=handler.reply_type,
            streams=handler.cardinality.server_streaming,
        )
        for path, handler in contract().__mapping__().items()
    )
    return {method.name: method for method in methods}


def method_of(
    stub: UnaryStub[RequestT, ResponseT] | StreamStub[RequestT, ResponseT],
) -> Method[RequestT, ResponseT]:
    """Look up the method that a generated stub's function stands for."""
    return _method_of(stub)  # type: ignore[return-value]


@cache
def _method_of(stub: Callable[..., object]) -> AnyMethod:
    stub_name, _, name = stub.__qualname__.rpartition(".")
    module = sys.modules[stub.__module__]
    contract: Contract = getattr(module, stub_name.removesuffix("Stub") + "Base")
    return methods_of(contract)[name]
