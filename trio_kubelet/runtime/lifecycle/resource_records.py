"""Records of what pods were given of cpu, memory and so on, in the form of the Go kubelet.

It keeps two files of the same form: what a pod was allocated when it was admitted, and what its
containers were actually made with. The text of the records and an FNV-1a of it are fields of a
JSON object. A record is a plain JSON value, so that what a newer kubelet wrote into it stays.
"""

import json
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from attrs import evolve, frozen

from trio_kubelet.foreign_text import is_path_part
from trio_kubelet.k8s import Container, ContainerStatus, Pod, ResourceRequirements
from trio_kubelet.k8s.codec import decode, encode
from trio_kubelet.k8s.fnv import fnv1a_32
from trio_kubelet.k8s.json_text import dumps, go_json, loads

Record = Mapping[str, Any]
"""`ContainerResources` by the container's name, `PodLevelResources` or null."""

Records = Mapping[str, Record]
"""By the pod's UID."""

C = TypeVar("C", bound=Container)

_CONTAINERS = "ContainerResources"
_POD_LEVEL = "PodLevelResources"

_BEGIN, _END = '{"entries":{', "}}"

_REMEMBERED = 2048
_REMEMBERED_BYTES = 512
"""Records of containers that are decoded once, and the length of one that is."""

_RESIZABLE = frozenset({"cpu", "memory"})
"""The resources that a resize can change (KEP-1287)."""


def record_of(pod: Pod) -> Record:
    """Return the record of a pod that gets what its spec asks for."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    resources = {each.name: _encoded(each) for each in containers}
    whole = pod.spec.resources
    return {_CONTAINERS: resources, _POD_LEVEL: encode(whole) if whole is not None else None}


def record_of_status(pod: Pod) -> Record:
    """Return the record of a pod that was given what its containers' statuses say.

    A container whose status says nothing, and the pod as a whole, have what the spec asks for:
    the pod's status mixes what it was given with overhead and with what cgroups enforce.
    """
    told = {
        each.name: each
        for each in (*pod.status.init_container_statuses, *pod.status.container_statuses)
    }
    spec = evolve(
        pod.spec,
        init_containers=tuple(_as_told(each, told) for each in pod.spec.init_containers),
        containers=tuple(_as_told(each, told) for each in pod.spec.containers),
    )
    return record_of(evolve(pod, spec=spec))


def asks_for_resources(pod: Pod) -> bool:
    """True if a pod asks for anything. One that does not never can: its QoS class is fixed."""
    parts = (
        pod.spec.resources,
        *(each.resources for each in (*pod.spec.init_containers, *pod.spec.containers)),
    )
    return any(part is not None and (part.requests or part.limits) for part in parts)


def with_record(pod: Pod, record: Record) -> Pod:
    """Return the pod with the resources of its record; the very same pod if it has those.

    A container that the record does not name keeps its own. Raises ValueError for a record that
    is none.
    """
    containers = recorded_resources(record)
    whole = pod.spec.resources
    if _POD_LEVEL in record:
        whole = _requirements(record[_POD_LEVEL]) if record[_POD_LEVEL] is not None else None
    spec = evolve(
        pod.spec,
        resources=whole,
        init_containers=tuple(_as_recorded(each, containers) for each in pod.spec.init_containers),
        containers=tuple(_as_recorded(each, containers) for each in pod.spec.containers),
    )
    return pod if spec == pod.spec else evolve(pod, spec=spec)


def with_containers_of(
    record: Record, pod: Pod, names: Collection[str], resource: str | None = None
) -> Record:
    """Return a record in which containers of these names have what the pod says.

    With `resource` they have that of it, and of the rest what they had. The very same record if
    they have that.
    """
    known = record.get(_CONTAINERS) or {}
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    new = {each.name: _encoded(each) for each in containers if each.name in names}
    if resource is not None:
        new = {k: _with_resource(known.get(k) or {}, v, resource) for k, v in new.items()}
    if all(known.get(name) == resources for name, resources in new.items()):
        return record
    return {**record, _CONTAINERS: {**known, **new}}


def recorded_resources(record: Record) -> Mapping[str, ResourceRequirements]:
    """Return what each container has in a record. Raises ValueError for a record that is none."""
    containers = record.get(_CONTAINERS) or {}
    if not isinstance(containers, dict):
        raise ValueError(f"{_CONTAINERS} is no object")
    return {name: _requirements(value) for name, value in containers.items()}


def parsed(text: str) -> Records:
    """Return the records in the text of a file; ValueError if it is not whole."""
    try:
        file = json.loads(text)
        data, checksum = file["data"], file["checksum"]
        if checksum != _checksum(data):
            raise ValueError("its checksum does not fit")
        records = json.loads(data).get("entries") or {}
        if not all(isinstance(record, dict) for record in records.values()):
            raise ValueError("it has another form")
        if not all(map(is_path_part, records)):  # What is left of a pod is removed by its UID.
            raise ValueError("it has the UID of no pod")
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("it has another form") from error
    return dict(records)


def printed(records: Records) -> str:
    """Return the text of a file with these records."""
    return RecordPrinter().printed(records)


@frozen
class _Entry:
    """A pod's UID and record in the text of a file, where quotes are escaped.

    `number` counts upwards over all entries.
    """

    record: Record
    escaped: str
    number: int

    @property
    def place(self) -> tuple[int, int]:
        """Larger entries stand first; of those of about one size the newest stands last."""
        return -len(self.escaped).bit_length(), self.number

    @property
    def text(self) -> str:
        text: str = json.loads(f'"{self.escaped}"')
        return text


class RecordPrinter:
    """Prints the records of one file again and again, of which only what is new costs much.

    A checksum goes on from that of what stands before it, so the largest records stand first: one
    pod that comes or goes costs what it and smaller ones have, however large others are. Most are
    of about one size: one that comes costs nothing for those that came before it.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._number = 0
        self._order: list[_Entry] = []
        self._checksums: list[int] = []

    def printed(self, records: Records) -> str:
        """Return the text of the file. Blocks as long as new records are large."""
        self._entries = {uid: self._entry(uid, record) for uid, record in records.items()}
        order = sorted(self._entries.values(), key=lambda each: each.place)
        pairs = enumerate(zip(self._order, order, strict=False))
        shorter = min(len(self._order), len(order))
        same = next((at for at, (before, after) in pairs if before is not after), shorter)
        del self._order[same:], self._checksums[same:]
        for entry in order[same:]:
            comma, before = (",", self._checksums[-1]) if self._order else ("", _checksum(_BEGIN))
            self._checksums.append(fnv1a_32(f"{comma}{entry.text}".encode(), before))
            self._order.append(entry)
        last = self._checksums[-1] if self._checksums else _checksum(_BEGIN)
        data = f"{_escaped(_BEGIN)}{','.join(each.escaped for each in order)}{_escaped(_END)}"
        return f'{{"data":"{data}","checksum":{fnv1a_32(_END.encode(), last)}}}'

    def _entry(self, uid: str, record: Record) -> _Entry:
        known = self._entries.get(uid)
        if known is not None and known.record is record:
            return known
        self._number += 1
        return _Entry(record, _escaped(f"{go_json(uid)}:{go_json(record)}"), self._number)


def _encoded(container: Container) -> Mapping[str, Any]:
    return encode(container.resources) if container.resources else {}


def _with_resource(before: Record, after: Record, resource: str) -> Record:
    """The resources of `before`, with request and limit of one resource as in `after`."""
    merged = dict(before)
    for kind in ("requests", "limits"):
        amounts = {k: v for k, v in (before.get(kind) or {}).items() if k != resource}
        amounts |= {k: v for k, v in (after.get(kind) or {}).items() if k == resource}
        merged.pop(kind, None)
        if amounts:
            merged[kind] = amounts
    return merged


def _as_told(container: C, told: Mapping[str, ContainerStatus]) -> C:
    status = told.get(container.name)
    if status is None or status.resources is None:
        return container
    asked = container.resources or ResourceRequirements()
    others = {name: limit for name, limit in asked.limits.items() if name not in _RESIZABLE}
    limits = {k: v for k, v in status.resources.limits.items() if k in _RESIZABLE}
    # A kubelet without InPlacePodVerticalScalingAllocatedStatus tells of no allocation.
    requests = dict(status.allocated_resources or status.resources.requests)
    told_resources = evolve(asked, requests=requests, limits={**others, **limits})
    is_same = told_resources == asked
    return container if is_same else evolve(container, resources=told_resources)


def _as_recorded(container: C, recorded: Mapping[str, ResourceRequirements]) -> C:
    resources = recorded.get(container.name)
    before = container.resources or ResourceRequirements()
    return container if resources in (None, before) else evolve(container, resources=resources)


def _requirements(value: object) -> ResourceRequirements:
    try:
        text = dumps(value)
        if len(text) <= _REMEMBERED_BYTES:
            return _remembered(text)
        return decode(ResourceRequirements, value)
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no resources: {error}") from error


@lru_cache(_REMEMBERED)
def _remembered(text: bytes) -> ResourceRequirements:
    """Decode a record, or return the one decoded before: each look at a pod reads all its own."""
    return decode(ResourceRequirements, loads(text))


def _checksum(data: str) -> int:
    return fnv1a_32(f"(string){data}".encode())


def _escaped(text: str) -> str:
    """The text as it stands in a JSON string, without the quotes around it."""
    return go_json(text)[1:-1]
