"""What a client of the node's port can do without disturbing anybody."""

import http.client
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from lab.agent import is_running, pod_manifest
from tests.hostile.conftest import log_of
from tests.hostile.node_port import NodePort, ask
from tests.hostile.victims import DEADLINE_SECONDS, Victims
from tests.unit.tls_peer import Records, log_keys

UNAUTHORIZED, TOO_MANY = 401, 429
STRANGERS_OF_AN_ADDRESS = 300
STRANGERS_WITHOUT_DATA = 40
RECORDS = 500
FOLLOWERS = 340
FOLLOWERS_OF_A_LOG = 50
SILENT_READERS = 300
LARGE_VALUE = "x" * 900_000
LONG_LINE = b"2026-01-31T12:00:00.000000000Z stdout P " + b"x" * 16_000 + b"\n"


SCRAPERS = 40
SCRAPES = 20
SCRAPED = ("/metrics", "/metrics/cadvisor", "/stats/summary", "/debug/journal")
MOST_NEW_THREADS = 8
"""Two that write; the others are of what the agent does beside, whose threads stay for a while."""


@contextmanager
def attack(victims: Victims, port: NodePort) -> Iterator[ExitStack]:
    """Connections that stay until all was looked at; others are answered meanwhile."""
    good = port.context("good")
    _, log = log_of(victims.agent, "good-0")
    paths = ("/pods", "/stats/summary", "/metrics", log)
    with ExitStack() as connections, victims.undisturbed():
        yield connections
        assert [port.status(good, path) for path in paths] == [200] * len(paths)


def connected(
    port: NodePort, connections: ExitStack, context: ssl.SSLContext, addresses: Sequence[str]
) -> Iterator[ssl.SSLSocket]:
    for address in addresses:
        yield connections.enter_context(port.connect(context, address))


def test_strangers_from_two_addresses(victims: Victims, node_port: NodePort) -> None:
    addresses = ["127.0.0.2", "127.0.0.3"] * STRANGERS_OF_AN_ADDRESS
    with attack(victims, node_port) as connections:
        nobody = node_port.context()
        for connection in connected(node_port, connections, nobody, addresses):
            assert ask(connection, "/pods") == UNAUTHORIZED


def test_strangers_who_never_end_their_requests(victims: Victims, node_port: NodePort) -> None:
    addresses = ["127.0.0.2", "127.0.0.3"] * STRANGERS_OF_AN_ADDRESS
    with attack(victims, node_port) as connections:
        nobody = node_port.context()
        for connection in connected(node_port, connections, nobody, addresses):
            connection.sendall(b"GET /pods HTTP/1.1\r\nX-Slow: ")


CHUNKED = b"POST /pods HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_strangers_whose_bodies_come_in_chunks_of_a_byte(
    victims: Victims, node_port: NodePort
) -> None:
    with attack(victims, node_port) as connections:
        nobody = node_port.context()
        for connection in connected(node_port, connections, nobody, ["127.0.0.2"] * 20):
            connection.sendall(CHUNKED + b"1\r\nx\r\n" * 20_000)
            assert connection.recv(4096).split(maxsplit=2)[1] == b"401"


@pytest.mark.parametrize(
    "record", [Records.key_update, lambda made: made.data(b"")], ids=["keys", "empty"]
)
def test_strangers_whose_records_have_no_data(
    victims: Victims, node_port: NodePort, tmp_path: Path, record: Callable[[Records], bytes]
) -> None:
    with attack(victims, node_port) as connections:
        for number in range(STRANGERS_WITHOUT_DATA):
            nobody, key_log = node_port.context(), tmp_path / f"{number}"
            log_keys(nobody, key_log)
            connection = connections.enter_context(node_port.connect(nobody))
            # The records go past the library of TLS, which would make none such.
            transport = connections.enter_context(socket.socket(fileno=os.dup(connection.fileno())))
            transport.settimeout(DEADLINE_SECONDS)
            made = Records(key_log, "CLIENT")
            with suppress(ConnectionError):
                transport.sendall(b"".join(record(made) for _ in range(RECORDS)))
                while transport.recv(4096):
                    pass


def test_a_user_who_follows_logs(victims: Victims, node_port: NodePort) -> None:
    _, log = log_of(victims.agent, "good-1")
    path = f"{log}?follow=true"
    with attack(victims, node_port) as connections:
        user = node_port.context("user")
        addresses = ["127.0.0.1"] * FOLLOWERS
        opened = connected(node_port, connections, user, addresses)
        # Each is asked at once: one that lets the server wait for ten seconds is closed.
        assert {ask(connection, path) for connection in opened} == {200, TOO_MANY}


WRITES_IN_TURNS = """
import os, sys
files = [os.open(path, os.O_WRONLY) for path in sys.argv[1:]]
while True:
    for file in files:
        os.pwrite(file, b"2", 0)
"""


@contextmanager
def written_in_turns(logs: Sequence[Path]) -> Iterator[None]:
    """Logs that change all the time, each after the other, until the end of the block."""
    writer = subprocess.Popen([sys.executable, "-c", WRITES_IN_TURNS, *map(str, logs)])
    try:
        yield
    finally:
        writer.kill()
        writer.wait()


def test_followers_of_logs_that_never_stop_changing(victims: Victims, node_port: NodePort) -> None:
    logs = [log_of(victims.agent, name) for name in ("good-2", "good-3")]
    with attack(victims, node_port) as connections, written_in_turns([file for file, _ in logs]):
        user = node_port.context("user")
        paths = [f"{path}?follow=true" for _, path in logs] * FOLLOWERS_OF_A_LOG
        opened = connected(node_port, connections, user, ["127.0.0.1"] * len(paths))
        pairs = zip(opened, paths, strict=True)
        assert {ask(connection, path) for connection, path in pairs} == {200}


def test_scrapers_who_never_stop_asking(victims: Victims, node_port: NodePort) -> None:
    agent = Path(f"/proc/{victims.agent.pid}/task")
    with attack(victims, node_port) as opened:
        before = threads = len(list(agent.iterdir()))
        user = node_port.context("user")
        scrapers = [*connected(node_port, opened, user, ["127.0.0.1"] * SCRAPERS)]
        for number in range(SCRAPES):
            path = SCRAPED[number % len(SCRAPED)]
            for connection in scrapers:
                connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            for connection in scrapers:
                assert answer_of(connection) == 200
                threads = max(threads, len(list(agent.iterdir())))
        assert threads - before <= MOST_NEW_THREADS


def answer_of(connection: ssl.SSLSocket) -> int:
    """Read an answer to its end; returns its status."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    response.read()
    return response.status


def test_long_answers_that_nobody_reads(victims: Victims, node_port: NodePort) -> None:
    """Lists of pods, one of which is large; each answer is longer than what sockets hold."""
    large = {"name": "c", "image": "good", "env": [{"name": "V", "value": LARGE_VALUE}]}
    victims.agent.write("large.json", pod_manifest("large", large))
    victims.wait_pod("large", is_running)
    with attack(victims, node_port) as opened:
        user = node_port.context("user")
        for connection in connected(node_port, opened, user, ["127.0.0.1"] * SILENT_READERS):
            assert ask(connection, "/pods") == 200
    victims.agent.remove("large.json")


def test_long_logs_that_nobody_reads(victims: Victims, node_port: NodePort) -> None:
    """Their last line goes on and on, so that each reader holds a part of it."""
    log, path = log_of(victims.agent, "good-4")
    log.write_bytes(LONG_LINE * 500)
    with attack(victims, node_port) as opened:
        user = node_port.context("user")
        for connection in connected(node_port, opened, user, ["127.0.0.1"] * SILENT_READERS):
            assert ask(connection, path) == 200
