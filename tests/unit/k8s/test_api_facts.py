"""The classes against the table of the API: every field, its type, whether it is required."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import attrs
import pytest

import trio_kubelet.k8s as k8s
from trio_kubelet.k8s.base import AlwaysWritten, ApiType, IntegerBits, wire_name

FACTS = Path(__file__).parents[2] / "facts" / "kubernetes-api-1.36.tsv"

SCALARS = {
    "api.resource.Quantity": k8s.Quantity,
    "meta.v1.MicroTime": k8s.MicroTime,
    "meta.v1.Time": k8s.Time,
    "util.intstr.IntOrString": k8s.IntOrString,
}
FREE_FORM = {"meta.v1.FieldsV1", "runtime.RawExtension"}

TEXT_THAT_MAY_BE_ABSENT = {
    "AppArmorProfile.localhostProfile",
    "GRPCAction.service",
    "HostPathVolumeSource.type",
    "PersistentVolumeClaimSpec.storageClassName",
    "PersistentVolumeClaimSpec.volumeAttributesClassName",
    "PersistentVolumeClaimStatus.currentVolumeAttributesClassName",
    "PersistentVolumeSpec.volumeAttributesClassName",
    "PodDNSConfigOption.value",
    "PodResourceClaim.resourceClaimName",
    "PodResourceClaim.resourceClaimTemplateName",
    "PodResourceClaimStatus.resourceClaimName",
    "SeccompProfile.localhostProfile",
    "WindowsSecurityContextOptions.gmsaCredentialSpec",
    "WindowsSecurityContextOptions.gmsaCredentialSpecName",
    "WindowsSecurityContextOptions.runAsUserName",
}
"""Where the API tells an empty text from an absent one."""

ALWAYS_THERE = {"metadata", "spec", "status"}
"""SyncDependencies of an object that are optional in the API, but never None here."""

RENAMED = {
    "meta.v1.Status": "ApiStatus",
    "storage.v1.TokenRequest": "CSITokenRequest",
    "storage.v1.VolumeError": "VolumeAttachmentError",
}
"""Types whose names in the API say too little."""

NOT_OF_THE_TABLE = {
    "PartialObjectMetadata",
    *("AllocatedClaim", "AllocatedClaimStatus", "AllocatedDevice", "AllocatedDevices"),
    *("ClaimAllocation", "ClaimConsumer", "ResourceSlice", "ResourceSliceSpec"),
}
"""Classes for what the API server sends of objects of any type, and of devices."""

WHOLE_GROUPS_LEFT_OUT = {
    "events.v1": "the agent writes events of the core API, as kubelets do",
    "policy.v1": "evictions come through the API server, which serves them",
    "resource.v1": "of claims and slices a node reads little, which has classes of its own",
}

LEFT_OUT = {
    "lists, which the client reads by one rule for all kinds": """
        ClusterTrustBundleList NodeList PodCertificateRequestList RuntimeClassList ServiceList
        WatchEvent""",
    "pod certificates: with the volumes that hold them": """
        PodCertificateRequest PodCertificateRequestSpec PodCertificateRequestStatus""",
    "access to what is no node: nobody asks the node for it": """
        NonResourceAttributes FieldSelectorAttributes LabelSelectorAttributes""",
    "what an agent neither reads nor writes": """
        Binding FieldSelectorRequirement Namespace NamespaceCondition NamespaceSpec
        NamespaceStatus""",
}
"""Object types without a class so far, by the part that will bring them."""

FIELDS_LEFT_OUT = {
    "authorization.v1.ResourceAttributes": {"fieldSelector", "labelSelector"},
    "authorization.v1.SubjectAccessReviewSpec": {"nonResourceAttributes"},
}
"""Parts of reviews that the agent never sends."""


class Fact(NamedTuple):
    """One line of the table."""

    type: str
    field: str
    kind: str
    required: bool


def read_facts() -> dict[str, list[Fact]]:
    facts: dict[str, list[Fact]] = {}
    for line in FACTS.read_text().splitlines():
        what, type_name, *columns = line.split("\t")
        if what == "field" and len(columns) > 1:
            field, kind, *marks = columns
            facts.setdefault(type_name, []).append(
                Fact(type_name, field, kind, "required" in marks)
            )
    return facts


FACTS_BY_TYPE = read_facts()
CLASSES = {
    cls.__name__: cls
    for cls in vars(k8s).values()
    if isinstance(cls, type) and issubclass(cls, ApiType) and cls is not ApiType
}


def group_and_name(type_name: str) -> tuple[str, str]:
    group, _, name = type_name.rpartition(".")
    return group, name


def class_name(type_name: str) -> str:
    return RENAMED.get(type_name, group_and_name(type_name)[1])


MODELLED = sorted(
    type_name
    for type_name in FACTS_BY_TYPE
    if group_and_name(type_name)[0] not in WHOLE_GROUPS_LEFT_OUT
    and class_name(type_name) in CLASSES
)


def expected(fact: Fact) -> Any:
    """The Python type that a field should have, marks included."""
    where = f"{class_name(fact.type)}.{fact.field}"
    plain = python_type(fact.kind)
    if fact.required:
        return Annotated[plain, AlwaysWritten]
    if get_origin(plain) in (tuple, Mapping) or is_always_there(fact, plain):
        return plain
    if plain in (str, bytes) and where not in TEXT_THAT_MAY_BE_ABSENT:
        return plain
    return plain | None


def is_always_there(fact: Fact, plain: Any) -> bool:
    """Whether it is the metadata, spec or status of an object, no list and no answer."""
    is_object = any(other.field == "apiVersion" for other in FACTS_BY_TYPE[fact.type])
    return is_object and fact.field in ALWAYS_THERE and plain not in (str, k8s.ListMeta)


def python_type(kind: str) -> Any:
    if item := re.fullmatch(r"\[(.*)\]", kind):
        of_list: Any = python_type(item[1])
        return tuple[of_list, ...]
    if item := re.fullmatch(r"map<string,(.*)>", kind):
        of_map: Any = python_type(item[1])
        return Mapping[str, of_map]
    simple = {
        "string": str,
        "string:byte": bytes,
        "boolean": bool,
        "integer:int32": Annotated[int, IntegerBits(32)],
        "integer:int64": Annotated[int, IntegerBits(64)],
        **SCALARS,
        **dict.fromkeys(FREE_FORM, Mapping[str, object]),
    }
    return simple[kind] if kind in simple else CLASSES[class_name(kind)]


@pytest.mark.parametrize("type_name", MODELLED)
def test_a_class_has_the_fields_of_the_api_with_their_types(type_name: str) -> None:
    cls: Any = CLASSES[class_name(type_name)]
    of_class = {wire_name(attribute): attribute.type for attribute in attrs.fields(cls)}
    left_out = FIELDS_LEFT_OUT.get(type_name, set())
    facts = [fact for fact in FACTS_BY_TYPE[type_name] if fact.field not in left_out]
    of_api = {fact.field: optional_map(expected(fact)) for fact in facts}
    assert of_class == of_api


def optional_map(annotation: Any) -> Any:
    """Free-form objects are empty maps when absent."""
    arguments = get_args(annotation)
    if NoneType in arguments and get_origin(arguments[0]) is Mapping:
        return arguments[0]
    return annotation


def test_every_type_of_the_api_has_a_class_or_is_left_out_on_purpose() -> None:
    left_out = {name for names in LEFT_OUT.values() for name in names.split()}
    missing = {
        type_name
        for type_name in FACTS_BY_TYPE
        if type_name not in MODELLED
        and group_and_name(type_name)[0] not in WHOLE_GROUPS_LEFT_OUT
        and class_name(type_name) not in left_out
    }
    assert not missing
    assert not left_out & set(CLASSES), "a type that is left out has a class by now"


def test_every_class_is_a_type_of_the_api() -> None:
    modelled = [class_name(type_name) for type_name in MODELLED]
    assert sorted(set(CLASSES) - NOT_OF_THE_TABLE) == sorted(modelled)


def test_python_names_follow_from_the_names_of_the_api() -> None:
    for type_name in MODELLED:
        cls: Any = CLASSES[class_name(type_name)]
        for attribute in attrs.fields(cls):
            snake = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", wire_name(attribute)).lower()
            assert attribute.name.removesuffix("_") == snake
