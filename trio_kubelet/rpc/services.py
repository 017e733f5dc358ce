"""Service objects: any Python objects with one coroutine for each method, named as in the stubs.

A unary method takes the request and returns the response; a streaming one is an async generator.
Both the server and the in-process transport call them through here, with bytes in and bytes out,
so that an object cannot tell which of the two it serves.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import betterproto
import grpclib
import structlog

from trio_kubelet.rpc.errors import Code, RpcError
from trio_kubelet.rpc.messages import decode_of_any_size, encode_answer
from trio_kubelet.rpc.methods import Method, RequestT, ResponseT

log = structlog.get_logger()


class Services:
    """Some service objects; a method goes to the first of them that has it."""

    def __init__(self, *services: object) -> None:
        self._services = services

    async def unary(self, method: Method[RequestT, ResponseT], request: bytes) -> bytes:
        """Answer one call.

        Raises RpcError: what the service raised, UNIMPLEMENTED without such a method, INTERNAL
        for any other exception, which is logged.
        """
        handler = self._handler(method)
        message = await decode_of_any_size(method.request_type, request)
        try:
            return encode_answer(await handler(message))
        except Exception as error:
            raise _as_rpc_error(method, error) from error

    async def stream(
        self,
        method: Method[RequestT, ResponseT],
        request: bytes,
        send: Callable[[bytes], Awaitable[None]],
    ) -> None:
        """Hand each answer of one call to `send`; raises as `unary` does."""
        handler = self._handler(method)
        message = await decode_of_any_size(method.request_type, request)
        try:
            answers: AsyncIterator[betterproto.Message] = handler(message)
            async with AsyncExitStack() as stack:
                if hasattr(answers, "aclose"):
                    stack.push_async_callback(answers.aclose)
                async for answer in answers:
                    await send(encode_answer(answer))
        except Exception as error:
            raise _as_rpc_error(method, error) from error

    def _handler(self, method: Method[RequestT, ResponseT]) -> Callable[..., Any]:
        for service in self._services:
            handler = getattr(service, method.name, None)
            if callable(handler):
                return handler  # type: ignore[no-any-return]
        raise RpcError(Code.UNIMPLEMENTED, f"method {method.path} is not implemented")


def _as_rpc_error(method: Method[RequestT, ResponseT], error: Exception) -> RpcError:
    if isinstance(error, RpcError):
        return RpcError(error.code, error.message)
    if isinstance(error, grpclib.GRPCError):
        # The generated base classes answer so for the methods that a subclass leaves out.
        text = error.message or f"method {method.path} answered {error.status.name}"
        return RpcError(Code(error.status.value), text)
    log.exception("rpc service failed", method=method.path, exc_info=error)
    return RpcError(Code.INTERNAL, f"{type(error).__name__}: {error}")
