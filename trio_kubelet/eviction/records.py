"""Records of evictions, on the disk before a pod is ended.

An agent that is killed in between finds them when it is back: it ends the pod for the same reason,
in the same words, instead of telling of containers that somebody killed. A record is open until
the pod's task has ended, so that nothing of it is left, and its source shows the pod as ended, or
has it no more; those of the last evictions are kept for people who ask why.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import trio
from attrs import asdict, evolve, field, fields, frozen

from state_machines.pod import PodEvent
from state_machines.pod_ending import Ending
from trio_kubelet.eviction.decision import Victim
from trio_kubelet.eviction.messages import EVICTED
from trio_kubelet.k8s import Pod
from trio_kubelet.kernel.state_file import is_passing, read_when_possible, set_aside
from trio_kubelet.kernel.whole_files import make_folder, reserve, write_reserved
from trio_kubelet.tasks.threads import run_in_thread
from trio_kubelet.telemetry import EventRecorder, EventType

log = structlog.get_logger("eviction")

FILE = "evictions.json"
MAX_CLOSED = 100
"""The evictions that are over and still told of."""

SAVE_SECONDS = 2.0
"""The time that an eviction waits for its record: a disk that hangs must not keep memory short."""

FILE_BYTES = 128 * 1024
"""The size of the file, and of the spare one: so much room a full disk has for the next decision.
Records of a hundred evictions have less."""
_FOLDER_MODE = 0o750

_LIST = "evictions"
_PLAIN = (str, int, bool)
_MOST = 1 << 62
"""Of a number in a record: a time far from now, a grace period without an end."""


@frozen(kw_only=True)
class EvictionRecord:
    """An eviction. `cause` is the label of the metric, `at_ns` nanoseconds since the epoch.

    `annotations` are those of its event. `is_open`: an agent that starts has to end the pod, if it
    is still there.
    """

    uid: str
    namespace: str
    name: str
    at_ns: int
    cause: str
    message: str
    disruption: str
    grace_seconds: int
    annotations: Mapping[str, str] = field(factory=dict)
    is_open: bool = True

    @property
    def key(self) -> str:
        """`namespace/name` of the pod."""
        return f"{self.namespace}/{self.name}"

    @property
    def ending(self) -> Ending:
        """The end that the pod gets."""
        return Ending(
            causes=(PodEvent.EVICTED,),
            grace_seconds=self.grace_seconds,
            reason=EVICTED,
            message=self.message,
            disruption=self.disruption,
            delete_content=True,
        )

    def tell(self, recorder: EventRecorder, pod: Pod) -> None:
        """Record the event of the eviction."""
        recorder.pod(pod, EventType.WARNING, EVICTED, self.message, annotations=self.annotations)


def record_of(victim: Victim, now_ns: int) -> EvictionRecord:
    """The record of an eviction that was decided now."""
    meta = victim.pod.metadata
    return EvictionRecord(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        at_ns=now_ns,
        cause=victim.cause,
        message=victim.message,
        disruption=victim.disruption,
        grace_seconds=victim.grace_seconds,
        annotations=victim.annotations,
    )


def parsed(text: str) -> tuple[EvictionRecord, ...]:
    """The records in the text of a file. Raises ValueError for what is none."""
    try:
        return tuple(_record(each) for each in json.loads(text)[_LIST])
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"it has another form: {error}") from error


def printed(records: Iterable[EvictionRecord]) -> str:
    """The text of a file with these records."""
    return json.dumps({_LIST: [asdict(each) for each in records]}, indent=1)


def _record(value: dict[str, Any]) -> EvictionRecord:
    values = {each.name: value[each.name] for each in fields(EvictionRecord) if each.type in _PLAIN}
    for each in fields(EvictionRecord):
        if each.name in values and type(values[each.name]) is not each.type:
            raise ValueError(f"{each.name} is of another kind")
        if each.type is int and not 0 <= values[each.name] <= _MOST:
            raise ValueError(f"{each.name} is out of range")
    annotations = value.get("annotations", {})
    if not isinstance(annotations, dict) or not all(
        isinstance(each, str) for each in annotations.values()
    ):
        raise ValueError("annotations are of another kind")
    return EvictionRecord(**values, annotations=annotations)


def _without_oldest(records: Iterable[EvictionRecord], number: int) -> tuple[EvictionRecord, ...]:
    """The records without so many of those that are over."""
    left, over = [], 0
    for each in records:
        over += not each.is_open
        if each.is_open or over > number:
            left.append(each)
    return tuple(left)


class EvictionRecords:
    """Owner of the records, in the order of time; `root` is --root-dir."""

    def __init__(self, root: Path) -> None:
        self._path = root / FILE
        self._records: tuple[EvictionRecord, ...] = ()
        self._threads = trio.CapacityLimiter(1)
        self._is_saved = True
        self._has_reserve: bool | None = None
        """None if nobody has tried."""

    def __iter__(self) -> Iterator[EvictionRecord]:
        return iter(self._records)

    async def load(self) -> None:
        """Read what an earlier agent kept. Before the first pod."""
        self._records = await read_when_possible(self._path, self._load, self._threads)

    def open_record(self, uid: str) -> EvictionRecord | None:
        """The record of a pod that is being evicted; None if it is not."""
        return next((each for each in self._records if each.is_open and each.uid == uid), None)

    def open_uids(self) -> frozenset[str]:
        """The UIDs of the pods that are being evicted."""
        return frozenset(each.uid for each in self._records if each.is_open)

    async def add(self, records: Iterable[EvictionRecord]) -> None:
        """Return when the records are on the disk, or could not be written within SAVE_SECONDS.

        A disk that is full has room for them; one that hangs keeps no pod.
        """
        self._records = (*self._records, *records)
        await self._save()

    async def shorten(self, grace_seconds: int) -> Sequence[EvictionRecord]:
        """Leave the pods that are being evicted no more grace; return those that had more."""
        longer = {
            each.uid: evolve(each, grace_seconds=grace_seconds)
            for each in self._records
            if each.is_open and each.grace_seconds > grace_seconds
        }
        if longer:
            self._records = tuple(
                longer.get(each.uid, each) if each.is_open else each for each in self._records
            )
            await self._save()
        return tuple(longer.values())

    async def close(self, is_over: Callable[[str], bool]) -> None:
        """Close the records of pods that are gone, as far as anybody has to know."""
        closed = tuple(
            evolve(each, is_open=False) if each.is_open and is_over(each.uid) else each
            for each in self._records
        )
        if closed == self._records and self._is_saved:
            if not self._has_reserve and self._threads.available_tokens:
                await self._in_time(partial(self._keep_room, self._text().encode()))
            return
        surplus = sum(not each.is_open for each in closed) - MAX_CLOSED
        self._records = _without_oldest(closed, max(0, surplus))
        await self._save()

    async def _save(self) -> None:
        if self._threads.available_tokens == 0:
            self._is_saved = False  # An earlier write hangs, which has been said.
            return
        write = partial(self._write, self._text().encode())
        try:
            self._is_saved = await self._in_time(write)
        except OSError as error:
            self._is_saved = False
            log.warning("eviction record write failed", file=str(self._path), error=str(error))

    async def _in_time(self, work: Callable[[], None]) -> bool:
        """Do something with the file; False if that takes too long, and goes on. Raises OSError."""
        with trio.move_on_after(SAVE_SECONDS):
            await run_in_thread(work, limiter=self._threads, abandon_on_cancel=True)
            return True
        log.warning("eviction record write timed out", file=str(self._path))
        return False

    def _text(self) -> str:
        """The text of the file, without the older ones of those that are over if it is too long."""
        records, text = self._records, printed(self._records)
        while len(text) >= FILE_BYTES and (over := sum(not each.is_open for each in records)):
            records = _without_oldest(records, over // 2 + 1)
            text = printed(records)
        return text

    def _write(self, data: bytes) -> None:
        write_reserved(self._path, data, FILE_BYTES, folder_mode=_FOLDER_MODE)
        self._keep_room(data)

    def _keep_room(self, data: bytes) -> None:
        """Make the file and its spare, or as large as they have to be; `data` is what it has."""
        try:
            make_folder(self._path.parent, _FOLDER_MODE)
            reserve(self._path, FILE_BYTES)
            if not self._path.exists() or self._path.stat().st_size < FILE_BYTES:
                write_reserved(self._path, data, FILE_BYTES)
                reserve(self._path, FILE_BYTES)
        except OSError as error:
            if self._has_reserve is not False:
                log.warning("no room kept for evictions", file=str(self._path), error=str(error))
            self._has_reserve = False
        else:
            self._has_reserve = True

    def _load(self) -> tuple[EvictionRecord, ...]:
        found = self._read()
        self._keep_room(printed(found).encode())
        return found

    def _read(self) -> tuple[EvictionRecord, ...]:
        try:
            return parsed(self._path.read_text())
        except FileNotFoundError:
            return ()
        except ValueError as error:
            set_aside(self._path, error)
        except OSError as error:
            if is_passing(error):
                raise
            set_aside(self._path, error)
        return ()
