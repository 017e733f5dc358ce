"""Runs in the guest: commands that the host asks for over a serial line, several at a time.

Each line is a JSON object. The host sends {"run": ID, "words": [...], "environment": {...},
"folder": "/", "input": base64} and {"kill": ID}; it is answered with {"boot": BOOT_ID} once at
the start, {"id": ID, "stdout" or "stderr": base64} for what the command writes, and {"id": ID,
"status": STATUS} at its end, or {"id": ID, "error": TEXT}. Standard library only, and no other
module of the lab: this file alone is copied into the image.
"""

import base64
import json
import os
import signal
import subprocess
import threading
import tty
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

LINE = "/dev/ttyS0"
PIECE_BYTES = 3000

Message = dict[str, Any]


class Commands:
    """The commands that run, by their ids; told of and answered through two descriptors."""

    def __init__(self, from_host: int, to_host: int) -> None:
        self._from_host = from_host
        self._to_host = to_host
        self._sending = threading.Lock()
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def serve(self) -> None:
        """Do what the host says, for ever."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._send({"boot": boot})
        with os.fdopen(self._from_host, "rb") as line:
            for text in line:
                # What is no message is what the line had before it was raw.
                with suppress(ValueError):
                    self._obey(json.loads(text))

    def _obey(self, message: Message) -> None:
        if "run" in message:
            threading.Thread(target=self._run, args=(message,), daemon=True).start()
        elif (process := self._running.get(message["kill"])) is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _run(self, message: Message) -> None:
        number = message["run"]
        try:
            process = subprocess.Popen(
                message["words"],
                env=message["environment"],
                cwd=message["folder"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            self._send({"id": number, "error": str(error)})
            return
        self._running[number] = process
        with process:
            self._attend(number, process, base64.b64decode(message["input"]))
        del self._running[number]
        self._send({"id": number, "status": process.returncode})

    def _attend(self, number: int, process: subprocess.Popen[bytes], given: bytes) -> None:
        """Pass on what it writes until nobody can write there any longer."""
        assert process.stdin is not None
        threads = [
            threading.Thread(target=self._pass_on, args=(number, name, stream), daemon=True)
            for name, stream in (("stdout", process.stdout), ("stderr", process.stderr))
        ]
        for thread in threads:
            thread.start()
        with suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(given)
        for thread in threads:
            thread.join()

    def _pass_on(self, number: int, name: str, stream: IO[bytes]) -> None:
        while piece := os.read(stream.fileno(), PIECE_BYTES):
            self._send({"id": number, name: base64.b64encode(piece).decode()})

    def _send(self, message: Message) -> None:
        text = json.dumps(message).encode() + b"\n"
        with self._sending:
            while text:
                text = text[os.write(self._to_host, text) :]


def main() -> None:
    descriptor = os.open(LINE, os.O_RDWR | os.O_NOCTTY)
    tty.setraw(descriptor)
    Commands(os.dup(descriptor), descriptor).serve()


if __name__ == "__main__":
    main()
