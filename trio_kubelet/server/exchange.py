"""One request and its response on a connection.

Beside the handler a task watches the client, once the request has been read or the response
streams: when the client has gone, a handler that waits or a response that streams is cancelled. A
client that only ends its own side, or sends more requests than are kept for later, ends streams,
but not handlers: without TLS some clients end their side right after the request.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from email.utils import formatdate
from http.client import responses

import h11
import structlog
import trio

from trio_kubelet.server.client import Client, UpgradedStream
from trio_kubelet.server.connections import ClientGoneError
from trio_kubelet.server.messages import (
    Handler,
    HeaderPairs,
    Headers,
    Request,
    RequestBody,
    RequestError,
    Response,
)
from trio_kubelet.server.request_head import path_and_query

log = structlog.get_logger("server")

WITHOUT_BODY = (204, 304)
PIECE_BYTES = 256 * 1024
"""Of a body that is there as a whole: to copy tens of megabytes in one turn holds the loop."""
COPIES = 4
"""Of a piece that waits for its client: HTTP's, TLS's two, and the one that a generator keeps."""
PIECES_IN_A_TURN = 64
"""Of the body of a request: chunks of a byte each come by the thousand at once."""
BAD_HEADERS = (h11.LocalProtocolError, UnicodeEncodeError)
FAILED = Response(status=500, body=b"500 internal server error\n")


def error_response(error: RequestError) -> Response:
    """The answer to a request that cannot be answered."""
    return Response(status=error.status, body=f"{error}\n".encode(errors="replace"))


def _wants_upgrade(headers: Headers) -> bool:
    options = ",".join(headers.all("connection")).lower().split(",")
    return "upgrade" in headers and "upgrade" in (option.strip() for option in options)


class Exchange:
    """One request, whose head has been read, and its response."""

    def __init__(self, http: h11.Connection, client: Client, head: h11.Request) -> None:
        self._http = http
        self._client = client
        self._method = head.method.decode("ascii")
        self._target = head.target.decode("ascii")
        self._path = self._target.partition("?")[0]
        self._headers = Headers((n.decode("latin-1"), v.decode("latin-1")) for n, v in head.headers)
        self._wants_upgrade = head.http_version == b"1.1" and _wants_upgrade(self._headers)
        self._request_read = trio.Event()
        self._watched = trio.Event()
        self._streaming = trio.Event()
        self._switched = False
        self._pieces = 0

    @property
    def request_read(self) -> bool:
        """True if the request has been read to its end."""
        return self._request_read.is_set()

    @property
    def _may_switch(self) -> bool:
        return self._wants_upgrade and self._request_read.is_set()

    async def run(self, handler: Handler) -> bool:
        """Answer the request. Whether there may be another one on this connection."""
        again = False
        async with trio.open_nursery() as nursery:
            with self._client.place.working(nursery.cancel_scope):
                nursery.start_soon(self._watch_client, nursery.cancel_scope)
                again = await self._answer(handler)
                nursery.cancel_scope.cancel()
        return again

    async def _watch_client(self, work: trio.CancelScope) -> None:
        await self._watched.wait()
        try:
            await self._client.read_ahead()
        except ClientGoneError:
            work.cancel()
            return
        await self._streaming.wait()
        # One that has ended (`nc -N`) may wait for an answer that ends by itself.
        if self._client.place.lasts or not self._client.has_ended:
            self._client.place.gone = True
            work.cancel()

    async def _answer(self, handler: Handler) -> bool:
        try:
            response = await self._ask(handler)
            return response is not None and await self._send(response)
        except ClientGoneError:
            return False

    async def _ask(self, handler: Handler) -> Response | None:
        """The handler's response, or one that tells of its error."""
        try:
            response = await handler(self._request())
            if (response is None) != self._switched:
                raise TypeError("a handler must either respond or switch protocols")
        except RequestError as error:
            return None if self._switched else error_response(error)
        except ClientGoneError:
            return None
        except Exception:
            if self._client.place.gone:
                return None
            log.exception("HTTP request handler failed", method=self._method, path=self._path)
            return None if self._switched else FAILED
        return response

    def _request(self) -> Request:
        if self._method == "CONNECT":
            raise RequestError(405, "this is no proxy")
        path, query = path_and_query(self._target)
        length = int(self._headers.first("content-length", "0"))
        chunked = "transfer-encoding" in self._headers
        if not length and not chunked:
            self._take_piece()
        return Request(
            method=self._method,
            path=path,
            query=query,
            headers=self._headers,
            peer=self._client.peer,
            place=self._client.place,
            certificate=self._client.certificate,
            body=RequestBody(self._receive_piece, None if chunked else length),
            may_switch=self._may_switch,
            switch_protocols=self._switch_protocols,
        )

    async def _receive_piece(self) -> bytes:
        """The next piece of the body, empty at its end; the client is told to send it."""
        if self._http.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
            await self._client.send(self._http.send(go_on))
        while (piece := self._take_piece()) is None:
            data = await self._client.receive(self._client.limits.progress_seconds)
            self._http.receive_data(data)
        self._pieces += 1
        if self._pieces % PIECES_IN_A_TURN == 0:
            await self._client.place.turn()
        return piece

    def _take_piece(self) -> bytes | None:
        """The next piece of the body: a piece, empty at its end, None if it takes more."""
        if self._request_read.is_set():
            return b""
        try:
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            raise RequestError(error.error_status_hint, str(error)) from error
        if isinstance(event, h11.Data):
            return bytes(event.data)
        if isinstance(event, h11.EndOfMessage):
            self._request_read.set()
            if not self._wants_upgrade:  # Else the connection may be handed over.
                self._watched.set()
            return b""
        return None

    def _drop_body(self) -> bool:
        """Drop what has arrived of a body that nobody has read; whether that is all of it.

        Who has sent it in many pieces has to begin anew.
        """
        try:
            for _ in range(PIECES_IN_A_TURN):
                if not (piece := self._take_piece()):
                    return piece is not None
        except RequestError:
            pass
        return False

    async def _switch_protocols(self, headers: HeaderPairs) -> trio.abc.Stream:
        if not self._may_switch:
            raise RequestError(400, "the request asks for no other protocol")
        event = h11.InformationalResponse(
            status_code=101, headers=list(headers), reason=b"Switching Protocols"
        )
        data = self._http.send(event)
        self._switched = True
        await self._client.send(data)
        return UpgradedStream(self._client, self._http.trailing_data[0])

    async def _send(self, response: Response) -> bool:
        """Send a response; whether there may be another request on this connection."""
        last = self._client.place.closing or not self._drop_body()
        try:
            head = self._head(response, last)
        except BAD_HEADERS:
            log.exception("HTTP response headers are invalid", path=self._path)
            if not isinstance(response.body, bytes):
                await response.body.aclose()
            response, head = FAILED, self._head(FAILED, last)
        empty = self._method == "HEAD" or response.status in WITHOUT_BODY
        if isinstance(response.body, bytes):
            await self._send_whole(head, b"" if empty else response.body)
        else:
            async with aclosing(response.body) as pieces:
                if empty:
                    await self._send_whole(head, b"")
                elif not await self._send_stream(head, pieces):
                    return False
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def _send_whole(self, head: h11.Response, body: bytes) -> None:
        data = self._http.send(head)
        with self._client.place.sending(COPIES * min(len(body), PIECE_BYTES), body):
            for start in range(0, len(body), PIECE_BYTES):
                if start:
                    await self._client.send(data)
                    data = b""
                data += self._http.send(h11.Data(data=body[start : start + PIECE_BYTES]))
            await self._client.send(data + self._http.send(h11.EndOfMessage()))

    async def _send_stream(self, head: h11.Response, pieces: AsyncGenerator[bytes, None]) -> bool:
        """Send pieces as they come; False if not all of them came, and the connection is to end.

        A client of HTTP/1.0 takes the end of the connection for that of the response: only a
        reset tells it of an error.
        """
        self._streaming.set()
        self._watched.set()
        try:
            await self._client.send(self._http.send(head))
            async for piece in pieces:
                if piece:
                    with self._client.place.sending(COPIES * len(piece)):
                        await self._client.send(self._http.send(h11.Data(data=piece)))
            await self._client.send(self._http.send(h11.EndOfMessage()))
        except Exception:
            if self._client.place.gone:
                return False
            log.exception("HTTP response body failed", method=self._method, path=self._path)
            if self._http.their_http_version == b"1.0":
                self._client.reset_on_close()
            return False
        return True

    def _head(self, response: Response, last: bool) -> h11.Response:
        """The head of a response. Raises one of BAD_HEADERS if its headers are none."""
        headers = [
            ("Date", formatdate(usegmt=True)),
            ("X-Content-Type-Options", "nosniff"),
            *response.headers,
        ]
        if response.status not in WITHOUT_BODY:
            headers.append(("Content-Type", response.content_type))
            if isinstance(response.body, bytes):
                headers.append(("Content-Length", str(len(response.body))))
        if last:
            headers.append(("Connection", "close"))
        return h11.Response(
            status_code=response.status, reason=responses.get(response.status, ""), headers=headers
        )
