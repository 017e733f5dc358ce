"""The journal of systemd, by its own program: no shell, no variable of the request but as a word.

What is asked for comes piece by piece as it is printed, so its length costs no memory.
"""

import subprocess
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import structlog
import trio
from attrs import frozen

log = structlog.get_logger("logs")

QUERY_SECONDS = 30.0
"""So long the program may take, as in the Go kubelet."""
UNIT_SUFFIX = ".service"
PIECE_BYTES = 64 * 1024
MAX_UNITS_BYTES = 1 << 20


class RunningQuery:
    """One query: until when it may take, whether its client reads or not."""

    def __init__(self) -> None:
        self.deadline = trio.current_time() + QUERY_SECONDS
        self._process: trio.Process | None = None

    def is_late(self) -> bool:
        """True if its time is over."""
        return trio.current_time() >= self.deadline

    def asks(self, process: trio.Process) -> None:
        """A program answers it."""
        self._process = process

    def end(self) -> None:
        """Kill the program."""
        if self._process is not None:
            self._process.kill()


@frozen
class SystemdJournal:
    """Calls `program`."""

    program: str = "journalctl"

    async def units(self, running: RunningQuery) -> frozenset[str]:
        """The services that have entries, without `.service`; none where there is no journal."""
        printed = bytearray()
        try:
            async with aclosing(self.entries(("--field", "_SYSTEMD_UNIT"), running)) as pieces:
                async for piece in pieces:
                    printed += piece
                    if len(printed) > MAX_UNITS_BYTES:
                        break
        except OSError as error:
            log.info("systemd journal query failed", error=str(error))
        names = (line.strip() for line in printed.decode(errors="replace").splitlines())
        return frozenset(
            name.removesuffix(UNIT_SUFFIX) for name in names if name.endswith(UNIT_SUFFIX)
        )

    async def entries(
        self, arguments: Sequence[str], running: RunningQuery
    ) -> AsyncGenerator[bytes, None]:
        """The program's output, on both streams; it is killed when the generator is closed."""
        command = (self.program, *arguments)
        process = await trio.lowlevel.open_process(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert process.stdout is not None
        running.asks(process)
        try:
            while True:
                with trio.move_on_at(running.deadline) as scope:
                    piece = await process.stdout.receive_some(PIECE_BYTES)
                if scope.cancelled_caught:
                    yield b"\ntimed out waiting for the journal\n"
                    return
                if not piece:
                    return
                yield bytes(piece)
        finally:
            process.kill()
            await process.stdout.aclose()
            with trio.CancelScope(shield=True):
                await process.wait()
