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

ALWAYS_THERE = {"Pod.metadata", "Pod.spec", "Pod.status"}
"""Optional in the API, but never None here."""

WHOLE_GROUPS_LEFT_OUT = {
    "authentication.v1": "tokens: with the API client and the server",
    "authorization.v1": "access reviews: with the server",
    "certificates.v1": "the node's own certificates: with the API client",
    "certificates.v1beta1": "pod certificates: with the volumes that need an API server",
    "coordination.v1": "the lease: with the node",
    "events.v1": "events: with the API client",
    "node.v1": "runtime classes: with the API client",
    "policy.v1": "evictions come through the API server, which serves them",
    "resource.v1": "claims and slices: with dynamic resource allocation",
    "storage.v1": "CSI drivers and attachments: with the CSI volumes",
}

LEFT_OUT = {
    "the node object": """
        AttachedVolume ConfigMapNodeConfigSource ContainerImage DaemonEndpoint Node NodeAddress
        NodeCondition NodeConfigSource NodeConfigStatus NodeDaemonEndpoints NodeFeatures NodeList
        NodeRuntimeHandler NodeRuntimeHandlerFeatures NodeSpec NodeStatus NodeSwapStatus
        NodeSystemInfo Taint""",
    "objects that volumes and variables read from an API server": """
        ConfigMap Secret ServiceAccount SecretReference ObjectReference Namespace
        NamespaceCondition NamespaceSpec NamespaceStatus""",
    "services, for variables": """
        ClientIPConfig LoadBalancerIngress LoadBalancerStatus PortStatus Service ServiceList
        ServicePort ServiceSpec ServiceStatus SessionAffinityConfig Condition""",
    "persistent volumes": """
        AzureFilePersistentVolumeSource CSIPersistentVolumeSource CephFSPersistentVolumeSource
        CinderPersistentVolumeSource FlexPersistentVolumeSource GlusterfsPersistentVolumeSource
        ISCSIPersistentVolumeSource LocalVolumeSource ModifyVolumeStatus PersistentVolume
        PersistentVolumeClaim PersistentVolumeClaimCondition PersistentVolumeClaimStatus
        PersistentVolumeSpec PersistentVolumeStatus RBDPersistentVolumeSource
        ScaleIOPersistentVolumeSource StorageOSPersistentVolumeSource VolumeNodeAffinity""",
    "events, in the old API": "Event EventSeries EventSource",
    "requests and answers of the API server": """
        Binding DeleteOptions FieldSelectorRequirement Preconditions Status StatusCause
        StatusDetails WatchEvent""",
}
"""Object types without a class so far, by the part that will bring them."""


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


MODELLED = sorted(
    type_name
    for type_name in FACTS_BY_TYPE
    if group_and_name(type_name)[0] in ("core.v1", "meta.v1")
    and group_and_name(type_name)[1] in CLASSES
)


def expected(fact: Fact) -> Any:
    """The Python type that a field should have, marks included."""
    where = f"{group_and_name(fact.type)[1]}.{fact.field}"
    plain = python_type(fact.kind)
    if fact.required:
        return Annotated[plain, AlwaysWritten]
    if get_origin(plain) in (tuple, Mapping) or where in ALWAYS_THERE:
        return plain
    if plain is str and where not in TEXT_THAT_MAY_BE_ABSENT:
        return plain
    return plain | None


def python_type(kind: str) -> Any:
    if item := re.fullmatch(r"\[(.*)\]", kind):
        of_list: Any = python_type(item[1])
        return tuple[of_list, ...]
    if item := re.fullmatch(r"map<string,(.*)>", kind):
        of_map: Any = python_type(item[1])
        return Mapping[str, of_map]
    simple = {
        "string": str,
        "boolean": bool,
        "integer:int32": Annotated[int, IntegerBits(32)],
        "integer:int64": Annotated[int, IntegerBits(64)],
        **SCALARS,
        **dict.fromkeys(FREE_FORM, Mapping[str, object]),
    }
    return simple[kind] if kind in simple else CLASSES[group_and_name(kind)[1]]


@pytest.mark.parametrize("type_name", MODELLED)
def test_a_class_has_the_fields_of_the_api_with_their_types(type_name: str) -> None:
    cls: Any = CLASSES[group_and_name(type_name)[1]]
    of_class = {wire_name(attribute): attribute.type for attribute in attrs.fields(cls)}
    of_api = {fact.field: optional_map(expected(fact)) for fact in FACTS_BY_TYPE[type_name]}
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
        and group_and_name(type_name)[1] not in left_out
    }
    assert not missing
    assert not left_out & set(CLASSES), "a type that is left out has a class by now"


def test_every_class_is_a_type_of_the_api() -> None:
    modelled = {group_and_name(type_name)[1] for type_name in MODELLED}
    assert set(CLASSES) == modelled


def test_python_names_follow_from_the_names_of_the_api() -> None:
    for type_name in MODELLED:
        cls: Any = CLASSES[group_and_name(type_name)[1]]
        for attribute in attrs.fields(cls):
            snake = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", wire_name(attribute)).lower()
            assert attribute.name.removesuffix("_") == snake
