"""Processes that the kernel killed because the machine was out of memory: the event `SystemOOM`.

A container that reaches its own limit is no such case. The kernel's log says whom it killed; the
newest record that was told of is kept on the disk, so that an agent that is started again tells of
what happened meanwhile (it may have been killed itself), and of nothing twice.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import structlog
import trio
from attrs import define, field, frozen

from trio_kubelet.k8s import json_text
from trio_kubelet.kernel.kernel_log import KernelRecord, open_kernel_log
from trio_kubelet.kernel.whole_files import write_whole
from trio_kubelet.tasks.threads import run_in_thread
from trio_kubelet.telemetry import EventRecorder, EventType

log = structlog.get_logger("node")

REASON = "SystemOOM"
RECORD = "system-oom.json"
# A name may have brackets and blanks: what follows it is the kernel's again.
_KILL = re.compile(
    r"Out of memory(?: \([^)]*\))?: Kill(?:ed)? process (\d{1,10}) \((.*)\)(?:,| total-vm| score)"
)
_BEGIN = " invoked oom-killer: "
_GROUP = " are going to be killed due to memory.oom.group set"


@frozen
class SystemOom:
    """A process that was killed."""

    pid: int
    name: str

    @property
    def message(self) -> str:
        """The event's message."""
        return f"System OOM encountered, victim process: {self.name}, pid: {self.pid}"


class OomReader:
    """Finds such kills among the records of the kernel's log, which it takes in their order.

    Where the kernel kills a whole cgroup (`memory.oom.group`) it names every process, the first one
    twice; that is one kill, of the first.
    """

    __slots__ = ("_in_group",)

    def __init__(self) -> None:
        self._in_group = False

    def take(self, record: KernelRecord) -> SystemOom | None:
        """Return the process that a record says was killed; None for other records."""
        if not record.by_kernel:
            return None
        if _BEGIN in record.text:
            self._in_group = False
        elif record.text.endswith(_GROUP):
            self._in_group = True
        matched = None if self._in_group else _KILL.match(record.text)
        return SystemOom(int(matched[1]), matched[2]) if matched is not None else None


@define(eq=False)
class SystemOomWatch:
    """Tells of each process that is killed. `folder` is --root-dir."""

    _kernel_log: Path
    _folder: Path
    _boot_id: str
    _recorder: EventRecorder
    _reader: OomReader = field(init=False, factory=OomReader)
    _told: int = field(init=False, default=-1)

    async def run(self) -> None:
        """Watch the kernel's log until cancelled; where it cannot be read, say so and end."""
        self._told = await run_in_thread(self._load)
        try:
            with open_kernel_log(self._kernel_log) as kernel_log:
                async for records in kernel_log.records():
                    await self._tell(records)
        except OSError as error:
            log.warning(
                "kernel log read failed, no event tells of processes killed for memory",
                path=str(self._kernel_log),
                error=error.strerror,
            )

    async def _tell(self, records: Sequence[KernelRecord]) -> None:
        before = self._told
        for record in records:
            killed = self._reader.take(record)
            if killed is not None and record.sequence > self._told:
                self._recorder.node(EventType.WARNING, REASON, killed.message)
                self._told = record.sequence
        if self._told != before:
            with trio.CancelScope(shield=True):
                await run_in_thread(self._save)

    def _load(self) -> int:
        """The sequence number of the newest record of this boot that was told of. Blocks."""
        file = self._folder / RECORD
        try:
            content = json_text.loads(file.read_bytes())
            sequence = content["sequence"]
            if type(sequence) is not int:
                raise TypeError(f"{sequence!r} is no sequence number")
            return sequence if content["bootID"] == self._boot_id else -1
        except FileNotFoundError:
            return -1
        except (OSError, ValueError, TypeError, LookupError) as error:
            log.warning("system OOM record read failed", path=str(file), error=str(error))
            return -1

    def _save(self) -> None:
        file = self._folder / RECORD
        content = {"bootID": self._boot_id, "sequence": self._told}
        try:
            write_whole(file, json_text.dumps(content))
        except OSError as error:
            log.warning("system OOM record write failed", path=str(file), error=str(error))
