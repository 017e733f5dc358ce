"""TCP connections of probes: numeric addresses without a detour, names without standing still.

A node makes hundreds of connections a second for its probes, nearly all of them to addresses that
are known as numbers. Names are looked up in threads, a few for each name: a name server that hangs
holds up nobody who asks for other names, however often it is asked, nor do the names of one pod
hold up others, also not those who ask for one of them. A tcpSocket probe is nothing but such a
connection.
"""

import errno
import os
import socket
import struct
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache, partial
from ipaddress import ip_address
from typing import cast
from weakref import WeakValueDictionary

import trio
from attrs import frozen

from trio_kubelet.k8s import Container, IntOrString, TCPSocketAction
from trio_kubelet.pod_clients.result import ProbeError, ProbeOutcome, ProbeResult, failure
from trio_kubelet.pod_clients.share import ProbeShare
from trio_kubelet.tasks.fair_limiter import FairLimiter, Share
from trio_kubelet.tasks.threads import NoThreadError, run_in_thread_now
from trio_kubelet.tasks.turns import Turn

LOOKUPS = 48
LOOKUPS_OF_A_NAMESPACE = 16
LOOKUPS_OF_NEWCOMERS = 16
"""Of all of them: for namespaces that have none, where the names of others hang."""
LOOKUPS_OF_A_POD = 2
LOOKUPS_OF_A_NAME = 12
"""Of all pods: a name server that hangs for one name has no more threads."""
LOOKUPS_OF_A_NAME_BY_A_NAMESPACE = 4
LOOKUPS_OF_A_NAME_BY_NEWCOMERS = 4
"""Of those of a name: a lookup may wait for one of all while it has one of these."""
_UNDER_WAY = (errno.EINPROGRESS, errno.EALREADY)
_OF_THIS_NODE = frozenset(
    {
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
        errno.EADDRNOTAVAIL,
        socket.EAI_MEMORY,
    }
)
"""Error numbers that stand for a lack of descriptors, memory or local ports."""
LONGEST_NAME = 253
"""In characters: no name of a host is longer, and one that is takes seconds to be looked up."""
OTHER_FAMILY_SECONDS = 0.3
"""The time that addresses of the first family have before one of the other is tried beside them."""
_LINGER_NO_TIME = struct.pack("ii", 1, 0)

Address = tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int]]


@frozen
class DialError(Exception):
    """There is no connection. The text is Go's.

    `is_local`: this node lacks what a connection takes, which says nothing about the other end.
    """

    message: str
    is_local: bool = False

    def __str__(self) -> str:
        return self.message


class Dialer:
    """Makes the connections of all probes."""

    def __init__(self) -> None:
        self._lookups = FairLimiter(LOOKUPS, LOOKUPS_OF_A_NAMESPACE, reserved=LOOKUPS_OF_NEWCOMERS)
        self._of_names = WeakValueDictionary[str, FairLimiter]()
        self._of_pods = WeakValueDictionary[str, trio.CapacityLimiter]()
        """By their uids."""

    async def dial(self, host: str, port: int, share: ProbeShare) -> socket.socket:
        """Connect; the socket does not block. Raises DialError.

        `share` is that of the pod for which this is done.
        A name may have addresses of two families, of which one leads nowhere: the other is tried
        soon, as by Go. Cancelled, it leaves nothing, except that the lookup of a name ends on its
        own.
        """
        if len(host) > LONGEST_NAME:
            raise DialError(f"dial tcp: lookup {host[:LONGEST_NAME]}…: no such host")
        addresses = _numeric(host, port) or await self._look_up(host, port, share)
        first = [each for each in addresses if each[0] == addresses[0][0]]
        other = [each for each in addresses if each[0] != addresses[0][0]]
        if other:
            return await _connect_first_of(first, other, share.turn)
        return await _connect_one_of(first, share.turn)

    async def _look_up(self, host: str, port: int, share: ProbeShare) -> list[Address]:
        if "\0" in host:
            # The C library would look up what is before it, which is another host.
            raise DialError(f"dial tcp: lookup {host}: no such host")
        try:
            return await run_in_thread_now(
                _addresses,
                host,
                port,
                limiter=self._slots(host, share).as_limiter(),
                abandon_on_cancel=True,
            )
        except NoThreadError as error:
            raise DialError(f"dial tcp: lookup {host}: {error}", is_local=True) from error
        except (OSError, UnicodeError) as error:
            if isinstance(error, OSError) and error.errno in _OF_THIS_NODE:
                words = f"dial tcp: lookup {host}: {(error.strerror or '').lower()}"
                raise DialError(words, is_local=True) from error
            raise DialError(f"dial tcp: lookup {host}: no such host") from error

    def _slots(self, host: str, share: ProbeShare) -> "_LookupSlots":
        of_name = self._of_names.setdefault(
            host,
            FairLimiter(
                LOOKUPS_OF_A_NAME,
                LOOKUPS_OF_A_NAME_BY_A_NAMESPACE,
                reserved=LOOKUPS_OF_A_NAME_BY_NEWCOMERS,
            ),
        )
        return _LookupSlots(
            self._of_pods.setdefault(share.uid, trio.CapacityLimiter(LOOKUPS_OF_A_POD)),
            of_name.share_of(share),
            self._lookups.share_of(share),
        )


@frozen
class _LookupSlots:
    """The slots of one lookup, all of them held until its thread has ended.

    They are taken in the order of the fields: who waits for one holds only what fewer share.
    """

    _of_pod: trio.CapacityLimiter
    _of_name: Share
    _of_all: Share

    def as_limiter(self) -> trio.CapacityLimiter:
        """The methods that trio asks of a limiter are here; it types one as its own class."""
        return cast("trio.CapacityLimiter", self)

    async def acquire_on_behalf_of(self, holder: object) -> None:
        """Wait for all of them. Cancelled, none is held."""
        with ExitStack() as held:
            for slot in (self._of_pod, self._of_name, self._of_all):
                await slot.acquire_on_behalf_of(holder)
                held.callback(slot.release_on_behalf_of, holder)
            held.pop_all()

    def release_on_behalf_of(self, holder: object) -> None:
        """Give all of them back."""
        for slot in (self._of_all, self._of_name, self._of_pod):
            slot.release_on_behalf_of(holder)


async def _connect_first_of(
    first: Sequence[Address], other: Sequence[Address], turn: Turn
) -> socket.socket:
    """Connect to addresses of one of two families. Raises the DialError of the first."""
    connected: list[socket.socket] = []
    failures: dict[bool, DialError] = {}
    has_failed = trio.Event()

    async def attempt(*, is_first: bool) -> None:
        if not is_first:
            with trio.move_on_after(OTHER_FAMILY_SECONDS):
                await has_failed.wait()
        try:
            connected.append(await _connect_one_of(first if is_first else other, turn))
        except DialError as error:
            failures[is_first] = error
            has_failed.set()
        else:
            nursery.cancel_scope.cancel()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(attempt, is_first=True))
            nursery.start_soon(partial(attempt, is_first=False))
    except BaseException:
        _close(connected)
        raise
    _close(connected[1:])
    if not connected:
        raise failures[True]
    return connected[0]


def hang_up(connection: socket.socket) -> None:
    """Close a connection, of which nothing is left on this node. Never blocks.

    A connection that this end closes first keeps its local port for a minute (TIME_WAIT), and a pod
    names whom its probes ask: it would use up all ports towards a server that others need.
    """
    # The other end reads the FIN, an end as any other. The RST that follows it forgets the
    # connection. With a second to linger, as the Go kubelet has it, Linux keeps TIME_WAIT, and
    # closing blocks until the FIN is acknowledged, also on a socket that does not block.
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NO_TIME)
        connection.shutdown(socket.SHUT_WR)
    connection.close()


def _close(connections: Iterable[socket.socket]) -> None:
    for connection in connections:
        hang_up(connection)


async def _connect_one_of(addresses: Sequence[Address], turn: Turn) -> socket.socket:
    """Connect to one address after another. Raises the DialError of the last."""
    for family, address in addresses[:-1]:
        try:
            return await _connect(family, address, turn)
        except DialError:
            continue
    return await _connect(*addresses[-1], turn)


async def _connect(
    family: socket.AddressFamily,
    address: tuple[str, int] | tuple[str, int, int, int],
    turn: Turn,
) -> socket.socket:
    where = host_port(*address[:2])
    try:
        connecting = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError as error:
        raise _dial_error(f"dial tcp {where}: socket: ", error.errno) from error
    try:
        code = connecting.connect_ex(address)
        if code == errno.EINPROGRESS:
            # A peer on this node, as pods are, has answered by now: the second call tells.
            code = connecting.connect_ex(address)
        if code in _UNDER_WAY:
            await trio.lowlevel.wait_writable(connecting)
            # Hundreds may come about all at once, and what follows may be a handshake.
            await turn()
            code = connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise _dial_error(f"dial tcp {where}: connect: ", code)
    except BaseException:
        hang_up(connecting)
        raise
    return connecting


@lru_cache(maxsize=1024)
def _numeric(host: str, port: int) -> list[Address]:
    try:
        parsed = ip_address(host)
    except ValueError:
        return []
    if parsed.version == 4:
        return [(socket.AF_INET, (host, port))]
    if "%" not in host:
        return [(socket.AF_INET6, (host, port, 0, 0))]
    return []


def _addresses(host: str, port: int) -> list[Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]  # type: ignore[misc]


def host_port(host: str, port: int) -> str:
    """Return host and port as one text, the former in brackets where it has colons."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def port_number(container: Container, port: IntOrString) -> int:
    """Return the number of a port of a container, which may be given by name. Raises ProbeError."""
    value = port.value
    if isinstance(value, str):
        named = [declared for declared in container.ports if declared.name == value]
        value = named[0].container_port if named else _number(value)
    if not 0 < value < 65536:
        raise ProbeError(f"invalid port number: {value}")
    return value


def _number(text: str) -> int:
    if not text.isascii() or not text.removeprefix("-").isdigit() or len(text) > 9:
        raise ProbeError(f'strconv.Atoi: parsing "{text}": invalid syntax')
    return int(text)


def _dial_error(what: str, code: int | None) -> DialError:
    return DialError(what + os.strerror(code or 0).lower(), is_local=code in _OF_THIS_NODE)


async def probe_tcp(
    dialer: Dialer,
    action: TCPSocketAction,
    container: Container,
    pod_ip: str,
    timeout_seconds: float,
    share: ProbeShare,
) -> ProbeResult:
    """Connect, and close at once.

    Raises ProbeError where the port has no number, or this node cannot make a connection.
    """
    host, port = action.host or pod_ip, port_number(container, action.port)
    with trio.move_on_after(timeout_seconds):
        try:
            connection = await dialer.dial(host, port, share)
        except DialError as error:
            if error.is_local:
                raise ProbeError(str(error)) from error
            return failure(str(error))
        hang_up(connection)
        return ProbeResult(outcome=ProbeOutcome.SUCCESS, by_container=True)
    return failure(f"dial tcp {host_port(host, port)}: i/o timeout")
