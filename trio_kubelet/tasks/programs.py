"""Programs of the host, each run to its end within a time, with a bound on what it writes.

A program runs in a session of its own. One that takes too long or writes too much is killed with
all that it has started; so are the children that still have its pipes when it has ended.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

import trio
from attrs import define, field, frozen

PIPES_SECONDS = 1.0
"""The time that the children of a program that has ended may still write to its pipes."""

KILL_SECONDS = 5.0
"""The time for a program that was killed to be gone."""

MAX_STDERR_BYTES = 2048
"""More of what a program says of its failure is not kept."""

MAX_READ_STDERR_BYTES = 1 << 20
"""A program that goes on writing is killed: to read it would keep the event loop busy."""


@frozen(kw_only=True)
class ProgramEnd:
    """The result of a program. `problem` says in words why it failed, "" if it did not.

    `is_late`: it was killed because its time was over.
    """

    problem: str
    is_late: bool
    stdout: bytes = field(repr=False)
    stderr: bytes = field(repr=False)


async def run_program(
    command: Sequence[str],
    *,
    seconds: float,
    max_stdout_bytes: int,
    request: bytes = b"",
    environment: Mapping[str, str] | None = None,
) -> ProgramEnd:
    """Run a program with `request` on its standard input; `environment` None: the agent's.

    Raises OSError where it cannot be started, ValueError for arguments that no program can have,
    and RuntimeError where the machine has no thread left. Cancelled, it is killed.
    """
    process = await trio.lowlevel.open_process(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    run = _ProgramRun(process, max_stdout_bytes)
    with trio.move_on_after(seconds) as scope:
        await run.finish(request)
    if scope.cancelled_caught:
        problem = f"context deadline exceeded after {seconds:g} s"
    elif len(run.stdout) > max_stdout_bytes:
        problem = f"its answer has more than {max_stdout_bytes} bytes"
    elif run.stderr_bytes > MAX_READ_STDERR_BYTES:
        problem = f"it wrote more than {MAX_READ_STDERR_BYTES} bytes to its standard error"
    elif run.exit_status < 0:
        problem = f"signal: {signal.strsignal(-run.exit_status)}".lower()
    else:
        problem = f"exit status {run.exit_status}" if run.exit_status else ""
    return ProgramEnd(
        problem=problem,
        is_late=scope.cancelled_caught,
        stdout=bytes(run.stdout),
        stderr=bytes(run.stderr),
    )


@define(eq=False)
class _ProgramRun:
    """A program that runs, and what it has written so far."""

    process: trio.Process
    max_stdout_bytes: int
    stdout: bytearray = field(factory=bytearray)
    stderr: bytearray = field(factory=bytearray)
    stderr_bytes: int = 0
    exit_status: int = 0

    async def finish(self, request: bytes) -> None:
        """Write the request and read until the program has ended; killed if that is cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, request)
                nursery.start_soon(self._read_stderr, nursery.cancel_scope)
                nursery.start_soon(self._read_stdout, nursery.cancel_scope)
                self.exit_status = await self.process.wait()
                # Children of it may have its pipes and never end.
                nursery.cancel_scope.deadline = trio.current_time() + PIPES_SECONDS
            if nursery.cancel_scope.cancelled_caught:
                self._kill_all()
        finally:
            await self._end()

    async def _write(self, request: bytes) -> None:
        assert self.process.stdin is not None
        with suppress(trio.BrokenResourceError):
            async with self.process.stdin:
                await self.process.stdin.send_all(request)

    async def _read_stderr(self, scope: trio.CancelScope) -> None:
        """Keep the beginning of what the program complains of; too much of it ends the run."""
        assert self.process.stderr is not None
        async for data in self.process.stderr:
            self.stderr += data[: MAX_STDERR_BYTES - len(self.stderr)]
            self.stderr_bytes += len(data)
            if self.stderr_bytes > MAX_READ_STDERR_BYTES:
                scope.cancel()

    async def _read_stdout(self, scope: trio.CancelScope) -> None:
        """Read what the program writes; too much of it ends the run."""
        assert self.process.stdout is not None
        async for data in self.process.stdout:
            self.stdout += data
            if len(self.stdout) > self.max_stdout_bytes:
                scope.cancel()

    async def _end(self) -> None:
        """Kill what is left of the program and its children, and close its pipes."""
        streams = (self.process.stdin, self.process.stdout, self.process.stderr)
        # One that is stuck in the kernel does not end even by that; nobody waits for it.
        with trio.move_on_after(KILL_SECONDS, shield=True):
            if self.process.poll() is None:
                self._kill_all()
                await self.process.wait()
        with trio.CancelScope(shield=True):
            for stream in streams:
                if stream is not None:
                    await stream.aclose()

    def _kill_all(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
