"""A web server of a test's own, which probes and hooks of pods ask in the place of containers."""

import ssl
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

import trustme
from attrs import field, frozen

from lab.ports import LOOPBACK
from lab.processes import wait_until

ASKED_SECONDS = 60.0


@frozen(kw_only=True)
class Request:
    """What was asked. `at` is when, in seconds since the epoch."""

    path: str
    headers: tuple[tuple[str, str], ...]
    at: float


@frozen(kw_only=True)
class Answer:
    """What is answered."""

    status: int = 200
    headers: Mapping[str, str] = field(factory=dict)
    body: bytes = b""


WELL, ILL = Answer(), Answer(status=500)


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client has gone, as those do whose container or agent ends."""


class ProbedServer:
    """Notes each request, and answers it.

    `answers` are by path, None for no answer before the end; any other path is well.
    """

    def __init__(self, *, with_tls: bool = False) -> None:
        self.answers: dict[str, Answer | None] = {}
        self._requests: list[Request] = []
        self._over = threading.Event()
        self._server = _Server((LOOPBACK, 0), self._handler())
        if with_tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            # Of an authority that nobody knows, for a name that nobody asks for.
            trustme.CA().issue_cert("unknown.test").configure_cert(context)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def port(self) -> int:
        """Where it listens, on loopback."""
        return self._server.server_port

    @property
    def paths(self) -> set[str]:
        """All paths that were asked for."""
        return {request.path for request in self._requests}

    def asked(self, path: str) -> list[Request]:
        """The requests for a path, oldest first."""
        return [request for request in self._requests if request.path == path]

    def wait_for(self, path: str, count: int = 1) -> list[Request]:
        """Wait until a path was asked for so often; returns the requests for it."""
        wait_until(
            lambda: len(self.asked(path)) >= count,
            deadline_seconds=ASKED_SECONDS,
            else_say=lambda: f"{path} was asked for {len(self.asked(path))} times of {count}",
        )
        return self.asked(path)

    def forget(self) -> None:
        """Forget all requests."""
        self._requests.clear()

    def _answer(self, path: str, headers: tuple[tuple[str, str], ...]) -> Answer | None:
        self._requests.append(Request(path=path, headers=headers, at=time.time()))
        answer = self.answers.get(path, WELL)
        if answer is None:
            self._over.wait()
        return answer

    def _handler(server) -> type[BaseHTTPRequestHandler]:  # noqa: N805 - it is not the handler
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = server._answer(self.path, tuple(self.headers.items()))
                if answer is None:
                    return
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, *_: object) -> None:
                """Nobody reads it."""

        return Handler
