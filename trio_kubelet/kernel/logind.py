"""systemd-logind: locks that delay a shutdown of the machine, and the announcement of one.

logind waits for those who hold a lock, but not for longer than its `InhibitDelayMaxSec`, which is
five seconds unless told else. As the Go kubelet does, the agent tells it in a drop-in of logind's
configuration.
"""

import math
import signal
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio
from jeepney import DBusAddress, HeaderFields, Message
from jeepney.fds import FileDescriptor

from trio_kubelet.kernel.system_bus import SYSTEM_BUS, Bus, BusError, open_bus
from trio_kubelet.kernel.whole_files import write_whole
from trio_kubelet.tasks.threads import run_in_thread

DROP_IN = Path("/etc/systemd/logind.conf.d/99-kubelet.conf")
"""The Go kubelet's: one of the two finds what the other has written."""

CALL_SECONDS = 5.0
RELOAD_LOOKS = 20
LOOK_SECONDS = 0.1
"""logind does not tell when it has read its configuration anew."""

_MICROSECONDS = 1_000_000
_NAME = "org.freedesktop.login1"
_LOGIND = DBusAddress("/org/freedesktop/login1", _NAME, f"{_NAME}.Manager")
_PROPERTIES = _LOGIND.with_interface("org.freedesktop.DBus.Properties")
_BUS = DBusAddress("/org/freedesktop/DBus", "org.freedesktop.DBus", "org.freedesktop.DBus")
_SYSTEMD = DBusAddress(
    "/org/freedesktop/systemd1", "org.freedesktop.systemd1", "org.freedesktop.systemd1.Manager"
)
_PREPARE, _OWNER_CHANGED = "PrepareForShutdown", "NameOwnerChanged"


class DelayLock:
    """A lock: a shutdown waits until `close` was called, or the process has ended."""

    def __init__(self, file: FileDescriptor) -> None:
        self._file = file

    def close(self) -> None:
        """Let go. Safe to repeat."""
        self._file.close()


class Logind:
    """A connection to logind; `open_logind` makes it. One task uses it; methods raise BusError."""

    def __init__(self, bus: Bus, drop_in: Path) -> None:
        self._bus = bus
        self._drop_in = drop_in
        self._announced: deque[bool] = deque()
        self._has_gone = False
        bus.on_signal = self._note

    async def hear(self) -> None:
        """Ask to be told of shutdowns, and of the end of logind itself."""
        await self._bus.hear(_LOGIND, _PREPARE)
        await self._bus.hear(_BUS, _OWNER_CHANGED, first=_NAME)

    async def delay_seconds(self) -> float:
        """The longest that a shutdown waits."""
        value = await self._property("InhibitDelayMaxUSec")
        if not isinstance(value, int):
            raise BusError("", f"logind: InhibitDelayMaxUSec is {value!r} and no number")
        return value / _MICROSECONDS

    async def is_shutting_down(self) -> bool:
        """True if a shutdown was announced and not called off."""
        return await self._property("PreparingForShutdown") is True

    async def lock(self, who: str, why: str) -> DelayLock:
        """Take a lock; logind refuses one while a shutdown is on its way."""
        file = await self._result(_LOGIND, "Inhibit", "ssss", ("shutdown", who, why, "delay"))
        if not isinstance(file, FileDescriptor):
            raise BusError("", "logind: it has answered with no lock")
        return DelayLock(file)

    async def ask_for_delay(self, seconds: float) -> float:
        """Let shutdowns wait for so long at most, if that is more than now; returns what holds.

        Raises OSError if its configuration cannot be written, and BusError if it was, but systemd
        has not told logind.
        """
        current = await self.delay_seconds()
        if current >= seconds:
            return current
        setting = f"InhibitDelayMaxSec={math.ceil(seconds)}"
        text = f"# Kubelet logind override\n[Login]\n{setting}\n".encode()
        await run_in_thread(
            partial(write_whole, self._drop_in, text, mode=0o644, folder_mode=0o755)
        )
        hangup = ("systemd-logind.service", "all", int(signal.SIGHUP))
        await self._call(_SYSTEMD, "KillUnit", "ssi", hangup)
        for _ in range(RELOAD_LOOKS):
            current = await self.delay_seconds()
            if current >= seconds:
                break
            await trio.sleep(LOOK_SECONDS)
        return current

    async def announcement(self) -> bool:
        """Wait for the next: True if the machine goes down, False if that was called off.

        Raises BusError when logind itself has gone, which may have lost the locks.
        """
        while not self._announced:
            if self._has_gone:
                raise BusError("", "logind has begun anew")
            await self._bus.receive()
        return self._announced.popleft()

    async def _property(self, name: str) -> object:
        value = await self._result(_PROPERTIES, "Get", "ss", (_LOGIND.interface, name))
        if not isinstance(value, tuple) or len(value) != 2:
            raise BusError("", f"logind: the property {name} has another form")
        return value[1]

    async def _result(
        self, address: DBusAddress, method: str, signature: str, body: tuple[object, ...]
    ) -> object:
        """The one result of a method."""
        results = await self._call(address, method, signature, body)
        if len(results) != 1:
            raise BusError("", f"logind: it has answered {method} with {len(results)} values")
        return results[0]

    async def _call(
        self, address: DBusAddress, method: str, signature: str, body: tuple[object, ...]
    ) -> tuple[object, ...]:
        with trio.move_on_after(CALL_SECONDS):
            return await self._bus.call(address, method, signature, body)
        raise BusError("", f"logind cannot be asked: no answer to {method} for {CALL_SECONDS:g} s")

    def _note(self, message: Message) -> None:
        member = message.header.fields.get(HeaderFields.member)
        if member == _PREPARE and message.body:
            self._announced.append(message.body[0] is True)
        elif member == _OWNER_CHANGED and message.body and message.body[0] == _NAME:
            self._has_gone = True


@asynccontextmanager
async def open_logind(bus: str = SYSTEM_BUS, drop_in: Path = DROP_IN) -> AsyncIterator[Logind]:
    """Connect to logind, and hear of shutdowns from then on. Raises BusError.

    `drop_in` is where its configuration is written.
    """
    with trio.move_on_after(CALL_SECONDS) as opening:
        async with open_bus("logind", bus, with_files=True) as opened:
            logind = Logind(opened, drop_in)
            await logind.hear()
            opening.deadline = math.inf
            yield logind
            return
    raise BusError("", f"logind cannot be asked: the bus has not answered for {CALL_SECONDS:g} s")
