"""The file in which a node keeps which container has which devices: `kubelet_internal_checkpoint`.

Its form is the Go kubelet's, so that a node changes hands with it. An entry has the pod's UID, the
container, the resource, the ids of the devices by NUMA node, and the plugin's answer as it was on
the wire. Beside the entries are the names of the resources, of which the Go kubelet lists the ids,
too, and reads the names alone; here the lists are empty. The checksum is an FNV-1a of the values as
Go's printer of structures shows them.
"""

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from attrs import evolve, field, frozen

from trio_kubelet.k8s.fnv import fnv1a_32
from trio_kubelet.k8s.json_text import go_json

NO_NUMA_NODE = -1
"""The key of devices that are at no NUMA node."""
NAME_LIMIT = 512
"""Characters of names in an entry; what has more was not written by a kubelet."""


@frozen(kw_only=True, slots=False)
class DeviceRecord:
    """The devices of a resource that a container has.

    `devices` are ids by NUMA node; `response` is the plugin's ContainerAllocateResponse.
    `is_pending`: the plugin has not answered yet, and nothing is written down. `is_recovered`: so
    it is of a container that runs, of which the runtime told that it has the devices.
    """

    pod_uid: str
    container: str
    resource: str
    devices: Mapping[int, tuple[str, ...]]
    response: bytes = field(default=b"", repr=False)
    is_pending: bool = False
    is_recovered: bool = False

    @property
    def is_reserved(self) -> bool:
        """True if no container has the devices yet."""
        return self.is_pending and not self.is_recovered

    @cached_property
    def ids(self) -> frozenset[str]:
        """The ids of the devices, whatever their NUMA nodes."""
        return frozenset(each for ids in self.devices.values() for each in ids)

    @cached_property
    def size_bytes(self) -> int:
        """About what the record takes in the file."""
        ids = (each for ids in self.devices.values() for each in ids)
        return len(self.response) * 4 // 3 + sum(len(each) + len('"",') for each in ids)


@frozen(kw_only=True)
class DeviceCheckpoint:
    """The content of the file. `problems` say what of it was not usable, a line each."""

    records: tuple[DeviceRecord, ...] = ()
    resources: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()


def parsed(text: str) -> DeviceCheckpoint:
    """Return what a file says, without the entries that are none. Raises ValueError for no JSON."""
    try:
        file = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    data = file.get("Data") if isinstance(file, dict) else None
    if not isinstance(data, dict):
        raise ValueError("it has no object Data")
    problems: list[str] = []
    records: list[DeviceRecord] = []
    entries = data.get("PodDeviceEntries")
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        try:
            records.append(_record(entry))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            problems.append(f"PodDeviceEntries[{number}] is ignored: {error!r}")
    named = data.get("RegisteredDevices")
    resources = named if isinstance(named, dict) else {}
    if not problems and file.get("Checksum") != _checksum(data):
        problems.append("its checksum does not fit; each entry is usable, and is used")
    return DeviceCheckpoint(
        records=tuple(records), resources=frozenset(resources), problems=tuple(problems)
    )


def printed(checkpoint: DeviceCheckpoint) -> str:
    """Return the text of a file with these records."""
    data: dict[str, Any] = {
        "PodDeviceEntries": [_entry(record) for record in checkpoint.records],
        "RegisteredDevices": {name: [] for name in sorted(checkpoint.resources)},
    }
    return go_json({"Data": data, "Checksum": _checksum(data)})


def held_text(records: Iterable[DeviceRecord]) -> str:
    """Return the devices of a container as its annotation has them."""
    entries = map(_entry, records)
    return go_json(
        [{key: entry[key] for key in ("ResourceName", "DeviceIDs")} for entry in entries]
    )


def parsed_held(pod_uid: str, container: str, text: str) -> tuple[DeviceRecord, ...]:
    """Return the records of such a text; pending, for what the plugin answered is not in it.

    Raises ValueError.
    """
    try:
        owner = {"PodUID": pod_uid, "ContainerName": container, "AllocResp": ""}
        found = [_record({**entry, **owner}) for entry in json.loads(text)]
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is malformed: {error!r}") from error
    return tuple(evolve(each, is_pending=True, is_recovered=True) for each in found)


def _record(entry: Mapping[str, Any]) -> DeviceRecord:
    names = {key: entry[key] for key in ("PodUID", "ContainerName", "ResourceName")}
    for key, name in names.items():
        if not isinstance(name, str) or not 0 < len(name) <= NAME_LIMIT:
            raise ValueError(f"{key} is no name")
    devices = {
        int(node): tuple(_device_id(each) for each in ids)
        for node, ids in (entry["DeviceIDs"] or {}).items()
    }
    if not any(devices.values()):
        raise ValueError("DeviceIDs names no device")
    try:
        response = base64.b64decode(entry["AllocResp"] or "", validate=True)
    except binascii.Error as error:
        raise ValueError(f"AllocResp: {error}") from error
    return DeviceRecord(
        pod_uid=names["PodUID"],
        container=names["ContainerName"],
        resource=names["ResourceName"],
        devices=devices,
        response=response,
    )


def _device_id(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("DeviceIDs has something else than text")
    return value


def _entry(record: DeviceRecord) -> Mapping[str, Any]:
    by_text = sorted((str(node), list(ids)) for node, ids in record.devices.items())
    return {
        "PodUID": record.pod_uid,
        "ContainerName": record.container,
        "ResourceName": record.resource,
        "DeviceIDs": dict(by_text),
        "AllocResp": base64.b64encode(record.response).decode(),
    }


def _checksum(data: Mapping[str, Any]) -> int:
    """The checksum of a file's data; of data in another form something that fits nothing."""
    try:
        return fnv1a_32("".join(_go_text(data)).encode("utf-8", "replace"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return -1


def _go_text(data: Mapping[str, Any]) -> Iterator[str]:
    """The values as Go's printer shows them, with types and sorted keys."""
    yield "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)"
    entries = data["PodDeviceEntries"]
    if entries is None:
        yield "<nil>"
    else:
        yield f"[{' '.join(map(_go_entry, entries))}]"
    yield " RegisteredDevices:(map[string][]string)"
    resources = data["RegisteredDevices"]
    if resources is None:
        yield "<nil>"
    else:
        yield _go_map((name, ids) for name, ids in sorted(resources.items()))
    yield "}"


def _go_entry(entry: Mapping[str, Any]) -> str:
    devices = entry["DeviceIDs"]
    by_node = sorted((int(node), ids) for node, ids in (devices or {}).items())
    shown = "<nil>" if devices is None else _go_map(by_node)
    answer = entry["AllocResp"]
    octets = "<nil>" if answer is None else f"[{' '.join(map(str, base64.b64decode(answer)))}]"
    return (
        f"{{PodUID:(string){entry['PodUID']} ContainerName:(string){entry['ContainerName']} "
        f"ResourceName:(string){entry['ResourceName']} "
        f"DeviceIDs:(checkpoint.DevicesPerNUMA){shown} AllocResp:([]uint8){octets}}}"
    )


def _go_map(items: Iterable[tuple[object, list[str] | None]]) -> str:
    shown = (f"{key}:{'<nil>' if ids is None else '[' + ' '.join(ids) + ']'}" for key, ids in items)
    return f"map[{' '.join(shown)}]"
