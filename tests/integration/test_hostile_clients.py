"""What a client of the node's port can do to others with what a real runtime streams: nothing.

All that it asks is of a pod of a namespace of its own. Meanwhile others run commands, read logs and
ask for the node's own matters.
"""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from attrs import frozen

from lab.agent import LabAgent, is_running, pod_manifest
from lab.containerd import Containerd
from tests.hostile.node_port import NodePort, ask
from tests.hostile.streams import (
    COMMAND,
    RESIZE,
    SPDY_COMMAND,
    SPDY_PORTS,
    STDIN,
    SpdyStreams,
    message,
    opened,
    output,
    ping,
)
from tests.hostile.victims import Victims
from tests.integration.pods import full_name, until_term

OK, UNAUTHORIZED, TOO_MANY = 200, 401, 429
SESSIONS = 10
"""Of each kind; each is a process of the runtime."""
LASTING = 340
"""More than the node has room for."""
STRANGERS = 300
SILENT_PORT, TRICKLING_PORT = 9191, 9090
CONNECTIONS = 1000
"""More than one user may have to ports at once."""
MOST_THREADS = 700
"""Of the runtime, which needs one for each of the 512 that a user may have."""
FLOOD_BYTES = 256 << 10

SERVE = (
    f"(nc -l -p {SILENT_PORT} & sleep 1; kill -STOP $!; wait) & "
    f"while :; do (while :; do echo x; sleep 1; done) | nc -l -p {TRICKLING_PORT}; done & :"
)
"""One port at which connections wait for ever, and one that trickles."""


@frozen
class Attack:
    """One user with a pod of his own, beside ten good ones, and the port that he asks."""

    victims: Victims
    port: NodePort
    user: ssl.SSLContext
    good: ssl.SSLContext
    pod: str
    containerd: Containerd

    def exec(self, protocol: tuple[str, ...], *command: str, streams: str) -> ssl.SSLSocket:
        """The connection of a command in the user's pod."""
        words = "&".join(f"command={word}" for word in command)
        path = f"/exec/hostile/{self.pod}/c?{words}&{streams}"
        return opened(self.port, self.user, path, protocol)

    def forward(self) -> ssl.SSLSocket:
        """A connection that forwards ports of the user's pod, of which none is named yet."""
        return opened(self.port, self.user, f"/portForward/hostile/{self.pod}", SPDY_PORTS)

    @contextmanager
    def beside_others(self) -> Iterator[ExitStack]:
        """Connections that are closed at the end of the block; others are answered meanwhile."""
        with self.victims.undisturbed(), ExitStack() as connections:
            yield connections
            self.others_are_answered()

    def others_are_answered(self) -> None:
        """Run commands in good pods, read their logs, ask for the pods."""
        for number in range(3):
            name = full_name(f"good-{number}")
            run = f"/exec/default/{name}/c?command=echo&command=well&output=1&error=1"
            with opened(self.port, self.good, run, COMMAND) as command:
                assert b"well\n" in output(command)
            assert self.port.status(self.good, f"/containerLogs/default/{name}/c") == OK
        assert self.port.status(self.good, "/pods") == OK


@pytest.fixture(scope="module")
def attack(containerd: Containerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attack]:
    """Ten good pods, and one of the attacker."""
    folder = tmp_path_factory.mktemp("hostile")
    port = NodePort(folder)
    with LabAgent(folder, endpoint=containerd.endpoint, settings=port.settings) as agent:
        victims = Victims.of(agent, until_term("c"))
        manifest = pod_manifest("hostile", until_term("c", SERVE))
        manifest["metadata"]["namespace"] = "hostile"
        agent.write("hostile.json", manifest)
        victims.wait_pod("hostile", is_running)
        user, good = port.context("user"), port.context("good")
        yield Attack(victims, port, user, good, full_name("hostile"), containerd)


def test_commands_whose_output_nobody_reads(attack: Attack) -> None:
    with attack.beside_others() as connections:
        for _ in range(SESSIONS):
            connections.enter_context(attack.exec(COMMAND, "yes", streams="output=1&error=1"))
            over_spdy = attack.exec(SPDY_COMMAND, "yes", streams="output=1")
            streams = SpdyStreams()
            wanted = [streams.opened(streamtype=kind) for kind in ("error", "stdout")]
            connections.enter_context(over_spdy).sendall(b"".join(wanted))


FLOODS = (
    message(STDIN, b"x" * 32_000),
    message(STDIN, b"x"),
    message(b"", b""),
    message(b"\x09", b"of no stream"),
    ping(),
)


def test_input_without_end_for_commands_that_read_nothing(attack: Attack) -> None:
    with attack.beside_others() as connections:
        for flood in FLOODS * (SESSIONS // len(FLOODS)):
            session = attack.exec(COMMAND, "sleep", "1000", streams="input=1&output=1")
            pour(connections.enter_context(session), flood * (FLOOD_BYTES // len(flood)))


def test_windows_whose_size_changes_without_end(attack: Attack) -> None:
    sizes = [{"Width": number, "Height": 20} for number in range(10, 200)]
    storm = b"".join(message(RESIZE, json.dumps(size).encode()) for size in sizes)
    with attack.beside_others() as connections:
        for _ in range(SESSIONS // 2):
            session = attack.exec(COMMAND, "sleep", "1000", streams="input=1&output=1&tty=1")
            pour(connections.enter_context(session), storm)


def test_streams_that_are_half_open(attack: Attack) -> None:
    """Of one the runtime waits for streams, of one for a frame, of one nobody waits for more."""
    with attack.beside_others() as connections:
        for _ in range(SESSIONS):
            connections.enter_context(attack.exec(SPDY_COMMAND, "cat", streams="input=1"))
            half = attack.exec(COMMAND, "cat", streams="input=1&output=1")
            connections.enter_context(half).sendall(message(STDIN, b"x" * 1000)[:100])
            attack.exec(COMMAND, "cat", streams="input=1&output=1").close()


def test_more_forwarded_ports_than_there_is_room_for(attack: Attack) -> None:
    """Some trickle, and most are forwarded for nothing."""
    path = f"/portForward/hostile/{attack.pod}"
    with attack.beside_others() as connections:
        for number in range(LASTING):
            connection = connections.enter_context(attack.port.connect(attack.user))
            status = ask(connection, path, "POST", *SPDY_PORTS)
            if status == TOO_MANY:
                break
            if number < SESSIONS:
                connection.sendall(SpdyStreams().port(TRICKLING_PORT, 0))
        assert status == TOO_MANY


def test_commands_that_are_run_and_print_without_end(attack: Attack) -> None:
    with attack.beside_others() as connections:
        for command in ("yes", "head+-c+20000000+/dev/zero", "sleep+1000") * (SESSIONS // 2):
            path = f"/run/hostile/{attack.pod}/c?cmd={command}"
            connection = connections.enter_context(attack.port.connect(attack.user))
            connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


def test_followers_of_a_quiet_log(attack: Attack) -> None:
    path = f"/containerLogs/hostile/{attack.pod}/c?follow=true"
    with attack.beside_others() as connections:
        statuses = set()
        for _ in range(LASTING):
            connection = connections.enter_context(attack.port.connect(attack.user))
            statuses.add(ask(connection, path))
        assert statuses == {OK, TOO_MANY}


def test_strangers(attack: Attack) -> None:
    nobody = attack.port.context()
    with attack.beside_others() as connections:
        for number in range(STRANGERS):
            address = f"127.0.0.{2 + number % 2}"
            connection = connections.enter_context(attack.port.connect(nobody, address))
            assert ask(connection, "/pods") == UNAUTHORIZED


def test_connections_to_ports_that_do_not_answer(attack: Attack) -> None:
    """Some are given up at once, and others never; the last test, as they count for minutes."""
    runtime = Path(f"/proc/{attack.containerd.pid}/task")
    with attack.beside_others() as connections:
        for is_reset in (True, False):
            streams = SpdyStreams()
            storm = [
                streams.port(SILENT_PORT, request) + (streams.reset() if is_reset else b"")
                for request in range(CONNECTIONS)
            ]
            forwarding = connections.enter_context(attack.forward())
            pour(forwarding, b"".join(storm))
            output(forwarding)  # Until it is closed, as it has asked for too many.
        assert len(list(runtime.iterdir())) < MOST_THREADS


def pour(connection: ssl.SSLSocket, data: bytes) -> None:
    """Send data in a thread, for as long as the connection is open."""

    def send() -> None:
        with suppress(OSError):
            connection.sendall(data)

    threading.Thread(target=send, daemon=True).start()
