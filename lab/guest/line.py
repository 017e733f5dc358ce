"""The host's end of the serial line to a guest; the protocol is in `commands.py`.

A thread reads what the guest says for as long as the guest runs. Any number of threads may have
commands run. A command whose guest ends, or starts anew, has failed.
"""

import base64
import itertools
import json
import os
import select
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lab import LabError
from lab.processes import last_words

# A guest that runs takes what it is told at once.
SEND_DEADLINE_SECONDS = 30
KILL_DEADLINE_SECONDS = 5
# The kernel of a guest may miss that the line has something to read, until more comes: seen once in
# seven thousand commands. An empty line, which is no message, is more.
REMIND_SECONDS = 1
# A terminal of user-mode Linux takes 4,096 bytes that nobody has read yet; after more it is dead.
MESSAGE_BYTES = 4000

Message = dict[str, Any]


@dataclass(slots=True)
class Result:
    """What a command left; a negative `status` is the signal that ended it."""

    status: int = 0
    stdout: bytes = b""
    stderr: bytes = b""


@dataclass(slots=True)
class _Command:
    result: Result = field(default_factory=Result)
    error: str = ""
    ended: threading.Event = field(default_factory=threading.Event)


class Line:
    """Owns both descriptors. `boot_id` is that of the kernel that answered last, "" for none."""

    def __init__(self, to_guest: int, from_guest: int) -> None:
        os.set_blocking(to_guest, False)
        self._to_guest = to_guest
        self._from_guest = from_guest
        self._sending = threading.Lock()
        self._numbers = itertools.count(1)
        self._commands: dict[int, _Command] = {}
        self._changed = threading.Condition()
        self._is_open = True
        self.boot_id = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for_boot(self, deadline_seconds: float) -> bool:
        """Wait until the guest takes commands; false if it ended before, or takes too long."""
        with self._changed:
            self._changed.wait_for(lambda: self.boot_id or not self._is_open, deadline_seconds)
        return bool(self.boot_id)

    def wait_for_end(self, deadline_seconds: float) -> bool:
        """Wait until the guest's kernel has ended; false if it takes too long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_open, deadline_seconds)

    def run(
        self,
        words: tuple[str, ...],
        *,
        environment: Mapping[str, str],
        folder: str,
        stdin: bytes,
        deadline_seconds: float,
    ) -> Result:
        """Run a command to its end. LabError if it cannot be told; it is killed at the deadline."""
        number, command = next(self._numbers), _Command()
        with self._changed:
            if not self._is_open:
                raise LabError("the guest does not run")
            self._commands[number] = command
        try:
            self._send(
                {
                    "run": number,
                    "words": words,
                    "environment": dict(environment),
                    "folder": folder,
                    "input": base64.b64encode(stdin).decode(),
                }
            )
            if not self._wait_for(command.ended, deadline_seconds):
                self._send({"kill": number})
                command.ended.wait(KILL_DEADLINE_SECONDS)
                said = (command.result.stdout + command.result.stderr).decode(errors="replace")
                raise LabError(f"no end after {deadline_seconds:g} s; {last_words(said, 20)}")
        finally:
            with self._changed:
                self._commands.pop(number, None)
        if command.error:
            raise LabError(command.error)
        return command.result

    def _wait_for(self, event: threading.Event, deadline_seconds: float) -> bool:
        end = time.monotonic() + deadline_seconds
        while not event.wait(min(REMIND_SECONDS, max(0, end - time.monotonic()))):
            if time.monotonic() >= end:
                return False
            with suppress(LabError):  # The reader tells that the guest has ended.
                self._write(b"\n")
        return True

    def close(self) -> None:
        """Let go of the line. The guest's kernel must have ended."""
        self._reader.join()
        with self._sending:
            os.close(self._to_guest)

    def _send(self, message: Message) -> None:
        text = json.dumps(message).encode() + b"\n"
        if len(text) > MESSAGE_BYTES:
            raise LabError(f"a message of {len(text)} bytes; a guest takes {MESSAGE_BYTES}")
        self._write(text)

    def _write(self, text: bytes) -> None:
        try:
            with self._sending:
                while text:
                    ready = select.select([], [self._to_guest], [], SEND_DEADLINE_SECONDS)
                    if not ready[1]:
                        raise LabError("the guest does not listen")
                    text = text[os.write(self._to_guest, text) :]
        except OSError as error:
            raise LabError(f"the guest does not listen: {error}") from error

    def _read(self) -> None:
        with os.fdopen(self._from_guest, "rb") as line:
            for text in line:
                try:
                    message = json.loads(text)
                except ValueError:
                    continue  # Somebody else's words, or half a message of a guest that ended.
                if not isinstance(message, dict):
                    continue
                with self._changed:
                    self._take(message)
                    self._changed.notify_all()
        with self._changed:
            self._is_open = False
            self._fail_all("the guest ended")
            self._changed.notify_all()

    def _take(self, message: Message) -> None:
        if "boot" in message:
            self.boot_id = message["boot"]
            self._fail_all("the guest started anew")
            return
        command = self._commands.get(message.get("id", 0))
        if command is None:
            return
        for name in ("stdout", "stderr"):
            if name in message:
                written = base64.b64decode(message[name])
                setattr(command.result, name, getattr(command.result, name) + written)
        if "status" in message or "error" in message:
            command.result.status = message.get("status", 0)
            command.error = message.get("error", "")
            command.ended.set()

    def _fail_all(self, reason: str) -> None:
        for command in self._commands.values():
            command.error = reason
            command.ended.set()
