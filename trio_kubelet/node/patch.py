"""What a change of the Node object looks like on the wire: a strategic merge patch.

Only metadata that changed and the status are in it. Conditions are merged by type: those that are
the agent's go out whole, so that a patch made from a version that has aged leaves no condition
half old, half new. Addresses would be merged by type as well, which cannot hold two internal ones;
they are replaced as a list, as the Go kubelet does.
"""

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from trio_kubelet.k8s import Node, NodeCondition
from trio_kubelet.k8s.codec import encode
from trio_kubelet.node.conditions import OWN_CONDITIONS

REPLACE = {"$patch": "replace"}


def node_patch(before: Node, after: Node) -> Mapping[str, object]:
    """The body of a PATCH of the subresource `status` that makes `after` of `before`."""
    patch: dict[str, object] = {"status": _status_patch(before, after)}
    metadata = {
        name: changes
        for name in ("labels", "annotations")
        if (changes := _changes(getattr(before.metadata, name), getattr(after.metadata, name)))
    }
    return {"metadata": metadata, **patch} if metadata else patch


def _status_patch(before: Node, after: Node) -> Mapping[str, object]:
    old = encode(evolve(before.status, conditions=(), addresses=()))
    new = encode(evolve(after.status, conditions=(), addresses=()))
    patch = dict(_changes(old, new))
    conditions = [_whole(c) for c in after.status.conditions if c.type in OWN_CONDITIONS]
    if conditions:
        patch["conditions"] = conditions
    if before.status.addresses != after.status.addresses:
        patch["addresses"] = [*(encode(each) for each in after.status.addresses), REPLACE]
    return patch


def _whole(condition: NodeCondition) -> Mapping[str, object]:
    """A condition with its words though they be empty: what is left out would stay as it was."""
    return {"reason": "", "message": "", **encode(condition)}


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:
    """What turns one object into another: new values, and None for what is gone.

    Objects are compared field by field, lists as a whole.
    """
    changes: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        known = old.get(name)
        if isinstance(value, Mapping) and isinstance(known, Mapping):
            deeper = _changes(known, value)
            if deeper:
                changes[name] = deeper
        elif value != known:
            changes[name] = value
    return changes
