"""The claims that pods of this node use: the owner of the records and of their file.

Plain methods but for those that touch the disk. The file is written whole and durably before a
driver is asked for anything, and before a container uses a device that is new in it.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path

import trio
from attrs import evolve

from trio_kubelet.dra.checkpoint import ClaimRecord, parsed, printed
from trio_kubelet.kernel.state_file import StateFile

CHECKPOINT = "dra_manager_state"
MAX_CLAIMS = 4096
"""Of a node: each change writes them all."""
MAX_CLAIMS_OF_NAMESPACE = MAX_CLAIMS // 2
MAX_RECORDED_BYTES = 8 * 2**20
"""Of all records, as `size_bytes` counts. What JSON in JSON makes of them can still be read."""
MAX_RECORDED_BYTES_OF_NAMESPACE = MAX_RECORDED_BYTES // 2

DeviceOfDriver = tuple[str, str, str]
"""Names of driver, pool and device."""


class ClaimRecords:
    """The records by namespace and name of the claim. `root` is the agent's root folder."""

    def __init__(self, root: Path) -> None:
        self._records: dict[tuple[str, str], ClaimRecord] = {}
        self._by_device: dict[DeviceOfDriver, dict[tuple[str, str], None]] = {}
        self._of_namespace: Counter[str] = Counter()
        self._bytes = 0
        self._bytes_of_namespace: Counter[str] = Counter()
        self._file = StateFile[tuple[ClaimRecord, ...]](
            root / CHECKPOINT,
            trio.CapacityLimiter(1),
            snapshot=lambda: tuple(self._records.values()),
            printed=printed,
        )

    async def load(self) -> None:
        """Read what an earlier agent kept, this one or the Go kubelet. Before the first pod."""
        found = await self._file.read(parsed)
        if found is None:
            return
        for problem in found.problems:
            self._file.repaired(problem)
        for record in found.records:
            self._set(record)

    def all(self) -> Collection[ClaimRecord]:
        """The records of all claims."""
        return self._records.values()

    def uids(self) -> frozenset[str]:
        """The UIDs of all pods that use claims."""
        return frozenset(uid for record in self._records.values() for uid in record.pods)

    def of_pod(self, uid: str) -> Collection[ClaimRecord]:
        """The records of the claims that a pod uses."""
        return [record for record in self._records.values() if uid in record.pods]

    def get(self, namespace: str, name: str) -> ClaimRecord | None:
        """The record of a claim."""
        return self._records.get((namespace, name))

    def lack_of_room(self, record: ClaimRecord) -> str:
        """Return why a record cannot be kept, a new one or what an old one becomes; "" if it can.

        The claims of one namespace leave room for others.
        """
        known = self._records.get((record.namespace, record.name))
        if known is None and self._of_namespace[record.namespace] >= MAX_CLAIMS_OF_NAMESPACE:
            return (
                f"pods of namespace {record.namespace} use {MAX_CLAIMS_OF_NAMESPACE} claims on "
                "this node, which is the limit"
            )
        if known is None and len(self._records) >= MAX_CLAIMS:
            return f"pods of this node use {MAX_CLAIMS} claims, which is the limit"
        more = record.size_bytes - (known.size_bytes if known is not None else 0)
        if self._bytes_of_namespace[record.namespace] + more > MAX_RECORDED_BYTES_OF_NAMESPACE:
            return (
                f"what is recorded of the claims of namespace {record.namespace} has "
                f"{MAX_RECORDED_BYTES_OF_NAMESPACE} bytes, which is the limit"
            )
        if self._bytes + more > MAX_RECORDED_BYTES:
            return (
                "what is recorded of the claims of this node's pods has "
                f"{MAX_RECORDED_BYTES} bytes, which is the limit"
            )
        return ""

    def put(self, record: ClaimRecord) -> None:
        """Record a claim, or what has changed of it."""
        self._set(record)
        self._file.changed()

    def drop(self, record: ClaimRecord) -> None:
        """Forget a claim that nobody uses any more."""
        self._forget(record.namespace, record.name)
        self._file.changed()

    def pods_with(self, devices: Iterable[DeviceOfDriver]) -> frozenset[str]:
        """The UIDs of the pods that use claims with one of these devices."""
        keys = {key for device in devices for key in self._by_device.get(device, ())}
        return frozenset(uid for key in keys for uid in self._records[key].pods)

    def _set(self, record: ClaimRecord) -> None:
        key = record.namespace, record.name
        if key in self._records:
            self._forget(*key)
        self._records[key] = record
        self._bytes += record.size_bytes
        self._bytes_of_namespace[record.namespace] += record.size_bytes
        self._of_namespace[record.namespace] += 1
        for device in _devices_of(record):
            self._by_device.setdefault(device, {})[key] = None

    def _forget(self, namespace: str, name: str) -> None:
        key = namespace, name
        record = self._records.pop(key)
        self._bytes -= record.size_bytes
        self._bytes_of_namespace[namespace] -= record.size_bytes
        self._of_namespace[namespace] -= 1
        if not self._of_namespace[namespace]:
            del self._of_namespace[namespace], self._bytes_of_namespace[namespace]
        for device in _devices_of(record):
            users = self._by_device[device]
            del users[key]
            if not users:
                del self._by_device[device]

    def withdraw(self, uid: str, records: Iterable[ClaimRecord]) -> None:
        """A pod does not use claims any more that others still use."""
        for record in records:
            self.put(evolve(record, pods=record.pods - {uid}))

    async def keep(self) -> bool:
        """Return when all that was recorded so far is on the disk, or could not be written.

        True if it is there.
        """
        return await self._file.keep()


def _devices_of(record: ClaimRecord) -> frozenset[DeviceOfDriver]:
    return frozenset(
        (driver, each.pool, each.device)
        for driver, devices in record.drivers.items()
        for each in devices or ()
    )
