"""A bus with nothing but logind on it, and as much of systemd as reloads that."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio
from attrs import define, field
from jeepney import DBusAddress, HeaderFields, Message, new_error, new_method_return, new_signal
from jeepney.io.trio import DBusConnection

MANAGER = DBusAddress("/org/freedesktop/login1", interface="org.freedesktop.login1.Manager")


@define(eq=False)
class FakeLogind:
    """`delay_seconds` becomes `reloaded_seconds` when its configuration is read anew.

    `locks` are the ends of pipes on which the end of each lock is seen.
    """

    folder: Path
    delay_seconds: float = 5.0
    reloaded_seconds: float = 5.0
    is_shutting_down: bool = False
    refuses_locks: bool = False
    refuses_reloads: bool = False
    hangs: bool = False
    """Connections are taken, and nothing is answered on them."""
    odd: tuple[str, str, tuple[object, ...]] | None = None
    """A method, and the signature and values that it is answered with."""
    calls: list[tuple[str, Any]] = field(factory=list)
    locks: list[int] = field(factory=list)
    connections: list[DBusConnection] = field(factory=list)
    came: trio.Event = field(factory=trio.Event)

    @property
    def address(self) -> str:
        return f"unix:path={self.folder / 'bus'}"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve whoever connects, until cancelled; then all connections break."""
        listener = trio.socket.socket(trio.socket.AF_UNIX)
        (self.folder / "bus").unlink(missing_ok=True)
        await listener.bind(str(self.folder / "bus"))
        listener.listen()
        task_status.started()
        await trio.serve_listeners(self._serve, [trio.SocketListener(listener)])

    async def announce(self, *, goes_down: bool) -> None:
        """Tell everybody that the machine goes down, or that it does not."""
        self.is_shutting_down = goes_down
        for connection in self.connections:
            await connection.send(new_signal(MANAGER, "PrepareForShutdown", "b", (goes_down,)))

    async def forge(self) -> None:
        """A user of the machine tells the agent that the machine goes down."""
        for connection in self.connections:
            forged = new_signal(MANAGER, "PrepareForShutdown", "b", (True,))
            forged.header.fields[HeaderFields.destination] = ":1.7"
            await connection.send(forged)

    async def send_too_much(self) -> None:
        """A user of the machine sends the agent a long message, which breaks the connection."""
        large = new_signal(MANAGER, "PrepareForShutdown", "s", ("x" * (2 << 20),))
        for connection in tuple(self.connections):
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await connection.send(large)

    async def begin_anew(self) -> None:
        """logind ends, and another one takes its name."""
        bus = DBusAddress("/org/freedesktop/DBus", interface="org.freedesktop.DBus")
        for connection in self.connections:
            body = ("org.freedesktop.login1", ":1.2", "")
            await connection.send(new_signal(bus, "NameOwnerChanged", "sss", body))

    def is_held_up(self) -> bool:
        """True if somebody holds a lock."""
        return any(map(_is_open, self.locks))

    async def _serve(self, stream: trio.SocketStream) -> None:
        if self.hangs:
            await trio.sleep_forever()
        while b"BEGIN\r\n" not in (said := await stream.receive_some()):
            if b"AUTH" in said:
                await stream.send_all(b"OK 0123456789abcdef\r\n")
            elif b"NEGOTIATE" in said:
                await stream.send_all(b"AGREE_UNIX_FD\r\n")
        connection = DBusConnection(stream.socket, enable_fds=True)
        self.connections.append(connection)
        try:
            while True:
                await self._answer(connection, await connection.receive())
        except (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self.connections.remove(connection)
            await connection.aclose()

    async def _answer(self, connection: DBusConnection, message: Message) -> None:
        method = message.header.fields[HeaderFields.member]
        self.calls.append((method, message.body))
        match method:
            case _ if self.odd is not None and method == self.odd[0]:
                answer = new_method_return(message, *self.odd[1:])
            case "Hello":
                answer = new_method_return(message, "s", (":1.7",))
            case "Get" if message.body[1] == "InhibitDelayMaxUSec":
                answer = new_method_return(message, "v", (("t", int(self.delay_seconds * 1e6)),))
            case "Get":
                answer = new_method_return(message, "v", (("b", self.is_shutting_down),))
            case "Inhibit" if self.refuses_locks or self.is_shutting_down:
                name = "org.freedesktop.login1.OperationInProgress"
                answer = new_error(message, name, "s", ("in progress",))
            case "Inhibit":
                mine, theirs = os.pipe()
                os.set_blocking(mine, False)
                self.locks.append(mine)
                await connection.send(new_method_return(message, "h", (theirs,)))
                os.close(theirs)
                self.came.set()
                return
            case "KillUnit" if self.refuses_reloads:
                name = "org.freedesktop.DBus.Error.AccessDenied"
                answer = new_error(message, name, "s", ("denied",))
            case "KillUnit":
                self.delay_seconds = self.reloaded_seconds
                answer = new_method_return(message)
            case _:
                answer = new_method_return(message)
        await connection.send(answer)


def _is_open(pipe: int) -> bool:
    try:
        return os.read(pipe, 1) != b""
    except BlockingIOError:
        return True
