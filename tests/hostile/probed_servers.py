"""Servers that a hostile pod has its probes ask: each answers as its attack wants it."""

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

import trustme

from tests.missing import do_without
from tests.unit import tls_peer

REQUEST_BYTES = 16 * 1024
SILENCE_SECONDS = 120
LOOPBACK = "127.0.0.1"

Answer = Callable[[socket.socket], None]
"""Takes the request of a connection, and answers it."""


class ProbedServer:
    """Gives each connection the same answer, and counts them. A context manager."""

    def __init__(self, answer: Answer) -> None:
        self.answered = 0
        self._answer = answer
        self._counting = threading.Lock()
        self._listener = socket.create_server(("", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Closing alone would leave the thread in its wait for the next connection.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(SILENCE_SECONDS)
        with connection, suppress(OSError):
            self._answer(connection)
        with self._counting:
            self.answered += 1


def saying(data: bytes) -> Answer:
    """Answer a request with some bytes, and wait until the client has gone."""

    def answer(connection: socket.socket) -> None:
        connection.recv(REQUEST_BYTES)
        connection.sendall(data)
        # With bytes of the client unread, closing would take back what was sent.
        while connection.recv(REQUEST_BYTES):
            pass

    return answer


def over_tls(folder: Path, answer: Answer, *protocols: str) -> Answer:
    """Answer over TLS, with these protocols of the application."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(folder))
    context.set_alpn_protocols(protocols)

    def answer_over_tls(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            answer(secured)

    return answer_over_tls


def saying_records(folder: Path, make: Callable[[tls_peer.Records], bytes]) -> Answer:
    """Answer with records of TLS 1.3 that no library of TLS sends."""
    file, numbers = certificate(folder), count()

    def answer(connection: socket.socket) -> None:
        key_log = folder / f"keys-{next(numbers)}"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        tls_peer.log_keys(context, key_log)
        with (
            connection.dup() as transport,
            context.wrap_socket(connection, server_side=True) as secured,
        ):
            secured.recv(REQUEST_BYTES)
            transport.sendall(make(tls_peer.Records(key_log, "SERVER")))
            while transport.recv(REQUEST_BYTES):
                pass

    return answer


class RenegotiatingServer:
    """A server of TLS 1.2 that wants to negotiate again whatever comes. A context manager.

    It is OpenSSL's own, since Python's module has no such call: each line of its input with an R
    makes it ask for that.
    """

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            do_without("there is no program openssl")
        command = ("openssl", "s_server", "-accept", f"{LOOPBACK}:0", "-tls1_2")
        self._process = subprocess.Popen(
            [*command, "-cert", str(certificate(folder))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._thread = threading.Thread(target=self._ask_again)
        self.refused = 0
        """The number of times that a client would not."""
        assert self._process.stdout is not None
        line = b""
        while not line.startswith(b"ACCEPT "):
            line = self._process.stdout.readline()
        self.port = int(line.rpartition(b":")[2])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._thread.join()
        with suppress(BrokenPipeError):
            self._process.communicate()

    def _ask_again(self) -> None:
        """Ask in each connection, once its request has come, and count the refusals."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            for line in self._process.stdout:
                if line.startswith(b"GET "):
                    self._process.stdin.write(b"R\n")
                    self._process.stdin.flush()
                self.refused += b"no renegotiation" in line


def certificate(folder: Path) -> Path:
    """A file with a certificate that nobody trusts, and its key."""
    file = folder / "server.pem"
    trustme.CA().issue_cert("hostile").private_key_and_cert_chain_pem.write_to_path(str(file))
    return file
