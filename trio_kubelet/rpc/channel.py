"""A client's connection to a gRPC server on a unix socket.

Connects at the first call and again at the first call after the connection was lost; calls that
were on their way when it was lost fail with UNAVAILABLE. Each call is one asyncio task on the rpc
loop, and cancelling it resets its HTTP/2 stream, which is how the server learns of it. Deadlines
are trio cancel scopes; the server is told of them in the request's headers too. grpclib knows no
limit on a message's size. Its flow control does: each call may have STREAM_WINDOW bytes waiting
for its reader, and the connection as a whole never fills up, or one call whose answers are not
read would hold up all others.
"""

import asyncio
import re
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Self, cast, final

import grpclib.client
import trio
from attrs import frozen
from grpclib.config import Configuration
from grpclib.const import Cardinality
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import StreamTerminatedError
from grpclib.metadata import Deadline
from h2.exceptions import ProtocolError, StreamClosedError
from multidict import MultiDict

from trio_kubelet.rpc.bounded import MAX_FIELDS, decode_bounded
from trio_kubelet.rpc.call_metadata import sent_callback, with_call_metadata
from trio_kubelet.rpc.connection import GrpcChannel
from trio_kubelet.rpc.errors import Code, RpcError, code_of_reset
from trio_kubelet.rpc.field_cut import FieldCut, Head
from trio_kubelet.rpc.loop import current_rpc_loop
from trio_kubelet.rpc.messages import decode_of_any_size, encode
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

STREAM_WINDOW = 16 * 2**20
WINDOWS = Configuration(
    http2_stream_window_size=STREAM_WINDOW,
    http2_connection_window_size=2**31 - 1,
    _keepalive_time=None,  # a unix socket tells at once when its other end is gone
)
SMALL_WINDOW = 256 * 2**10
SMALL_WINDOWS = Configuration(
    http2_stream_window_size=SMALL_WINDOW,
    http2_connection_window_size=2**31 - 1,
    _keepalive_time=None,
)
"""For a server without trust: what it sends and nobody reads is kept in a task's buffer."""
PREFIX = struct.Struct(">BI")
"""The prefix of each message: whether it is compressed, and how long it is."""
PIECE_BYTES = 16 * 1024
ANSWERS_IN_A_TURN = 500
"""Of those that are gathered. They take two milliseconds."""
LARGE_READ_AHEAD = 2
"""Answers of a stream that wait for their reader, where each may be large."""

UNIX_PATH_MAX = 107
"""Bytes of a unix socket's path on Linux, without the final zero."""

SERVER_SLACK_SECONDS = 1.0
"""The delay of the server's deadline: whichever code its handler would make of a deadline
that passes, the caller shall see DEADLINE_EXCEEDED. Headers hold whole seconds, rounded down."""

LONGEST_DEADLINE_SECONDS = 99_999_999
"""The largest timeout of a header: servers refuse a call whose header has nine digits."""


class BytesCodec(CodecBase):
    """Leaves messages as bytes: they are encoded and decoded outside of the asyncio task."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:  # noqa: ARG002
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> bytes:  # noqa: ARG002
        return data


class _Call(grpclib.client.Stream[bytes, bytes]):
    """One call; its deadline is only told to the server, since a cancel scope keeps it here."""

    async def __aenter__(self) -> Self:
        deadline, self._deadline = self._deadline, None
        await super().__aenter__()
        self._deadline = deadline
        return self

    async def recv_cut(self, cut: FieldCut) -> bytes | None:
        """Receive a message in pieces, as `recv_message` does it at once."""
        if not self._recv_initial_metadata_done:
            await self.recv_initial_metadata()
        with self._wrapper:
            prefix = await self._stream.recv_data(PREFIX.size)
            if not prefix:
                return None
            compressed, left = PREFIX.unpack(prefix)
            if compressed:
                raise ValueError("the answer is compressed, which was not asked for")
            while left:
                piece = await self._stream.recv_data(min(left, PIECE_BYTES))
                if not piece:
                    raise ValueError("the answer is cut short")
                cut.feed(piece)
                left -= len(piece)
            self._messages_received += 1
            return cut.message()

    async def recv_within(self, max_bytes: int) -> bytes | None:
        """Receive a message as `recv_message` does, unless it is too large: then nothing of it."""
        if not self._recv_initial_metadata_done:
            await self.recv_initial_metadata()
        with self._wrapper:
            prefix = await self._stream.recv_data(PREFIX.size)
            if not prefix:
                return None
            compressed, size = PREFIX.unpack(prefix)
            if compressed:
                raise ValueError("the answer is compressed, which was not asked for")
            if size > max_bytes:
                text = f"received message larger than max ({size} vs. {max_bytes})"
                raise RpcError(Code.RESOURCE_EXHAUSTED, text)
            pieces, left = list[bytes](), size
            while left:
                # The window is smaller than a message may be.
                pieces.append(await self._stream.recv_data(min(left, PIECE_BYTES)))
                if not pieces[-1]:
                    raise ValueError("the answer is cut short")
                left -= len(pieces[-1])
                await asyncio.sleep(0)  # It may have come in frames of a byte each.
            self._messages_received += 1
            return b"".join(pieces)

    async def recv_all(self, max_bytes: int) -> bytes:
        """Receive all messages up to the end of the call, one behind the other."""
        if not self._recv_initial_metadata_done:
            await self.recv_initial_metadata()
        answers, received = [], 0
        with self._wrapper:
            while prefix := await self._stream.recv_data(PREFIX.size):
                compressed, size = PREFIX.unpack(prefix)
                if compressed:
                    raise ValueError("an answer is compressed, which was not asked for")
                received += PREFIX.size + size
                check_gathered(received, max_bytes)
                answers.append(await self._stream.recv_data(size))
                self._messages_received += 1
                if len(answers) % ANSWERS_IN_A_TURN == 0:
                    await asyncio.sleep(0)  # what has arrived is received without waiting
        return b"".join(answers)


@frozen
class HostAndPort:
    """A place in the network."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@final
class Channel(Transport):
    """Calls methods of the server at `unix:///run/x.sock`, an absolute path, or a host and port.

    Must be made inside `open_rpc_loop()`, at whose end it is closed; may then be used by any
    trio task. Raises ValueError when the endpoint is malformed. Making it does not connect.
    `headers` go with every call. A server that is not trusted has `max_answer_bytes`: an answer
    that has more, or more than `max_answer_fields` at all levels, fails its call with
    RESOURCE_EXHAUSTED, and frames that it sends without end are taken slowly.
    """

    def __init__(
        self,
        endpoint: str | HostAndPort,
        headers: Mapping[str, str] | None = None,
        *,
        max_answer_bytes: int | None = None,
        max_answer_fields: int = MAX_FIELDS,
    ) -> None:
        self._place = str(endpoint) if isinstance(endpoint, HostAndPort) else socket_path(endpoint)
        self._max_answer_bytes = max_answer_bytes
        self._max_answer_fields = max_answer_fields
        self._headers = headers or {}
        self._loop = current_rpc_loop()
        is_trusted = max_answer_bytes is None
        if isinstance(endpoint, HostAndPort):
            where: dict[str, Any] = {"host": endpoint.host, "port": endpoint.port}
        else:
            where = {"path": self._place}
        self._grpc = GrpcChannel(
            **where,
            look_ups=self._loop.look_ups,
            codec=BytesCodec(),
            config=WINDOWS if is_trusted else SMALL_WINDOWS,
            budget=None if is_trusted else self._loop.frames,
        )
        self._closed = False
        self._loop.opened(self)

    async def unary(
        self,
        method: UnaryStub[RequestT, ResponseT],
        request: RequestT,
        *,
        deadline_seconds: float | None = None,
        cut: FieldCut | None = None,
    ) -> ResponseT:
        """Call a method with one answer, as `Transport.unary` says."""
        answer = await self.unary_raw(method, request, deadline_seconds=deadline_seconds, cut=cut)
        return await self._decode(method_of(method).response_type, answer)

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
        request_bytes = [encode(request)]
        self._check_open()
        headers = with_call_metadata(self._headers)
        call = self._unary(called, request_bytes, headers, deadline_seconds, cut)
        return await within(deadline_seconds, called.path, self._loop.run(call))

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
        data = encode(request)
        self._check_open()

        async def talk(call: _Call) -> bytes:
            await call.send_message(data, end=True)
            return await call.recv_all(max_bytes)

        headers = with_call_metadata(self._headers)
        calling = self._loop.run(self._talk(called, headers, deadline_seconds, talk))
        return await within(deadline_seconds, called.path, calling) or b""

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
        headers = with_call_metadata(self._headers)

        async def call(inbox: Inbox) -> None:
            self._check_open()
            await self._loop.run(self._stream(called, data, headers, deadline_seconds, inbox))

        if self._max_answer_bytes is None:
            return read_responses(call, called, deadline_seconds, head)
        return read_responses(
            call, called, deadline_seconds, head, LARGE_READ_AHEAD, self._decode_bounded
        )

    def close(self) -> None:
        """Close for good; calls under way and later ones fail with UNAVAILABLE. Idempotent."""
        self._closed = True
        self._grpc.close()
        self._loop.closed(self)

    async def _decode(self, message_type: type[ResponseT], data: bytes) -> ResponseT:
        if self._max_answer_bytes is None:
            return await decode_of_any_size(message_type, data)
        return await self._decode_bounded(message_type, data)

    async def _decode_bounded(self, message_type: type[ResponseT], data: bytes) -> ResponseT:
        limiter = self._loop.decoding
        return await decode_bounded(message_type, data, self._max_answer_fields, limiter)

    def _check_open(self) -> None:
        if self._closed:
            raise RpcError(Code.UNAVAILABLE, f"the channel to {self._place} is closed")

    async def _unary(
        self,
        method: Method[RequestT, ResponseT],
        request_bytes: list[bytes],
        headers: Mapping[str, str],
        deadline_seconds: float | None,
        cut: FieldCut | None,
    ) -> bytes:
        on_sent = sent_callback()

        async def talk(call: _Call) -> bytes | None:
            # Taken out, so that nothing keeps megabytes while the answer takes a minute.
            await call.send_message(request_bytes.pop(), end=True)
            on_sent()
            if cut is not None:
                return await call.recv_cut(cut)
            if self._max_answer_bytes is not None:
                return await call.recv_within(self._max_answer_bytes)
            return await call.recv_message()

        answer = await self._talk(method, headers, deadline_seconds, talk)
        if answer is None:
            raise RpcError(Code.INTERNAL, f"{method.path} ended without an answer")
        return answer

    async def _stream(
        self,
        method: Method[RequestT, ResponseT],
        request: bytes,
        headers: Mapping[str, str],
        deadline_seconds: float | None,
        inbox: Inbox,
    ) -> None:
        async def talk(call: _Call) -> None:
            await call.send_message(request, end=True)
            inbox.request_is_sent()
            limit = self._max_answer_bytes
            receive = call.recv_message if limit is None else partial(call.recv_within, limit)
            while (answer := await receive()) is not None:
                try:
                    inbox.put_nowait(answer)
                except trio.WouldBlock:
                    await self._loop.asyncio_loop.trio_as_future(inbox.put, answer)

        await self._talk(method, headers, deadline_seconds, talk)

    async def _talk(
        self,
        method: Method[RequestT, ResponseT],
        headers: Mapping[str, str],
        deadline_seconds: float | None,
        talk: Callable[[_Call], Awaitable[bytes | None]],
    ) -> bytes | None:
        call = _Call(
            self._grpc,
            method.path,
            cast("Any", MultiDict(headers)),
            Cardinality.UNARY_STREAM if method.streams else Cardinality.UNARY_UNARY,
            bytes,
            bytes,
            codec=BytesCodec(),
            status_details_codec=None,
            dispatch=self._grpc.__dispatch__,
            deadline=_servers_deadline(deadline_seconds),
        )
        try:
            async with call:
                return await talk(call)
        except RpcError:
            raise
        except grpclib.GRPCError as error:
            raise RpcError(Code(error.status.value), error.message or "") from error
        except StreamTerminatedError as error:
            raise _terminated(error) from error
        except StreamClosedError as error:
            raise RpcError(Code.UNAVAILABLE, "call reset by the server") from error
        except ProtocolError as error:
            # Such as the last stream number used up: a new connection mends it.
            self._grpc.close()
            raise RpcError(Code.UNAVAILABLE, f"connection given up: {error}") from error
        except OSError as error:
            text = f"cannot connect to {self._place}: {error.strerror or error}"
            raise RpcError(Code.UNAVAILABLE, text) from error
        except Exception as error:
            # A library's exception that is about the wire, such as an answer cut short.
            text = f"{method.path}: {type(error).__name__}: {error}"
            raise RpcError(Code.INTERNAL, text) from error


def socket_path(endpoint: str) -> str:
    """Return the path of `unix:///path` or of a plain absolute path; raises ValueError."""
    scheme, separator, rest = endpoint.partition(":")
    path = endpoint
    if separator and "/" not in scheme:
        if scheme != "unix":
            raise ValueError(f"endpoint {endpoint!r}: only unix sockets are supported")
        path = rest.removeprefix("//")
    if not PurePosixPath(path).is_absolute() or path.endswith("/"):
        raise ValueError(f"endpoint {endpoint!r}: must be of the form unix:///absolute/path")
    if len(path.encode()) > UNIX_PATH_MAX:
        raise ValueError(f"endpoint {endpoint!r}: path is longer than {UNIX_PATH_MAX} bytes")
    if "\0" in path:
        raise ValueError(f"endpoint {endpoint!r}: path has a zero byte")
    return path


def _servers_deadline(deadline_seconds: float | None) -> Deadline | None:
    if deadline_seconds is None:
        return None
    told_seconds = min(deadline_seconds + SERVER_SLACK_SECONDS, LONGEST_DEADLINE_SECONDS)
    return Deadline.from_timeout(told_seconds)


def _terminated(error: StreamTerminatedError) -> RpcError:
    """Tell a reset of this one call by the server from the loss of the connection."""
    reset = re.fullmatch(r"Stream reset by remote party, error_code: (\d+)", str(error))
    if reset is None:
        return RpcError(Code.UNAVAILABLE, f"connection lost: {error}")
    code = code_of_reset(int(reset[1]))
    return RpcError(code, f"call reset by the server: {error}")
