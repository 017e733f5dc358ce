"""The strategic merge patch that turns one status of a pod into another.

Only what differs is in it, so that what others write meanwhile survives. Maps are merged key by
key and a null removes; lists are replaced as a whole, except those that the API merges by a key:
there only the items that differ are sent, and the order in which all are to stand. The pod's UID
is in the body: a patch can never reach another pod that has taken over the name.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import Attribute, evolve, fields

from trio_kubelet.k8s import ContainerState, ContainerStatus, PodStatus
from trio_kubelet.k8s.codec import encode

MERGE_KEYS = {
    "conditions": "type",
    "hostIPs": "ip",
    "podIPs": "ip",
    "resourceClaimStatuses": "name",
}
"""The lists of a pod's status that the API merges, and by which field of their items."""

EMPTY = ContainerState()

Json = Mapping[str, Any]


def status_patch(uid: str, known: PodStatus, wanted: PodStatus) -> Json | None:
    """The body of a patch of a pod's `status` subresource, None if nothing differs."""
    known, wanted = _plain(known), _plain(wanted)
    differing = [a for a in fields(PodStatus) if getattr(known, a.name) != getattr(wanted, a.name)]
    if not differing:
        return None
    before, after = _encoded(known, differing), _encoded(wanted, differing)
    return {"metadata": {"uid": uid}, "status": _difference(before, after, MERGE_KEYS)}


def _plain(status: PodStatus) -> PodStatus:
    """The status with no state of a container that says nothing: the API answers with `{}`."""
    return evolve(
        status,
        container_statuses=tuple(map(_plain_container, status.container_statuses)),
        init_container_statuses=tuple(map(_plain_container, status.init_container_statuses)),
        ephemeral_container_statuses=tuple(
            map(_plain_container, status.ephemeral_container_statuses)
        ),
    )


def _plain_container(status: ContainerStatus) -> ContainerStatus:
    if EMPTY not in (status.state, status.last_state):
        return status
    return evolve(
        status,
        state=None if status.state == EMPTY else status.state,
        last_state=None if status.last_state == EMPTY else status.last_state,
    )


def _encoded(status: PodStatus, attributes: Iterable["Attribute[Any]"]) -> Json:
    """The JSON of some fields of a status."""
    part = PodStatus(**{a.name: getattr(status, a.name) for a in attributes})
    return encode(part)


def _difference(before: Json, after: Json, merge_keys: Mapping[str, str]) -> dict[str, Any]:
    patch: dict[str, Any] = dict.fromkeys(name for name in before if name not in after)
    for name, value in after.items():
        old = before.get(name)
        if name in merge_keys:
            patch |= _merged_list(name, old or [], value, merge_keys[name])
        elif isinstance(value, dict) and isinstance(old, dict):
            patch[name] = _difference(old, value, {})
        elif value != old:
            patch[name] = value
    for name in before.keys() & merge_keys.keys() - after.keys():
        patch |= _merged_list(name, before[name], [], merge_keys[name])
    return patch


def _merged_list(name: str, before: list[Any], after: list[Any], key: str) -> dict[str, Any]:
    """The items that differ, those that go, and the order of those that stay."""
    known = {item[key]: item for item in before}
    wanted = {item[key] for item in after}
    items: list[Any] = []
    for item in after:
        old = known.get(item[key])
        if old != item:
            items.append({**dict.fromkeys((old or {}).keys() - item.keys()), **item})
    items += ({"$patch": "delete", key: value} for value in known if value not in wanted)
    order = {f"$setElementOrder/{name}": [{key: item[key]} for item in after]} if after else {}
    return {**order, name: items}
