"""Ports for programs that must be told where to listen."""

import socket
from contextlib import ExitStack

LOOPBACK = "127.0.0.1"


def free_ports(count: int) -> tuple[int, ...]:
    """Pick TCP ports that nobody listens on now, on any address of the host."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("", 0))
        return tuple(int(probe.getsockname()[1]) for probe in probes)


def free_port() -> int:
    """Pick one such port."""
    return free_ports(1)[0]
