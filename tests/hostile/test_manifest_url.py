"""What the server of the static pods' URL can answer without disturbing anybody."""

import gzip
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event

import pytest

from lab.agent import LabAgent
from lab.processes import wait_until
from tests.hostile.victims import DEADLINE_SECONDS, Victims

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
BYTES = 1 << 30
PAUSE_SECONDS = 1.0


class Server:
    """Answers each request as it was told last; nothing but the next request ends an answer."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        self.answer: Callable[[socket.socket], None] = self.nothing
        self.ends = Event()
        self.asked = 0

    def serve(self) -> None:
        """Answer one after another until the listener is shut down."""
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection, suppress(OSError):
                    connection.recv(65536)
                    self.asked += 1
                    self.answer(connection)

    def close(self) -> None:
        self.ends.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def nothing(self, connection: socket.socket) -> None:
        connection.sendall(HEAD + b"Content-Length: 0\r\n\r\n")

    def trickle(self, connection: socket.socket) -> None:
        """A byte a second, for ever."""
        connection.sendall(HEAD + b"Content-Length: 1000000\r\n\r\n")
        while not self.ends.wait(PAUSE_SECONDS):
            connection.sendall(b"[")

    def trickle_head(self, connection: socket.socket) -> None:
        """The same before the head is through."""
        connection.sendall(HEAD)
        while not self.ends.wait(PAUSE_SECONDS):
            connection.sendall(b"X-A: b\r\n")

    def flood(self, connection: socket.socket) -> None:
        """A gibibyte."""
        connection.sendall(HEAD + f"Content-Length: {BYTES}\r\n\r\n".encode())
        for _ in range(BYTES >> 16):
            connection.sendall(b" " * (1 << 16))

    def bomb(self, connection: socket.socket) -> None:
        """A gibibyte that is a megabyte as it is sent."""
        data = gzip.compress(bytes(64 << 20)) * (BYTES // (64 << 20))
        length = f"Content-Encoding: gzip\r\nContent-Length: {len(data)}\r\n\r\n"
        connection.sendall(HEAD + length.encode() + data)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    served = Server()
    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(served.serve)
        yield served
        served.close()
        serving.result()


@pytest.fixture(scope="module")
def victims(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victims]:
    settings = {"staticPodURL": server.url, "httpCheckFrequency": "1s"}
    with LabAgent(tmp_path_factory.mktemp("url"), settings=settings) as agent:
        yield Victims.of(agent, {"name": "c", "image": "good"})


ANSWERS = {
    "trickle": (Server.trickle, "cannot be fetched: TooSlowError"),
    "trickle_head": (Server.trickle_head, "cannot be fetched: TooSlowError"),
    "flood": (Server.flood, "is larger than 10 MiB"),
    "bomb": (Server.bomb, "the answer is encoded"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_that_never_end_or_are_large(victims: Victims, server: Server, name: str) -> None:
    answer, words = ANSWERS[name]
    told = victims.agent.log.read_text().count(words)
    with victims.undisturbed():
        server.answer = lambda connection: answer(server, connection)
        wait_until(
            lambda: victims.agent.log.read_text().count(words) > told,
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: f"nothing is said of the answer: {victims.agent.last_words()}",
        )
    server.answer = server.nothing
    asked = server.asked
    wait_until(  # What is wrong is told once, until there is something else.
        lambda: server.asked >= asked + 2,
        deadline_seconds=DEADLINE_SECONDS,
        else_say=lambda: "it is not asked any more",
    )
