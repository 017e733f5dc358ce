"""The allocation of each pod of the node's resources, and what became of it in its containers.

Pods keep what they were allocated at their admission, or by a resize that was granted since
(`resize_progress.py`): containers that restart, cgroups, statuses and the admission of others go
by it, whatever the spec says. It is kept over a restart of the agent in the Go kubelet's own files,
so that a node changes hands with it: `allocated_pods_state` and, for what containers actually have,
`actuated_pods_state`. A damaged one is set aside; pods that were admitted before are recorded anew.
"""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import structlog
import trio

from trio_kubelet.k8s import Pod, ResourceRequirements
from trio_kubelet.kernel.state_file import set_aside
from trio_kubelet.kernel.whole_files import write_whole
from trio_kubelet.runtime.lifecycle.resource_records import (
    Record,
    RecordPrinter,
    Records,
    asks_for_resources,
    parsed,
    record_of,
    record_of_status,
    recorded_resources,
    with_containers_of,
    with_record,
)
from trio_kubelet.tasks.threads import run_in_thread

log = structlog.get_logger("runtime")

ALLOCATED, ACTUATED = "allocated_pods_state", "actuated_pods_state"


class Allocations:
    """Owns the records of all pods. Plain methods but for those that touch the disk.

    `root` is `--root-dir`; the files are read and written in threads of `limiter`.
    """

    def __init__(self, root: Path, limiter: trio.CapacityLimiter) -> None:
        self._root = root
        self._limiter = limiter
        self._records: dict[str, dict[str, Record]] = {ALLOCATED: {}, ACTUATED: {}}
        self._printers = {name: RecordPrinter() for name in self._records}
        self._answers: dict[str, tuple[Pod, Pod]] = {}
        self._unreadable: set[str] = set()
        self._changes = 0
        self._saved_changes = 0
        self._saving = trio.Lock()
        self._is_failing = False

    async def load(self) -> None:
        """Read what an earlier agent kept, this one or the Go kubelet. Before the first pod."""
        for name in self._records:
            found = await run_in_thread(self._read, name, limiter=self._limiter)
            self._records[name] = dict(found) if found is not None else {}
        allocated, actuated = self._records[ALLOCATED], self._records[ACTUATED]
        # One object for both, as later ones have: it is compared with itself again and again.
        same = {uid: each for uid, each in allocated.items() if each == actuated.get(uid)}
        actuated.update(same)

    def allocate(self, pod: Pod, *, was_admitted: bool = False) -> None:
        """Give an admitted pod what its spec asks for, unless it was given something before.

        `was_admitted`: that was at an earlier time, and the spec may ask for something else
        since. Without a record it has what its containers were made with, else what its status
        says.
        """
        uid = pod.metadata.uid
        if not asks_for_resources(pod):
            return
        record = self._records[ALLOCATED].get(uid)
        if record is None and was_admitted:
            record = self._records[ACTUATED].get(uid) or record_of_status(pod)
        record = record or record_of(pod)
        for records in self._records.values():
            if uid not in records:
                records[uid] = record
                self._changes += 1

    def allocated(self, pod: Pod) -> Pod:
        """Return the pod with what it was allocated; as it is if that is what its spec says."""
        record = self._records[ALLOCATED].get(pod.metadata.uid)
        if record is None:
            return pod
        asked, answer = self._answers.get(pod.metadata.uid, (None, pod))
        if asked is pod:
            return answer
        try:
            answer = with_record(pod, record)
        except ValueError as error:
            self._drop(pod.metadata.uid, error)
            return pod
        self._answers[pod.metadata.uid] = (pod, answer)
        return answer

    def resize(self, pod: Pod) -> None:
        """Allocate a pod the resources of its newest spec; the next `keep` writes them down."""
        self._put(ALLOCATED, pod.metadata.uid, record_of(pod))

    def actuated_pod(self, pod: Pod) -> Pod:
        """Return a pod with what its containers and its cgroup have; as it is if it has that."""
        record = self._records[ACTUATED].get(pod.metadata.uid)
        if record is None:
            return pod
        try:
            return with_record(pod, record)
        except ValueError as error:
            self._drop(pod.metadata.uid, error)
            return pod

    def is_actuated(self, uid: str) -> bool:
        """True if the containers of a pod have what it was allocated."""
        record = self._records[ACTUATED].get(uid)
        return record is None or record == self._records[ALLOCATED].get(uid)

    def actuate(
        self, pod: Pod, names: Collection[str] | None = None, resource: str | None = None
    ) -> None:
        """Record that containers have what `pod` says, or will when they are made.

        Without names that is all of them, and the pod's cgroup. With `resource` the named ones
        have it of that resource alone.
        """
        before = self._records[ACTUATED].get(pod.metadata.uid)
        if before is None:
            return
        if names is None:
            record = record_of(pod)
        else:
            record = with_containers_of(before, pod, names, resource)
        self._put(ACTUATED, pod.metadata.uid, record)

    def _put(self, name: str, uid: str, record: Record) -> None:
        if self._records[name].get(uid) == record:
            return
        # One object where both say the same: it is compared with itself again and again.
        known = [records[uid] for records in self._records.values() if uid in records]
        self._records[name][uid] = next((each for each in known if each == record), record)
        self._answers.pop(uid, None)
        self._changes += 1

    def actuated(self, uid: str) -> Mapping[str, ResourceRequirements]:
        """Return what containers have, by name, if not what they were allocated."""
        if self.is_actuated(uid):
            return {}
        record = self._records[ACTUATED][uid]
        try:
            return recorded_resources(record)
        except ValueError as error:
            self._drop(uid, error)
            return {}

    def uids(self) -> Iterable[str]:
        """Return the UIDs of all pods that something is recorded of."""
        return frozenset(uid for records in self._records.values() for uid in records)

    async def keep(self) -> bool:
        """Return when all that was recorded so far is on the disk, or could not be written.

        True if it is there. No pod that is to start waits for a disk that is full: the next call
        tries again.
        """
        wanted = self._changes
        if self._saved_changes >= wanted:
            return ALLOCATED not in self._unreadable
        async with self._saving:
            if self._saved_changes < wanted:
                await self._save()
        return self._saved_changes >= wanted and ALLOCATED not in self._unreadable

    async def forget(self, uid: str) -> None:
        """Drop the records of a pod of which nothing is left; until then its status shows them."""
        self._answers.pop(uid, None)
        for records in self._records.values():
            if records.pop(uid, None) is not None:
                self._changes += 1
        await self.keep()

    async def _save(self) -> None:
        changes = self._changes
        texts = {
            name: dict(records)
            for name, records in self._records.items()
            if name not in self._unreadable
        }
        try:
            await run_in_thread(self._write, texts, limiter=self._limiter)
        except (OSError, ValueError) as error:
            if not self._is_failing:
                log.warning("allocation checkpoint write failed", error=str(error))
            self._is_failing = True
            return
        self._saved_changes, self._is_failing = changes, False

    def _drop(self, uid: str, error: ValueError) -> None:
        """A record that is none tells nothing; the pod counts as allocated what it asks for."""
        log.warning("pod resource record is malformed", uid=uid, error=str(error))
        for records in self._records.values():
            records.pop(uid, None)
        self._changes += 1

    def _read(self, name: str) -> Records | None:
        path = self._root / name
        try:
            return parsed(path.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            set_aside(path, error)
            return None
        except OSError as error:
            self._unreadable.add(name)
            log.warning("allocation checkpoint ignored", file=str(path), error=str(error))
            return None

    def _write(self, files: Mapping[str, Records]) -> None:
        """Write the files, one call at a time. Mostly both say the same."""
        last: tuple[Records, str] | None = None
        for name, records in files.items():
            path = self._root / name
            if not records and not path.exists():
                continue
            if last is None or last[0] != records:
                last = (records, self._printers[name].printed(records))
            write_whole(path, last[1].encode(), folder_mode=0o750, durable=True)
