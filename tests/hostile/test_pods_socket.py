"""What a program of the node can do at the pods socket without disturbing anybody.

Only root may open it: the attacker is a program of the operator's that has gone wrong.
"""

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import ProtocolError

from lab.agent import pod_manifest
from tests.hostile.victims import GOOD_PODS, Victims
from tests.pod_protobuf import read_pod
from trio_kubelet.ports.pods_api import CALLS, SOCKET
from trio_kubelet.rpc import Channel, open_rpc_loop
from trio_kubelet.rpc.stubs import v1alpha1 as wire

CONNECTIONS = 100
STREAMS = 3000
DEADLINE_SECONDS = 60
NO_REQUEST_FIELDS = bytes(5)
HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/v1alpha1.Pods/WatchPods"),
    (":authority", "node"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]


@pytest.fixture
def path(victims: Victims) -> Path:
    return Path(victims.agent.root) / "pods-api" / SOCKET


class Attacker:
    """A client that begins watches and reads nothing of them."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._h2 = H2Connection(H2Configuration(client_side=True))
        self._h2.initiate_connection()

    def watch(self, *, reset: bool = False) -> None:
        """Begin a watch, and reset it if so."""
        number = self._h2.get_next_available_stream_id()
        self._h2.send_headers(number, HEADERS)
        self._h2.send_data(number, NO_REQUEST_FIELDS, end_stream=True)
        if reset:
            self._h2.reset_stream(number)
        self._connection.sendall(self._h2.data_to_send())


def attackers(path: Path, count: int, connections: ExitStack) -> Iterator[Attacker]:
    for _ in range(count):
        connection = connections.enter_context(socket.socket(socket.AF_UNIX))
        connection.settimeout(DEADLINE_SECONDS)
        connection.connect(str(path))
        yield Attacker(connection)


async def _names(events: AsyncIterator[wire.WatchPodsEvent]) -> set[str]:
    """The names of all pods that there are when a watch begins."""
    names = set()
    async for event in events:
        if event.type == wire.EventType.INITIAL_SYNC_COMPLETE:
            break
        names.add(read_pod(event.pod).metadata.name)
    return names


async def _until_told_of(victims: Victims, path: Path, name: str) -> None:
    """Watch as others do, until a new pod is told of."""
    async with open_rpc_loop():
        channel = Channel(str(path))
        with trio.fail_after(DEADLINE_SECONDS):
            async with channel.stream(wire.PodsStub.watch_pods, wire.WatchPodsRequest()) as events:
                assert len(await _names(events)) >= GOOD_PODS
                victims.agent.write(f"{name}.json", pod_manifest(name, {"name": "c", "image": "i"}))
                async for event in events:
                    if read_pod(event.pod).metadata.name.startswith(name):
                        break
            listed = await channel.unary(wire.PodsStub.list_pods, wire.ListPodsRequest())
    victims.agent.remove(f"{name}.json")
    assert any(read_pod(each).metadata.name.startswith(name) for each in listed.pods)


def watchers_are_served(victims: Victims, path: Path, name: str) -> None:
    trio.run(_until_told_of, victims, path, name)


def test_watches_that_nobody_reads(victims: Victims, path: Path) -> None:
    with ExitStack() as connections, victims.undisturbed():
        for attacker in attackers(path, CONNECTIONS, connections):
            for _ in range(CALLS):
                with suppress(OSError):  # The server makes room for new connections.
                    attacker.watch()
        watchers_are_served(victims, path, "watched-beside-silence")


@pytest.mark.parametrize("reset", [False, True], ids=["at once", "each reset"])
def test_thousands_of_watches_of_one_connection(
    victims: Victims, path: Path, *, reset: bool
) -> None:
    with ExitStack() as connections, victims.undisturbed():
        (attacker,) = attackers(path, 1, connections)
        with suppress(OSError, ProtocolError):  # It may well be dropped.
            for _ in range(STREAMS):
                attacker.watch(reset=reset)
        watchers_are_served(victims, path, f"watched-beside-many-{str(reset).lower()}")
