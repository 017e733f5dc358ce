"""The port of a node that an attacker reaches, and the authority whose certificates open it."""

import socket
import ssl
from collections.abc import Mapping
from pathlib import Path

import trustme

from lab.ports import LOOPBACK, free_port
from tests.hostile.victims import DEADLINE_SECONDS


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

    def connect(self, context: ssl.SSLContext, address: str = LOOPBACK) -> ssl.SSLSocket:
        """Open a connection from an address of this machine."""
        target = (LOOPBACK, self.number)
        plain = socket.create_connection(target, DEADLINE_SECONDS, source_address=(address, 0))
        return context.wrap_socket(plain)

    def status(self, context: ssl.SSLContext, path: str) -> int:
        """Ask once, on a connection of its own."""
        with self.connect(context) as connection:
            return ask(connection, path)


def ask(connection: ssl.SSLSocket, path: str, method: str = "GET", *headers: str) -> int:
    """Send a request; returns the status of the answer, of which the body is left unread."""
    lines = (f"{method} {path} HTTP/1.1", "Host: x", *headers, "", "")
    connection.sendall("\r\n".join(lines).encode())
    return int(connection.recv(4096).split(maxsplit=2)[1])
