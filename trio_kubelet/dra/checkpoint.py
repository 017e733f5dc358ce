"""The file in which a node keeps which claims are prepared, for which pods: `dra_manager_state`.

Its form is the Go kubelet's, so that a node changes hands with it: an object with the data as text
and the CRC-32 of that text. An entry has a claim, the UIDs of the pods that use it, and for each of
its drivers the devices that the driver has prepared. A driver without devices was to be asked, and
nobody knows what it has done.
"""

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from attrs import field, frozen

from trio_kubelet.foreign_text import is_path_part, is_unicode
from trio_kubelet.k8s.json_text import go_json

KIND, API_VERSION = "DRACheckpoint", "checkpoint.dra.kubelet.k8s.io/v1"
AROUND_BYTES = 40
"""Of keys, quotes, commas and brackets in the file, for each name; no field has more."""
NAME_LIMIT = 1024
"""Characters of a name in an entry; what has more was not written by a kubelet."""


@frozen(kw_only=True)
class PreparedDevice:
    """A device of a claim as its driver has prepared it.

    `requests` are the claim's requests that it is for, empty for all; `cdi_ids` are the CDI devices
    that containers get; `share_id` tells the shares of a device that several claims have.
    """

    pool: str = ""
    device: str = ""
    requests: tuple[str, ...] = ()
    cdi_ids: tuple[str, ...] = ()
    share_id: str = ""


@frozen(kw_only=True, slots=False)
class ClaimRecord:
    """A claim that pods of this node use. `drivers` have the devices that each has prepared.

    The devices of a driver that has not answered are None.
    """

    uid: str
    namespace: str
    name: str
    pods: frozenset[str]
    drivers: Mapping[str, tuple[PreparedDevice, ...] | None] = field(factory=dict)

    @property
    def is_answered(self) -> bool:
        """True if all drivers have prepared their devices."""
        return None not in self.drivers.values()

    @cached_property
    def size_bytes(self) -> int:
        """The size of the record: its names, and what the file has around each."""
        names = (self.uid, self.namespace, self.name, *self.pods, *self.drivers)
        devices = [each for listed in self.drivers.values() for each in listed or ()]
        told = (
            name
            for each in devices
            for name in (
                *(each.pool, each.device, each.share_id),
                *(*each.requests, *each.cdi_ids),
            )
        )
        return sum(len(each.encode()) + AROUND_BYTES for each in (*names, *told))


@frozen(kw_only=True)
class ClaimCheckpoint:
    """The content of the file. `problems` say what of it was not usable, a line each."""

    records: tuple[ClaimRecord, ...] = ()
    problems: tuple[str, ...] = ()


def parsed(text: str) -> ClaimCheckpoint:
    """Return what a file says, without the entries that are none. Raises ValueError for no JSON."""
    try:
        file = json.loads(text)
        inner = file.get("Data") if isinstance(file, dict) else None
        data = json.loads(inner) if isinstance(inner, str) else None
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if not isinstance(inner, str) or not isinstance(data, dict):
        raise ValueError("it has no text Data with an object")
    problems: list[str] = []
    records: dict[tuple[str, str], ClaimRecord] = {}
    entries = data.get("ClaimInfoStateList")
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        try:
            record = _record(entry)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            problems.append(f"ClaimInfoStateList[{number}] is ignored: {error!r}")
        else:
            records[record.namespace, record.name] = record
    if file.get("Checksum") != _checksum(inner):
        problems.append("its checksum does not fit; each entry is usable, and is used")
    return ClaimCheckpoint(records=tuple(records.values()), problems=tuple(problems))


def printed(records: Iterable[ClaimRecord]) -> str:
    """Return the text of a file with these records."""
    data = go_json(
        {
            "kind": KIND,
            "apiVersion": API_VERSION,
            "ClaimInfoStateList": [_entry(record) for record in records],
        }
    )
    return go_json({"Data": data, "Checksum": _checksum(data)})


def _checksum(data: str) -> int:
    return zlib.crc32(data.encode("utf-8", "replace"))


def _record(entry: Mapping[str, Any]) -> ClaimRecord:
    uid, namespace, name = (entry[key] for key in ("ClaimUID", "Namespace", "ClaimName"))
    pods = frozenset(entry["PodUIDs"] or {})
    for each in (uid, namespace, name, *pods):
        if not isinstance(each, str) or not is_path_part(each):
            raise ValueError("it has a name that is none")
    drivers = entry["DriverState"] or {}
    return ClaimRecord(
        uid=uid,
        namespace=namespace,
        name=name,
        pods=pods,
        drivers={_text(driver): _devices(state) for driver, state in drivers.items()},
    )


def _devices(state: Mapping[str, Any]) -> tuple[PreparedDevice, ...] | None:
    listed = state["Devices"]
    return None if listed is None else tuple(map(_device, listed))


def _device(each: Mapping[str, Any]) -> PreparedDevice:
    return PreparedDevice(
        pool=_text(each["PoolName"]),
        device=_text(each["DeviceName"]),
        requests=_texts(each["RequestNames"]),
        cdi_ids=_texts(each["CDIDeviceIDs"]),
        share_id=_text(each.get("ShareID") or ""),
    )


def _texts(values: Sequence[object] | None) -> tuple[str, ...]:
    return tuple(_text(each) for each in values or ())


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > NAME_LIMIT or not is_unicode(value):
        raise ValueError("it has something else than a name")
    return value


def _entry(record: ClaimRecord) -> Mapping[str, Any]:
    return {
        "ClaimUID": record.uid,
        "ClaimName": record.name,
        "Namespace": record.namespace,
        "PodUIDs": {uid: {} for uid in sorted(record.pods)},
        "DriverState": {
            driver: {"Devices": None if devices is None else [_shown(each) for each in devices]}
            for driver, devices in sorted(record.drivers.items())
        },
    }


def _shown(device: PreparedDevice) -> Mapping[str, Any]:
    return {
        "PoolName": device.pool,
        "DeviceName": device.device,
        **({"ShareID": device.share_id} if device.share_id else {}),
        "RequestNames": list(device.requests),
        "CDIDeviceIDs": list(device.cdi_ids),
    }
