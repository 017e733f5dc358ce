"""Words of the kernel about memory: a threshold is crossed, a limit is hit, tasks stall.

On cgroup v1 the kernel tells at once when the use of a cgroup crosses an amount, which is set anew
after each observation: the page cache that counts as free changes. On v2 it tells when pods hit
their common limit (memory.events.local), and, where it has PSI, when tasks wait for memory. These
come late, so there the rhythm of observations is what counts (`rhythm.py`). All wake the watch and
decide nothing.
"""

import os
import select
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import structlog
import trio
from attrs import define, field

from trio_kubelet.config.eviction import Signal
from trio_kubelet.eviction.pressure import Assessment, wanted_amount
from trio_kubelet.eviction.thresholds import Threshold
from trio_kubelet.resources import CgroupTree

log = structlog.get_logger("eviction")

PAUSE_SECONDS = 0.5
"""After an event: tasks that stall do so again and again."""

PSI_TRIGGER = b"some 200000 2000000\0"
"""200 ms in 2 s; the kernel grants who lacks CAP_SYS_RESOURCE no window but multiples of 2 s."""

_READ_BYTES = 4096


@define(eq=False)
class MemoryEvents:
    """Owner of the kernel's notifications; its file descriptors go when `run` ends.

    `cgroups` are the cgroups whose memory signals measure, by their paths; `host` is where the
    machine's root is mounted; `thresholds` gives those in force. `look` is called at each event.
    """

    _tree: CgroupTree
    _cgroups: Mapping[Signal, Iterable[str]]
    _thresholds: Callable[[], Iterable[Threshold]]
    _look: Callable[[], None]
    _host: Path = Path("/")
    _epoll: select.epoll = field(init=False, factory=select.epoll)
    _armed: list[int] = field(init=False, factory=list)
    _watched: list[int] = field(init=False, factory=list)

    async def run(self) -> None:
        """Pass events on until cancelled."""
        try:
            self._watch(self._host / "proc/pressure/memory", PSI_TRIGGER)
            if self._tree.version == 2:
                for path in self._cgroups.get(Signal.ALLOCATABLE_MEMORY, ()):
                    self._watch(self._folder(path) / "memory.events.local")
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                self._take()
                self._look()
                await trio.sleep(PAUSE_SECONDS)
        finally:
            for each in (*self._armed, *self._watched):
                os.close(each)
            self._epoll.close()

    def observed(self, assessment: Assessment) -> None:
        """Set the kernel's thresholds of cgroup v1 by what was observed last."""
        if self._tree.version == 1 and not self._epoll.closed:
            for each in self._armed:
                os.close(each)  # which ends its registration, and its place in the epoll
            self._armed = [*self._arm(assessment)]

    def _arm(self, assessment: Assessment) -> Iterator[int]:
        for threshold in self._thresholds():
            amounts = assessment.observed.signals.get(threshold.signal)
            if amounts is None or threshold in assessment.crossed_since:
                continue
            free = amounts.available - wanted_amount(threshold, amounts.capacity)
            for path in self._cgroups.get(threshold.signal, ()):
                with suppress(OSError, ValueError):
                    yield self._armed_at(self._folder(path), free)

    def _armed_at(self, folder: Path, free: int) -> int:
        """Ask for an event when a cgroup uses so much more than now. Raises OSError, ValueError."""
        usage = os.open(folder / "memory.usage_in_bytes", os.O_RDONLY | os.O_CLOEXEC)
        event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            amount = int(os.read(usage, _READ_BYTES)) + free
            control = os.open(folder / "cgroup.event_control", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(control, f"{event} {usage} {amount}".encode())
            finally:
                os.close(control)
            self._epoll.register(event, select.EPOLLIN | select.EPOLLET)
        except BaseException:
            os.close(event)
            raise
        finally:
            os.close(usage)
        return event

    def _watch(self, path: Path, trigger: bytes = b"") -> None:
        """Be told of changes of a file of the kernel's; one that is not there has none."""
        try:
            mode = os.O_RDWR if trigger else os.O_RDONLY
            file = os.open(path, mode | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            log.debug("memory event file unavailable", file=str(path), error=str(error))
            return
        try:
            if trigger:
                os.write(file, trigger)
            else:
                os.read(file, _READ_BYTES)
            self._epoll.register(file, select.EPOLLPRI | select.EPOLLET)
        except OSError as error:
            os.close(file)
            log.debug("memory event file unavailable", file=str(path), error=str(error))
            return
        self._watched.append(file)

    def _take(self) -> None:
        """Take note of all events, so that the next ones are told."""
        for file, _ in self._epoll.poll(0):
            with suppress(OSError):
                if file in self._armed:
                    os.eventfd_read(file)
                else:
                    os.pread(file, _READ_BYTES, 0)

    def _folder(self, path: str) -> Path:
        return self._tree.hierarchies["memory"] / path.lstrip("/")
