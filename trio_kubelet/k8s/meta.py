"""The metadata of every API object: names, labels, owners, versions."""

from collections.abc import Mapping
from enum import StrEnum

from attrs import field, frozen

from trio_kubelet.k8s.base import ApiType, Int64, Mandatory
from trio_kubelet.k8s.time import Time

_EPOCH = Time.from_ns(0)


@frozen(kw_only=True, repr=False, eq=False)
class OwnerReference(ApiType):
    """The object that this one belongs to; deleted with it."""

    api_version: Mandatory[str] = ""
    kind: Mandatory[str] = ""
    name: Mandatory[str] = ""
    uid: Mandatory[str] = ""
    block_owner_deletion: bool | None = None
    controller: bool | None = None


@frozen(kw_only=True, repr=False, eq=False)
class ManagedFieldsEntry(ApiType):
    """The fields that a writer of the object claims for itself."""

    api_version: str = ""
    fields_type: str = ""
    fields_v1: Mapping[str, object] = field(factory=dict)
    manager: str = ""
    operation: str = ""
    subresource: str = ""
    time: Time | None = None


@frozen(kw_only=True, repr=False, eq=False)
class ObjectMeta(ApiType):
    """Name, identity and bookkeeping of an object.

    `uid` names one incarnation: a pod deleted and made again has the same name and another UID.
    `deletion_timestamp` and `deletion_grace_period_seconds` together ask the node to stop the pod.
    """

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: Mapping[str, str] = field(factory=dict)
    annotations: Mapping[str, str] = field(factory=dict)

    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    deletion_grace_period_seconds: Int64 | None = None
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()

    generation: Int64 | None = None
    resource_version: str = ""
    managed_fields: tuple[ManagedFieldsEntry, ...] = ()
    self_link: str = ""

    @property
    def key(self) -> str:
        """The object's name in logs, events and the journal: `namespace/name`."""
        return f"{self.namespace}/{self.name}"


@frozen(kw_only=True, repr=False, eq=False)
class ShardInfo(ApiType):
    """The part of a sharded list that this is."""

    selector: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class ListMeta(ApiType):
    """Version and continuation of a list."""

    continue_: str = ""
    remaining_item_count: Int64 | None = None
    resource_version: str = ""
    self_link: str = ""
    shard_info: ShardInfo | None = None


@frozen(kw_only=True, repr=False, eq=False)
class LabelSelectorRequirement(ApiType):
    """One condition on a label."""

    key: Mandatory[str] = ""
    operator: Mandatory[str] = ""
    values: tuple[str, ...] = ()


@frozen(kw_only=True, repr=False, eq=False)
class LabelSelector(ApiType):
    """A query over labels; all conditions must hold, and an empty one matches everything."""

    match_expressions: tuple[LabelSelectorRequirement, ...] = ()
    match_labels: Mapping[str, str] = field(factory=dict)


class LabelSelectorOperator(StrEnum):
    """Comparisons of a label."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


@frozen(kw_only=True, repr=False, eq=False)
class LocalObjectReference(ApiType):
    """The name of an object in the same namespace."""

    name: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class ObjectReference(ApiType):
    """An object of any kind, or with `field_path` a part of it."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class TypedLocalObjectReference(ApiType):
    """An object of any kind in the same namespace."""

    kind: Mandatory[str] = ""
    name: Mandatory[str] = ""
    api_group: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class TypedObjectReference(ApiType):
    """An object of any kind in any namespace."""

    kind: Mandatory[str] = ""
    name: Mandatory[str] = ""
    namespace: str = ""
    api_group: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class Condition(ApiType):
    """One fact about an object, in the form that newer APIs share."""

    type: Mandatory[str] = ""
    status: Mandatory[str] = ""
    observed_generation: Int64 | None = None
    last_transition_time: Mandatory[Time] = _EPOCH
    reason: Mandatory[str] = ""
    message: Mandatory[str] = ""
