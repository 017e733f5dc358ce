"""The API server in memory on a socket, for an agent that is a process of its own.

It runs in a thread, with an event loop of its own, in which all that touches the server's objects
has to be done: `do`.
"""

import json
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import h11
import httpx
import trio

from tests.apiserver.server import ApiServer
from tests.turns import run_unmetered

T = TypeVar("T")

HOST = "127.0.0.1"
_BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError)


class ServedApi:
    """Serves an API server, without TLS and to anybody. A context manager."""

    def __init__(self) -> None:
        self.port = 0
        self._server: ApiServer
        self._token: trio.lowlevel.TrioToken
        self._scope = trio.CancelScope()
        self._started = threading.Event()
        self._thread = threading.Thread(target=run_unmetered, args=(self._run,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        trio.from_thread.run_sync(self._scope.cancel, trio_token=self._token)
        self._thread.join()

    def do(self, work: Callable[[ApiServer], Awaitable[T]]) -> T:
        """Do something with the server; returns, or raises, what comes of it."""
        return trio.from_thread.run(work, self._server, trio_token=self._token)

    def kubeconfig(self, folder: Path) -> Path:
        """Write a kubeconfig for it."""
        cluster = {"name": "c", "cluster": {"server": f"http://{HOST}:{self.port}"}}
        context = {"name": "here", "context": {"cluster": "c", "user": "u"}}
        path = folder / "kubeconfig"
        path.write_text(
            json.dumps(
                {
                    "current-context": "here",
                    "contexts": [context],
                    "clusters": [cluster],
                    "users": [{"name": "u", "user": {}}],
                }
            )
        )
        return path

    async def _run(self) -> None:
        self._server, self._token = ApiServer(), trio.lowlevel.current_trio_token()
        with self._scope:
            [listener] = await trio.open_tcp_listeners(0, host=HOST)
            self.port = listener.socket.getsockname()[1]
            self._started.set()
            await trio.serve_listeners(self._talk, [listener])

    async def _talk(self, stream: trio.SocketStream) -> None:
        try:
            async with stream:
                await _answer_requests(stream, self._server)
        except _BROKEN:
            pass  # the client has gone


async def _answer_requests(stream: trio.SocketStream, server: ApiServer) -> None:
    connection, transport = h11.Connection(h11.SERVER), server.transport()
    while True:
        request, body = await _read_request(stream, connection)
        if request is None:
            return
        url = f"http://{HOST}{request.target.decode()}"
        headers = list(request.headers)
        asked = httpx.Request(request.method.decode(), url, headers=headers, content=body)
        answer = await transport.handle_async_request(asked)
        head = h11.Response(status_code=answer.status_code, headers=answer.headers.raw)
        await stream.send_all(connection.send(head) or b"")
        assert isinstance(answer.stream, httpx.AsyncByteStream)
        chunks = aiter(answer.stream)  # httpx's own generators around it would never be closed
        try:
            async for chunk in chunks:
                await stream.send_all(connection.send(h11.Data(chunk)) or b"")
        finally:
            if isinstance(chunks, AsyncGenerator):
                await chunks.aclose()
            await answer.aclose()
        await stream.send_all(connection.send(h11.EndOfMessage()) or b"")
        connection.start_next_cycle()


async def _read_request(
    stream: trio.SocketStream, connection: h11.Connection
) -> tuple[h11.Request | None, bytes]:
    """The next request and its body; None when the client has closed the connection."""
    request, body = None, b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(bytes(await stream.receive_some()))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return request, body
        else:
            return None, b""
