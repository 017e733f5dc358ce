"""What a client of the node's port can do without disturbing anybody."""

import ssl
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tests.hostile.conftest import NodePort, ask, log_of
from tests.hostile.victims import Victims

UNAUTHORIZED, TOO_MANY = 401, 429
STRANGERS_OF_AN_ADDRESS = 300
FOLLOWERS = 340


@contextmanager
def attack(victims: Victims, port: NodePort) -> Iterator[ExitStack]:
    """Connections that are closed at the end of the block; others are answered meanwhile."""
    good = port.context("good")
    paths = ("/pods", "/stats/summary", "/metrics", log_of(victims.agent, "good-0"))
    with victims.undisturbed(), ExitStack() as connections:
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


def test_a_user_who_follows_logs(victims: Victims, node_port: NodePort) -> None:
    path = f"{log_of(victims.agent, 'good-1')}?follow=true"
    with attack(victims, node_port) as connections:
        user = node_port.context("user")
        addresses = ["127.0.0.1"] * FOLLOWERS
        opened = [*connected(node_port, connections, user, addresses)]
        statuses = [ask(connection, path) for connection in opened]
        assert set(statuses) == {200, TOO_MANY}
