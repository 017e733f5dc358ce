"""What servers of hostile pods answer to probes over the network costs nobody else anything.

The hollow runtime is on a socket: an agent that has it in itself asks nobody over the network.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from attrs import frozen

from lab.agent import Json, LabAgent, pod_manifest
from lab.processes import wait_until
from tests.hostile.probed_servers import (
    LOOPBACK,
    Answer,
    ProbedServer,
    RenegotiatingServer,
    over_tls,
    saying,
    saying_records,
)
from tests.hostile.served_runtime import served_runtime
from tests.hostile.victims import DEADLINE_SECONDS, Victims
from tests.unit.tls_peer import Records

PROBES = 20
"""Of one pod: each asks once a second."""
ANSWERS = 2 * PROBES
RENEGOTIATIONS = 5
MANY = 3700
RECORDS = 500

SETTINGS = b"\0\0\0\4\0\0\0\0\0"
INFORMATIONAL_HEADERS = b"\0\0\5\1\4\0\0\0\1\x08\x03103"
"""A frame of 14 bytes: a response with the status 103, after which another one comes."""
EARLY_HINTS = b"HTTP/1.1 103 Early Hints\r\n\r\n"
AWAY = b"HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"1;" + b"x" * 16_000 + b"\r\nz\r\n"


@frozen
class Attack:
    """A kind of probe, by the scheme that it asks with, and what it is answered."""

    scheme: str
    answer: Callable[[Path], Answer]

    def probe(self, port: int) -> Json:
        """A probe that asks each second."""
        if self.scheme == "gRPC":
            return {"grpc": {"port": port}, "periodSeconds": 1}
        get = {"host": LOOPBACK, "port": port, "scheme": self.scheme}
        return {"httpGet": get, "periodSeconds": 1}


def plain(data: bytes) -> Callable[[Path], Answer]:
    return lambda _: saying(data)


def http2(data: bytes) -> Callable[[Path], Answer]:
    return lambda folder: over_tls(folder, saying(SETTINGS + data), "h2")


def records(one: Callable[[Records], bytes]) -> Callable[[Path], Answer]:
    def make(made: Records) -> bytes:
        return b"".join(one(made) for _ in range(RECORDS))

    return lambda folder: saying_records(folder, make)


ATTACKS = {
    "settings": Attack("HTTPS", http2(SETTINGS * (65536 // len(SETTINGS)))),
    "headers": Attack("HTTPS", http2(INFORMATIONAL_HEADERS * (65536 // 14))),
    "settings-over-grpc": Attack("gRPC", plain(SETTINGS * (65536 // len(SETTINGS)))),
    "headers-over-grpc": Attack("gRPC", plain(SETTINGS + INFORMATIONAL_HEADERS * (65536 // 14))),
    "informational": Attack("HTTP", plain(EARLY_HINTS * MANY)),
    "redirects": Attack(
        "HTTPS", lambda folder: over_tls(folder, saying(EARLY_HINTS * 5 + AWAY), "http/1.1")
    ),
    "chunk-extensions": Attack("HTTP", plain(CHUNKED + CHUNK * 1000)),
    "records-without-data": Attack("HTTPS", records(lambda made: made.data(b""))),
    "keys-that-change": Attack("HTTPS", records(Records.key_update)),
}


@pytest.fixture(scope="module")
def victims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victims]:
    """Ten good pods."""
    with (
        served_runtime() as runtime,
        LabAgent(tmp_path_factory.mktemp("p"), endpoint=f"unix://{runtime.socket}") as agent,
    ):
        yield Victims.of(agent, {"name": "c", "image": "good"})


@contextmanager
def served(attack: Attack, folder: Path) -> Iterator[ProbedServer]:
    folder.mkdir()
    with ProbedServer(attack.answer(folder)) as server:
        yield server


def hostile(name: str, namespace: str, *probes: Json) -> Json:
    """A pod of the host's network, with a container for each probe."""
    containers = (
        {"name": f"c{number}", "image": "hostile", "readinessProbe": probe}
        for number, probe in enumerate(probes)
    )
    manifest = pod_manifest(name, *containers, hostNetwork=True)
    manifest["metadata"]["namespace"] = namespace
    return manifest


def wait_answered(server: ProbedServer, count: int) -> None:
    wait_until(
        lambda: server.answered >= count,
        deadline_seconds=2 * DEADLINE_SECONDS,
        else_say=lambda: f"only {server.answered} connections came to port {server.port}",
    )


@pytest.mark.parametrize("name", ATTACKS)
def test_a_pod_whose_probes_are_answered(victims: Victims, tmp_path: Path, name: str) -> None:
    attack = ATTACKS[name]
    with served(attack, tmp_path / name) as server:
        probes = [attack.probe(server.port)] * PROBES
        with victims.beside(hostile("hostile", "hostile", *probes)):
            wait_answered(server, ANSWERS)


def test_pods_of_two_namespaces_whose_probes_are_answered_in_every_way(
    victims: Victims, tmp_path: Path
) -> None:
    names = ("hostile-0", "hostile-1")
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(served(attack, tmp_path / name))
            for name, attack in ATTACKS.items()
        }
        probes = [ATTACKS[name].probe(server.port) for name, server in servers.items()]
        with victims.undisturbed():
            for name in names:
                victims.agent.write(f"{name}.json", hostile(name, name, *probes, *probes))
            for server in servers.values():
                wait_answered(server, 2 * len(names))
        for name in names:
            victims.agent.remove(f"{name}.json")


def test_a_pod_whose_servers_want_to_negotiate_again(victims: Victims, tmp_path: Path) -> None:
    with RenegotiatingServer(tmp_path) as server:
        probe = partial(Attack("HTTPS", plain(b"")).probe, server.port)
        with victims.beside(hostile("hostile", "hostile", *(probe() for _ in range(PROBES)))):
            wait_until(
                lambda: server.refused >= RENEGOTIATIONS,
                deadline_seconds=2 * DEADLINE_SECONDS,
                else_say=lambda: f"only {server.refused} renegotiations were refused",
            )
