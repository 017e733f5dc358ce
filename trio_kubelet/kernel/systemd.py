"""Telling systemd how the service is doing: READY, RELOADING, STATUS, WATCHDOG, STOPPING.

The protocol is that of sd_notify(3): one datagram of `NAME=value` lines to the socket that
$NOTIFY_SOCKET names. Without one every message is dropped. A datagram to a local socket that
nobody reads must not hold the agent up, so what cannot be sent at once goes with the next message:
a service whose READY=1 got lost would be ended. The watchdog's messages go out as long as the sync
loop gets on: if it hangs, systemd starts the service anew.
"""

import os
import socket
import time
from collections.abc import Callable, Mapping

import structlog
import trio

log = structlog.get_logger("systemd")


class ServiceNotifier:
    """Sends to the service manager. Plain functions, never blocking, never raising."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = _socket_address(environment.get("NOTIFY_SOCKET", ""))
        self._status = ""
        self._owed: dict[str, str] = {}
        self._failing = False

    def ready(self) -> None:
        """The start is over, or the reload."""
        for name in ("RELOADING", "MONOTONIC_USEC"):
            self._owed.pop(name, None)  # Of what stands in one message, the last counts.
        self._send("READY", "1")

    def reloading(self) -> None:
        """The settings are read anew, until `ready`."""
        self._owed.pop("READY", None)
        self._owed["MONOTONIC_USEC"] = str(time.monotonic_ns() // 1000)
        self._send("RELOADING", "1")

    def stopping(self) -> None:
        """The agent ends; containers go on."""
        self._send("STOPPING", "1")

    def alive(self) -> None:
        """The sync loop turns."""
        self._send("WATCHDOG", "1")
        self._owed.pop("WATCHDOG", None)  # It says how things are now, not how they were.

    def status(self, text: str) -> None:
        """One line for `systemctl status`; repeated only when it changes."""
        text = " ".join(text.split())
        if text != self._status:
            self._status = text
            self._send("STATUS", text)

    def _send(self, name: str, value: str) -> None:
        """Send this, and what could not be sent before; of each name the newest."""
        if not self._address:
            return
        self._owed[name] = value
        message = "\n".join(f"{name}={value}" for name, value in self._owed.items())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as peer:
                peer.setblocking(False)
                peer.sendto(message.encode(errors="replace"), self._address)
        except OSError as error:
            if not self._failing:
                log.warning(
                    "service manager notification failed", message=message, error=str(error)
                )
            self._failing = True
        else:
            self._failing = False
            self._owed.clear()


def _socket_address(name: str) -> str:
    """The address of $NOTIFY_SOCKET: a path, or after an `@` a name without a file."""
    if name.startswith("@"):
        return "\0" + name[1:]
    return name if name.startswith("/") else ""


def watchdog_seconds(environment: Mapping[str, str] = os.environ) -> float | None:
    """The interval of the signs of life that systemd wants (WatchdogSec=), None for none.

    $WATCHDOG_PID names the process that is meant, where it is set.
    """
    pid = environment.get("WATCHDOG_PID", "")
    microseconds = environment.get("WATCHDOG_USEC", "")
    if not microseconds.isdecimal() or (pid and pid != str(os.getpid())):
        return None
    return int(microseconds) / 1e6 or None


MESSAGES_PER_PERIOD = 3
"""One may be late and another lost before systemd acts."""


async def feed_watchdog(
    notifier: ServiceNotifier, period_seconds: float, seconds_busy: Callable[[], float]
) -> None:
    """Tell the service manager for ever that the agent lives, while it does.

    `period_seconds` is WatchdogSec=, `seconds_busy()` for how long the slowest consumer of the
    sync loop has been at one message.
    """
    while True:
        if seconds_busy() < period_seconds:
            notifier.alive()
        await trio.sleep(period_seconds / MESSAGES_PER_PERIOD)
