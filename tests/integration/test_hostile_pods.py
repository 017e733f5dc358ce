"""What the author of one pod can do to others on a real runtime: nothing that they notice."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from lab.agent import Json, LabAgent, is_running, pod_manifest
from lab.containerd import Containerd
from lab.processes import wait_until
from tests.hostile.victims import Victims
from tests.integration.pods import DEADLINE_SECONDS, conditions, mount, shell, until_term

CONFIG_ERROR = "CreateContainerConfigError"
CONTAINERS = 8
LOOPBACK = "127.0.0.1"
EVERYWHERE = ""
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def victims(containerd: Containerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victims]:
    """Ten good pods."""
    with LabAgent(tmp_path_factory.mktemp("hostile"), endpoint=containerd.endpoint) as agent:
        yield Victims.of(agent, until_term("c"))


def is_ready(pod: Json) -> bool:
    return conditions(pod).get("Ready") == "True"


def test_variables_that_double(victims: Victims) -> None:
    env = [{"name": "V0", "value": "x" * 100}]
    env += [{"name": f"V{n}", "value": f"$(V{n - 1})$(V{n - 1})"} for n in range(1, 41)]
    with victims.beside(pod_manifest("hostile", until_term("c", env=env))):
        victims.wait_waiting("hostile", CONFIG_ERROR)


def test_variables_from_a_long_file(victims: Victims) -> None:
    """Each container asks for twenty, of a file whose lines are those of a thousand others."""
    line = "echo \"N$i='$(printf %900s x)'\""
    fill = f"i=0; while [ $i -lt 1000 ]; do {line}; i=$((i+1)); done >/v/e"
    volume = {"name": "shared", "emptyDir": {}}
    keys = [
        {
            "name": f"N{n}",
            "valueFrom": {
                "fileKeyRef": {
                    "volumeName": "shared",
                    "path": "e",
                    "key": f"N{n}",
                    "optional": True,
                }
            },
        }
        for n in range(20)
    ]
    manifest = pod_manifest(
        "hostile",
        *(until_term(f"c{n}", env=keys) for n in range(CONTAINERS)),
        initContainers=[shell("fill", fill, volumeMounts=[mount("/v")])],
        volumes=[volume],
    )
    with victims.beside(manifest):
        victims.wait_pod("hostile", is_running)


def test_probes_that_print_without_end(victims: Victims) -> None:
    command = ["sh", "-c", "head -c 15000000 /dev/zero"]
    probe = {"exec": {"command": command}, "periodSeconds": 1, "timeoutSeconds": 10}
    containers = (until_term(f"c{n}", readinessProbe=probe) for n in range(CONTAINERS))
    with victims.beside(pod_manifest("hostile", *containers)):
        victims.wait_pod("hostile", is_ready)


SHARE_OF_CPU = {"limits": {"cpu": "100m"}}
"""Of a container that would take all there is; what it makes the agent do is the point."""


def test_containers_that_print_and_write_without_end(victims: Victims) -> None:
    """The log of one is rotated meanwhile; the other writes thousands of files."""
    prints = shell("prints", "yes", resources=SHARE_OF_CPU)
    write = "while :; do i=$((i+1)); echo x >/f$((i%10000)); done"
    writes = shell("writes", write, resources=SHARE_OF_CPU)
    with victims.beside(pod_manifest("hostile", prints, writes)):
        wait_until(
            lambda: any(victims.agent.pod_logs.glob("default_hostile-*/prints/0.log.*")),
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: "its log is not rotated",
        )


@contextmanager
def floods(opening: bytes, flood: bytes, address: str = LOOPBACK) -> Iterator[int]:
    """A server on this host that answers every connection with a flood; yields its port."""
    listener = socket.create_server((address, 0))
    data = flood * (64 * 1024 // len(flood))

    def pour(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(16 * 1024)
            connection.sendall(opening)
            while True:
                connection.sendall(data)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=pour, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()


@pytest.mark.parametrize(
    ("opening", "flood"),
    [
        (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"1;x=" + b"y" * 60 + b"\r\nz\r\n",
        ),
        (b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n"),
    ],
    ids=["informational", "chunk-extensions", "headers"],
)
def test_probes_that_are_answered_without_end(
    victims: Victims, opening: bytes, flood: bytes
) -> None:
    with floods(opening, flood) as port:
        get = {"httpGet": {"host": LOOPBACK, "port": port}, "periodSeconds": 1}
        containers = (until_term(f"c{n}", readinessProbe=get) for n in range(CONTAINERS))
        with victims.beside(pod_manifest("hostile", *containers)):
            victims.wait_journal("Readiness probe failed")


SETTINGS = b"\0\0\0\4\0\0\0\0\0"
PING = b"\0\0\x08\6\0\0\0\0\0" + b"12345678"


@pytest.mark.parametrize("flood", [SETTINGS, PING], ids=["settings", "pings"])
def test_probes_over_grpc_that_are_answered_with_frames_without_end(
    victims: Victims, flood: bytes
) -> None:
    with floods(SETTINGS, flood, EVERYWHERE) as port:
        probe = {"grpc": {"port": port}, "periodSeconds": 1}
        containers = (until_term(f"c{n}", readinessProbe=probe) for n in range(CONTAINERS))
        with victims.beside(pod_manifest("hostile", *containers, hostNetwork=True)):
            victims.wait_journal("Readiness probe failed")
