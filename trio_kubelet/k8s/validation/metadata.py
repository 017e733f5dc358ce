"""Names, labels, annotations and owners."""

from collections.abc import Iterator, Mapping

from trio_kubelet.k8s.errors import FieldError, all_invalid, invalid, required, too_long
from trio_kubelet.k8s.meta import LabelSelector, LabelSelectorOperator, ObjectMeta
from trio_kubelet.k8s.validation import formats

LARGEST_ANNOTATIONS_BYTES = 256 * 1024

_NEEDS_VALUES = {LabelSelectorOperator.IN, LabelSelectorOperator.NOT_IN}
_NEEDS_NONE = {LabelSelectorOperator.EXISTS, LabelSelectorOperator.DOES_NOT_EXIST}


def check_metadata(meta: ObjectMeta, path: str) -> Iterator[FieldError]:
    """Check the metadata of an object that lives in a namespace."""
    if not meta.name:
        yield required(f"{path}.name", "name or generateName is required")
    else:
        yield from all_invalid(f"{path}.name", meta.name, formats.dns_subdomain(meta.name))
    if not meta.namespace:
        yield required(f"{path}.namespace")
    else:
        yield from all_invalid(
            f"{path}.namespace", meta.namespace, formats.dns_label(meta.namespace)
        )
    if meta.generation is not None:
        yield from all_invalid(
            f"{path}.generation", meta.generation, formats.not_negative(meta.generation)
        )
    yield from check_labels(meta.labels, f"{path}.labels")
    yield from check_annotations(meta.annotations, f"{path}.annotations")
    yield from _check_owners(meta, f"{path}.ownerReferences")
    for index, name in enumerate(meta.finalizers):
        yield from all_invalid(f"{path}.finalizers[{index}]", name, formats.qualified_name(name))


def check_labels(labels: Mapping[str, str], path: str) -> Iterator[FieldError]:
    """Check keys and values of labels."""
    for key, value in labels.items():
        yield from all_invalid(path, key, formats.qualified_name(key))
        yield from all_invalid(f"{path}[{key}]", value, formats.label_value(value))


def check_annotations(annotations: Mapping[str, str], path: str) -> Iterator[FieldError]:
    """Check the keys of annotations, and their size all together."""
    for key in annotations:
        yield from all_invalid(path, key, formats.qualified_name(key.lower()))
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > LARGEST_ANNOTATIONS_BYTES:
        yield too_long(path, LARGEST_ANNOTATIONS_BYTES)


def _check_owners(meta: ObjectMeta, path: str) -> Iterator[FieldError]:
    for index, owner in enumerate(meta.owner_references):
        texts = {
            "apiVersion": owner.api_version,
            "kind": owner.kind,
            "name": owner.name,
            "uid": owner.uid,
        }
        for name, text in texts.items():
            if not text:
                yield invalid(f"{path}[{index}].{name}", text, "must not be empty")
    controllers = [owner.name for owner in meta.owner_references if owner.controller]
    if len(controllers) > 1:
        named = " and ".join(controllers)
        yield invalid(
            path, controllers, f"Only one reference can have Controller set to true: {named}"
        )


def check_label_selector(selector: LabelSelector | None, path: str) -> Iterator[FieldError]:
    """Check a query over labels."""
    if selector is None:
        return
    yield from check_labels(selector.match_labels, f"{path}.matchLabels")
    for index, one in enumerate(selector.match_expressions):
        below = f"{path}.matchExpressions[{index}]"
        yield from check_selector_values(one.operator, one.values, below)
        yield from all_invalid(f"{below}.key", one.key, formats.qualified_name(one.key))
        yield from check_label_values(one.values, f"{below}.values")


def check_selector_values(
    operator: str, values: tuple[str, ...], path: str
) -> Iterator[FieldError]:
    """Check that a selector has the values that its operator needs."""
    if operator in _NEEDS_VALUES:
        if not values:
            detail = "must be specified when `operator` is 'In' or 'NotIn'"
            yield required(f"{path}.values", detail)
    elif operator in _NEEDS_NONE:
        if values:
            detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield invalid(f"{path}.values", list(values), detail)
    else:
        yield invalid(f"{path}.operator", operator, "not a valid selector operator")


def check_label_values(values: tuple[str, ...], path: str) -> Iterator[FieldError]:
    """Check values that labels are compared with."""
    for index, value in enumerate(values):
        yield from all_invalid(f"{path}[{index}]", value, formats.label_value(value))
