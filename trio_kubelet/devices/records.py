"""Which container has which devices: the owner of the records and of their file.

Plain methods but for those that touch the disk. The file is written whole and durably before a
container uses a device that is new in it. Of one that is damaged the entries that are usable are
used.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

import trio

from trio_kubelet.devices.checkpoint import DeviceCheckpoint, DeviceRecord, parsed, printed
from trio_kubelet.devices.client import MAX_RESPONSE_BYTES, allocation_of
from trio_kubelet.kernel.state_file import StateFile
from trio_kubelet.rpc import RpcError

CHECKPOINT = "kubelet_internal_checkpoint"
MAX_RECORDED_BYTES = 32 * 2**20
"""Of all records: each change writes them all."""
MAX_RECORDED_BYTES_OF_RESOURCE = MAX_RECORDED_BYTES // 2


class DeviceRecords:
    """The records by pod, container and resource, and the names of resources with devices.

    `folder` is `device-plugins` below the agent's root folder.
    """

    def __init__(self, folder: Path) -> None:
        self._file = StateFile(
            folder / CHECKPOINT,
            trio.CapacityLimiter(1),
            snapshot=self._checkpoint,
            printed=printed,
        )
        self._pods: dict[str, dict[tuple[str, str], DeviceRecord]] = {}
        self._held: dict[str, dict[str, int]] = {}
        self.resources: set[str] = set()
        self.damaged_at_ns = 0
        """The time at which the file was found damaged last, as far as the copy of it tells."""
        self._bytes = 0
        self._bytes_of_resource: Counter[str] = Counter()

    async def load(self) -> None:
        """Read what an earlier agent kept, this one or the Go kubelet. Before the first pod."""
        found = await self._file.read(self._parsed) or DeviceCheckpoint()
        for record in found.records:
            self._put(record)
        self.resources |= found.resources
        self.resources |= {record.resource for record in found.records}
        self.damaged_at_ns = await self._file.damaged_at_ns()

    def uids(self) -> frozenset[str]:
        """The UIDs of all pods that have devices."""
        return frozenset(self._pods)

    def of_pod(self, uid: str) -> Collection[DeviceRecord]:
        """The records of a pod."""
        return tuple(self._pods.get(uid, {}).values())

    def get(self, uid: str, container: str, resource: str) -> DeviceRecord | None:
        """The record of a container for a resource."""
        return self._pods.get(uid, {}).get((container, resource))

    def of_resource(self, uid: str, resource: str) -> Mapping[str, DeviceRecord]:
        """The records of a pod for a resource, by container."""
        mine = self._pods.get(uid, {})
        return {name: record for (name, kind), record in mine.items() if kind == resource}

    def held(self, resource: str) -> AbstractSet[str]:
        """The devices of a resource that any container has."""
        return self._held.get(resource, {}).keys()

    def held_by(self, uid: str, resource: str) -> frozenset[str]:
        """The devices of a resource that containers of a pod have."""
        mine = self.of_resource(uid, resource).values()
        return frozenset(each for record in mine for each in record.ids)

    def pods_with(self, resource: str) -> Collection[str]:
        """The UIDs of pods that have devices of a resource."""
        return [
            uid
            for uid, mine in self._pods.items()
            if any(record.resource == resource for record in mine.values())
        ]

    def lack_of_room(self, record: DeviceRecord) -> str:
        """Return why a record cannot be put in; "" if it can.

        One whose plugin has not answered yet needs room for the longest answer. The answers of one
        plugin leave room for those of others.
        """
        name, own_bytes = record.resource, self._bytes_of_resource[record.resource]
        size = record.size_bytes + (MAX_RESPONSE_BYTES * 4 // 3 if record.is_pending else 0)
        for whose, recorded, most in (
            (f"the plugin of {name}", own_bytes, MAX_RECORDED_BYTES_OF_RESOURCE),
            ("all device plugins", self._bytes, MAX_RECORDED_BYTES),
        ):
            if recorded + size > most:
                return (
                    f"the answers of {whose} for pods of this node have {recorded} bytes, must be "
                    f"at most {most} with one more; no more of {name} are allocated until some "
                    "pods have gone"
                )
        return ""

    def put(self, record: DeviceRecord) -> None:
        """Record that a container has devices."""
        self._put(record)
        self._file.changed()

    def know(self, resource: str) -> None:
        """A resource has devices now: pods wait for its plugin after a restart of the agent."""
        if resource not in self.resources:
            self.resources.add(resource)
            self._file.changed()

    def forget_resource(self, resource: str) -> None:
        """Nobody waits for the plugin of a resource any longer."""
        if resource in self.resources:
            self.resources.discard(resource)
            self._file.changed()

    def drop(self, record: DeviceRecord) -> None:
        """A container has devices no longer."""
        mine = self._pods.get(record.pod_uid, {})
        key = (record.container, record.resource)
        if mine.get(key) is not record:
            return
        del mine[key]
        self._count(record, -record.size_bytes)
        if not mine:
            del self._pods[record.pod_uid]
        counts = self._held[record.resource]
        for each in record.ids:
            counts[each] -= 1
            if not counts[each]:
                del counts[each]
        self._file.changed()

    def _put(self, record: DeviceRecord) -> None:
        before = self.get(record.pod_uid, record.container, record.resource)
        if before is not None:
            self.drop(before)
        mine = self._pods.setdefault(record.pod_uid, {})
        mine[record.container, record.resource] = record
        self._count(record, record.size_bytes)
        counts = self._held.setdefault(record.resource, {})
        for each in record.ids:
            counts[each] = counts.get(each, 0) + 1

    def _count(self, record: DeviceRecord, more_bytes: int) -> None:
        self._bytes += more_bytes
        self._bytes_of_resource[record.resource] += more_bytes

    async def keep(self) -> bool:
        """Return when all that was recorded so far is on the disk, or could not be written.

        True if it is there; the next call tries again.
        """
        return await self._file.keep()

    def _checkpoint(self) -> DeviceCheckpoint:
        known = (record for mine in self._pods.values() for record in mine.values())
        records = tuple(record for record in known if not record.is_pending)
        return DeviceCheckpoint(records=records, resources=frozenset(self.resources))

    def _parsed(self, text: str) -> DeviceCheckpoint:
        """Return what can be used of a file. Raises ValueError for one that is none."""
        found = parsed(text)
        problems = [*found.problems]
        usable = []
        for record in found.records:
            try:
                allocation_of([record.response])
            except RpcError as error:
                problems.append(f"AllocResp of {record.pod_uid}: {error.message}")
            else:
                usable.append(record)
        for problem in problems:
            self._file.repaired(problem)
        if problems:
            self._file.keep_copy(text)
        return DeviceCheckpoint(records=tuple(usable), resources=found.resources)
