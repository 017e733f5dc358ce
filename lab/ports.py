"""Ports for programs that must be told where to listen."""

import socket
from contextlib import ExitStack, suppress
from random import SystemRandom

LOOPBACK = "127.0.0.1"


def free_ports(count: int) -> tuple[int, ...]:
    """Pick TCP ports that nobody listens on now, on any address of the host.

    The kernel gives them to no connection meanwhile, and no cluster to a service.
    """
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < count:
            port = SystemRandom().randrange(10_000, 30_000)
            probe = held.enter_context(socket.socket())
            with suppress(OSError):  # It is taken.
                probe.bind(("", port))
                found.append(port)
    return tuple(found)


def free_port() -> int:
    """Pick one such port."""
    return free_ports(1)[0]
