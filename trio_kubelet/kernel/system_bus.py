"""D-Bus: a connection to the system's bus, or to a service that speaks without one.

One task uses a connection: it calls, and hears meanwhile what services tell everybody. jeepney's
router would receive in a task of its own, and fails when the bus hangs up on it. Every user of the
machine may send signals over the bus: those to all come from services, by the rules of our
subscriptions, but those to this connection come from anybody and count for nothing.
"""

import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import trio
from jeepney import (
    DBusAddress,
    HeaderFields,
    MatchRule,
    Message,
    MessageType,
    message_bus,
    new_method_call,
)
from jeepney.auth import BEGIN, AuthenticationError, Authenticator
from jeepney.bus import get_bus
from jeepney.io.trio import DBusConnection
from jeepney.low_level import Parser

SYSTEM_BUS = "SYSTEM"
NO_REPLY = "org.freedesktop.DBus.Error.NoReply"

MOST_MESSAGE_BYTES = 1 << 20
"""Services answer in far fewer. Every user of the machine may send messages of 32 MiB to us."""

_BROKEN = (OSError, trio.BrokenResourceError, trio.EndOfChannel, AuthenticationError)
# What jeepney raises for a message that it cannot read; the bus passes on such ones, too.
_UNREADABLE = (ValueError, LookupError, TypeError, AssertionError, RuntimeError, struct.error)


class BusError(Exception):
    """A service refused, or could not be asked; `name` is D-Bus' name of the error, or ""."""

    def __init__(self, name: str, message: str) -> None:
        self.name = name
        super().__init__(message)


class _BoundedParser:
    """jeepney's parser, but for messages that are too long: that stands at their beginning."""

    def __init__(self) -> None:
        self._parser = Parser()
        self.add_data = self._parser.add_data
        self.bytes_desired = self._parser.bytes_desired

    def get_next_message(self) -> Message | None:
        message: Message | None = self._parser.get_next_message()
        if message is None and self.bytes_desired() > MOST_MESSAGE_BYTES:
            raise ValueError(f"it is one of more than {MOST_MESSAGE_BYTES} bytes")
        return message


class Bus:
    """An open connection; `open_bus` makes it.

    `on_signal` is called with each signal to all that comes while something is waited for.
    """

    def __init__(self, connection: DBusConnection, service: str, *, has_bus: bool) -> None:
        self._connection = connection
        self._service = service
        self.has_bus = has_bus
        self.on_signal: Callable[[Message], None] = lambda _message: None

    async def call(
        self,
        address: DBusAddress,
        method: str,
        signature: str = "",
        body: tuple[object, ...] = (),
    ) -> tuple[object, ...]:
        """Call a method and return its results; raises BusError where the service refuses."""
        return await self._ask(new_method_call(address, method, signature, body))

    async def greet(self) -> None:
        """Say who we are, as a bus wants to hear first."""
        if self.has_bus:
            await self._ask(message_bus.Hello())

    async def hear(self, address: DBusAddress, member: str, *, first: str = "") -> None:
        """Ask to be told of a signal, with this first argument if any; needs a bus."""
        rule = MatchRule(
            type="signal", sender=address.bus_name, interface=address.interface, member=member
        )
        if first:
            rule.add_arg_condition(0, first)
        await self._ask(message_bus.AddMatch(rule))

    async def receive(self) -> Message:
        """Wait for the next message, whatever it is. Raises BusError."""
        try:
            message = await self._connection.receive()
        except _UNREADABLE as error:
            raise BusError(
                "", f"{self._service} cannot be asked: a message cannot be read: {error!r}"
            ) from error
        header = message.header
        is_signal = header.message_type is MessageType.signal
        if is_signal and HeaderFields.destination not in header.fields:
            self.on_signal(message)
        return message

    async def _ask(self, request: Message) -> tuple[object, ...]:
        serial = next(self._connection.outgoing_serial)
        await self._connection.send(request, serial=serial)
        while True:
            answer = await self.receive()
            if answer.header.fields.get(HeaderFields.reply_serial) == serial:
                break
        if answer.header.message_type is MessageType.error:
            name = str(answer.header.fields.get(HeaderFields.error_name, ""))
            raise BusError(name, f"{self._service}: {': '.join(map(str, answer.body)) or name}")
        body: tuple[object, ...] = answer.body
        return body


@asynccontextmanager
async def open_bus(
    service: str,
    address: str = SYSTEM_BUS,
    private_socket: str = "",
    *,
    with_files: bool = False,
) -> AsyncIterator[Bus]:
    """Connect to the bus, or else to the service itself at its private socket.

    `with_files` takes file descriptors that come with answers. Raises BusError if the connection
    cannot be made or breaks: with the name NO_REPLY where a service without a bus has gone.
    """
    if_broken = ""  # A bus tells that a service is away; the service's own socket breaks instead.
    try:
        stream, has_bus = await _connect(address, private_socket)
        if_broken = "" if has_bus else NO_REPLY
        async with stream:
            await _authenticate(stream, has_bus=has_bus, with_files=with_files)
            connection = DBusConnection(stream.socket, enable_fds=with_files)
            connection.parser = _BoundedParser()
            bus = Bus(connection, service, has_bus=has_bus)
            await bus.greet()
            yield bus
    except _BROKEN as error:
        raise BusError(if_broken, f"{service} cannot be asked: {error}") from error


async def _connect(address: str, private_socket: str) -> tuple[trio.SocketStream, bool]:
    """Connect; returns whether it is to the bus. Raises the OSError of the bus."""
    try:
        return await trio.open_unix_socket(_socket_of(address)), True
    except OSError:
        if private_socket:
            with suppress(OSError):
                return await trio.open_unix_socket(private_socket), False
        raise


def _socket_of(address: str) -> str:
    """The path of the bus' socket. Raises OSError for an address that is none."""
    try:
        path: str = get_bus(address)
    except (ValueError, RuntimeError) as error:
        raise OSError(f"the address of the bus cannot be used: {error}") from error
    return path


async def _authenticate(stream: trio.SocketStream, *, has_bus: bool, with_files: bool) -> None:
    """Tell the other side our user id. jeepney's own way spins when a bus hangs up meanwhile.

    A service without a bus is told at once that we begin: what it read together with that word, it
    would leave until more comes.
    """
    await stream.send_all(b"\0")
    authenticator = Authenticator(enable_fds=with_files, inc_null_byte=False)
    for line in authenticator:
        await stream.send_all(line if has_bus else line + BEGIN)
        if not (answer := await stream.receive_some()):
            raise trio.EndOfChannel("the bus has closed the connection")
        authenticator.feed(answer)
    if has_bus:
        await stream.send_all(BEGIN)
