"""What the attackers find: a real agent with the hollow runtime, ten good pods, the node's port.

Each attack is a test of its own. That of a pod puts a manifest beside those of the good pods, and
waits until the agent has said what it makes of it; that of a client opens connections to the node's
port.
"""

import socket
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import trustme

from lab.agent import LabAgent
from lab.ports import free_port
from tests.hostile.victims import DEADLINE_SECONDS, Victims

HOST = "127.0.0.1"


class NodePort:
    """The node's port, and the authority whose certificates open it."""

    def __init__(self, folder: Path) -> None:
        self.number = free_port()
        self._authority = trustme.CA()
        self._file = folder / "clients.crt"
        self._authority.cert_pem.write_to_path(str(self._file))

    @property
    def settings(self) -> Mapping[str, object]:
        """Those of the agent."""
        return {
            "enableServer": True,
            "port": self.number,
            "authentication": {
                "x509": {"clientCAFile": str(self._file)},
                "webhook": {"enabled": False},
            },
            "authorization": {"mode": "AlwaysAllow"},
        }

    def context(self, name: str = "") -> ssl.SSLContext:
        """What a client needs; one without a name shows no certificate."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if name:
            self._authority.issue_cert(f"{name}.test", common_name=name).configure_cert(context)
        return context

    def connect(self, context: ssl.SSLContext, address: str = HOST) -> ssl.SSLSocket:
        """Open a connection from an address of this machine."""
        target = (HOST, self.number)
        plain = socket.create_connection(target, DEADLINE_SECONDS, source_address=(address, 0))
        return context.wrap_socket(plain)

    def status(self, context: ssl.SSLContext, path: str) -> int:
        """Ask once, on a connection of its own."""
        with self.connect(context) as connection:
            return ask(connection, path)


def ask(connection: ssl.SSLSocket, path: str) -> int:
    """Send a request; returns the status of the answer, of which the body is left unread."""
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return int(connection.recv(4096).split(maxsplit=2)[1])


def log_of(agent: LabAgent, name: str) -> tuple[Path, str]:
    """A pod's log, and its path at the port; what writes it elsewhere is the runtime's shim."""
    meta = next(pod["metadata"] for full, pod in agent.pods().items() if full.startswith(name))
    folder = agent.pod_logs / f"default_{meta['name']}_{meta['uid']}" / "c"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "0.log"
    file.write_text("2026-01-31T12:00:00.000000000Z stdout F said\n")
    return file, f"/containerLogs/default/{meta['name']}/c"


@pytest.fixture(scope="session")
def node_port(tmp_path_factory: pytest.TempPathFactory) -> NodePort:
    """The port of the agent that the victims run on."""
    return NodePort(tmp_path_factory.mktemp("port"))


@pytest.fixture(scope="session")
def victims(node_port: NodePort, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victims]:
    """Ten good pods on the hollow runtime."""
    folder: Path = tmp_path_factory.mktemp("hostile")
    with LabAgent(folder, endpoint="", settings=node_port.settings) as agent:
        yield Victims.of(agent, {"name": "c", "image": "good"})
