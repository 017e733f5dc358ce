"""Environment variables and the fields of the pod that they, and files, can be made from."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from trio_kubelet.k8s.base import wire_name
from trio_kubelet.k8s.container import (
    ConfigMapKeySelector,
    EnvFromSource,
    EnvVar,
    EnvVarSource,
    FileKeySelector,
    ObjectFieldSelector,
    ResourceFieldSelector,
    SecretKeySelector,
)
from trio_kubelet.k8s.errors import (
    FieldError,
    all_invalid,
    invalid,
    not_found,
    required,
    unsupported,
)
from trio_kubelet.k8s.validation import formats

FIELDS_OF_VARIABLES = frozenset(
    {
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.hostIPs",
        "status.podIP",
        "status.podIPs",
    }
)
FIELDS_OF_FILES = frozenset(
    {
        "metadata.name",
        "metadata.namespace",
        "metadata.labels",
        "metadata.annotations",
        "metadata.uid",
    }
)

_SUBSCRIPTED = re.compile(r"(.*)\['(.*)'\]", re.DOTALL)
_SUBSCRIPTABLE = ("metadata.labels", "metadata.annotations")
_RESOURCES = frozenset(
    f"{kind}.{name}"
    for kind in ("limits", "requests")
    for name in ("cpu", "memory", "ephemeral-storage")
)
_HUGE_PAGES = ("limits.hugepages-", "requests.hugepages-")
_CPU_DIVISORS = ("1m", "1")
_SIZE_DIVISORS = ("1", *(f"1{unit}" for unit in "kMGTPE"), *(f"1{unit}i" for unit in "KMGTPE"))


def check_variables(
    variables: tuple[EnvVar, ...], volumes: frozenset[str], path: str
) -> Iterator[FieldError]:
    """Check the variables of a container; `volumes` are the names of the pod's volumes."""
    for index, variable in enumerate(variables):
        where = f"{path}[{index}]"
        if not variable.name:
            yield required(f"{where}.name")
        else:
            problems = formats.variable_name(variable.name)
            yield from all_invalid(f"{where}.name", variable.name, problems)
        if variable.value_from is not None:
            yield from _check_source(variable, variable.value_from, f"{where}.valueFrom")
            file = variable.value_from.file_key_ref
            if file is not None and file.volume_name and file.volume_name not in volumes:
                yield not_found(f"{where}.valueFrom.fileKeyRef.volumeName", file.volume_name)


def _check_source(variable: EnvVar, source: EnvVarSource, path: str) -> Iterator[FieldError]:
    names = {attribute.name: wire_name(attribute) for attribute in attrs.fields(EnvVarSource)}
    given = {name for name in names if getattr(source, name) is not None}
    for name in sorted(given):
        yield from _SOURCES[name](getattr(source, name), f"{path}.{names[name]}")
    if not given:
        options = ", ".join(f"`{name}`" for name in sorted(names.values()))
        yield invalid(path, "", f"must specify one of: {options}")
    elif variable.value:
        yield invalid(path, "", "may not be specified when `value` is not empty")
    elif len(given) > 1:
        yield invalid(path, "", "may not have more than one field specified at a time")


def check_variable_sources(sources: tuple[EnvFromSource, ...], path: str) -> Iterator[FieldError]:
    """Check the objects whose keys all become variables."""
    for index, source in enumerate(sources):
        where = f"{path}[{index}]"
        if source.prefix:
            problems = formats.variable_name(source.prefix)
            yield from all_invalid(f"{where}.prefix", source.prefix, problems)
        given = {"configMapRef": source.config_map_ref, "secretRef": source.secret_ref}
        references = {name: one for name, one in given.items() if one is not None}
        for name, reference in references.items():
            yield from check_object_name(reference.name, f"{where}.{name}.name")
        if not references:
            yield invalid(where, "", "must specify one of: `configMapRef` or `secretRef`")
        elif len(references) > 1:
            yield invalid(where, "", "may not have more than one field specified at a time")


def check_object_name(name: str, path: str) -> Iterator[FieldError]:
    """Check the name of a config map, secret or the like that must be given."""
    if not name:
        yield required(path)
    else:
        yield from all_invalid(path, name, formats.dns_subdomain(name))


def check_field_of(fields: frozenset[str]) -> Callable[[ObjectFieldSelector, str], Any]:
    """Return the check of a selector that may name these fields, or one label or annotation."""

    def check(selector: ObjectFieldSelector, path: str) -> Iterator[FieldError]:
        if not selector.api_version:
            yield required(f"{path}.apiVersion")
        elif selector.api_version != "v1":
            yield unsupported(f"{path}.apiVersion", selector.api_version, ["v1"])
        if not selector.field_path:
            yield required(f"{path}.fieldPath")
            return
        subscripted = _SUBSCRIPTED.fullmatch(selector.field_path)
        if subscripted is None:
            if selector.field_path not in fields:
                yield unsupported(f"{path}.fieldPath", selector.field_path, fields)
        elif subscripted[1] not in _SUBSCRIPTABLE:
            yield invalid(f"{path}.fieldPath", subscripted[1], "does not support subscript")
        else:
            key = subscripted[2]
            lowered = key.lower() if subscripted[1] == "metadata.annotations" else key
            yield from all_invalid(f"{path}.fieldPath", key, formats.qualified_name(lowered))

    return check


check_field_of_variable = check_field_of(FIELDS_OF_VARIABLES)
check_field_of_file = check_field_of(FIELDS_OF_FILES)


def check_resource_of_variable(selector: ResourceFieldSelector, path: str) -> Iterator[FieldError]:
    """Check a limit or request, by default of the container that has the variable."""
    if not selector.resource:
        yield required(f"{path}.resource")
        return
    of_huge_pages = selector.resource.startswith(_HUGE_PAGES)
    if selector.resource not in _RESOURCES and not of_huge_pages:
        yield unsupported(f"{path}.resource", selector.resource, _RESOURCES)
        return
    if not selector.divisor:
        return
    divisors = _CPU_DIVISORS if selector.resource.endswith(".cpu") else _SIZE_DIVISORS
    if selector.divisor.canonical not in divisors:
        name = "hugepages" if of_huge_pages else selector.resource.partition(".")[2]
        detail = (
            f"only divisor's values {', '.join(divisors)} are supported with the {name} resource"
        )
        yield invalid(f"{path}.divisor", str(selector.divisor), detail)


def check_resource_of_file(selector: ResourceFieldSelector, path: str) -> Iterator[FieldError]:
    """Check a limit or request of a container that must be named."""
    if not selector.container_name:
        yield required(f"{path}.containerName")
    yield from check_resource_of_variable(selector, path)


def _check_key(
    selector: ConfigMapKeySelector | SecretKeySelector, path: str
) -> Iterator[FieldError]:
    yield from all_invalid(f"{path}.name", selector.name, formats.dns_subdomain(selector.name))
    if not selector.key:
        yield required(f"{path}.key")
    else:
        yield from all_invalid(f"{path}.key", selector.key, formats.config_key(selector.key))


def _check_file_key(selector: FileKeySelector, path: str) -> Iterator[FieldError]:
    if not selector.volume_name:
        yield required(f"{path}.volumeName")
    if not selector.key:
        yield required(f"{path}.key")
    else:
        yield from all_invalid(f"{path}.key", selector.key, formats.variable_name(selector.key))
    if not selector.path:
        yield required(f"{path}.path")
    else:
        yield from all_invalid(f"{path}.path", selector.path, formats.file_path(selector.path))


_SOURCES: dict[str, Callable[[Any, str], Iterator[FieldError]]] = {
    "field_ref": check_field_of_variable,
    "resource_field_ref": check_resource_of_variable,
    "config_map_key_ref": _check_key,
    "secret_key_ref": _check_key,
    "file_key_ref": _check_file_key,
}
