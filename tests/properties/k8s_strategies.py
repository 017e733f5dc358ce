"""Hypothesis strategies for API objects, made from the classes themselves."""

from collections.abc import Mapping
from functools import cache
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin

import attrs
from hypothesis import strategies as st

from trio_kubelet.k8s import Duration, IntOrString, MicroTime, Quantity, Time
from trio_kubelet.k8s.base import ApiType, IntegerBits

A = TypeVar("A", bound=ApiType)

SECONDS_OF_YEAR_1 = -62_135_596_800
SECONDS_OF_YEAR_9999 = 253_402_300_799

texts = st.text(max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
nanoseconds = st.builds(
    lambda seconds, rest: seconds * 1_000_000_000 + rest,
    st.integers(SECONDS_OF_YEAR_1, SECONDS_OF_YEAR_9999),
    st.integers(0, 999_999_999),
)
suffixes = st.sampled_from(
    ["", *"numkMGTPE", *(prefix + "i" for prefix in "KMGTPE"), "e3", "E-2", "e+1", "e0"]
)
numbers = st.one_of(
    st.integers(0, 10**12).map(str),
    st.builds("{}.{}".format, st.integers(0, 10**6), st.integers(0, 10**9)),
    st.integers(0, 10**6).map(".{}".format),
    st.integers(0, 10**6).map("{}.".format),
)
quantity_texts = st.builds("{}{}{}".format, st.sampled_from(["", "-", "+"]), numbers, suffixes)
quantities = quantity_texts.map(Quantity)

_LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    str: texts,
    bool: st.booleans(),
    bytes: st.binary(max_size=8),
    object: json_values,
    Quantity: quantities,
    Time: nanoseconds.map(Time.from_ns),
    MicroTime: nanoseconds.map(MicroTime.from_ns),
    Duration: st.integers(-(2**63) + 1, 2**63 - 1).map(Duration),
    IntOrString: (st.integers(-(2**31), 2**31 - 1) | texts).map(IntOrString),
}


def api_objects(cls: type[A]) -> st.SearchStrategy[A]:
    """Objects of a class with a few of its fields set, and so on below."""
    any_class: Any = cls
    strategy: st.SearchStrategy[A] = _api_objects(any_class)
    return strategy


@cache
def _api_objects(cls: Any) -> st.SearchStrategy[Any]:
    strategies = {
        attribute.name: st.deferred(lambda annotation=attribute.type: values(annotation))  # type: ignore[misc]
        for attribute in attrs.fields(cls)
    }
    names = sorted(strategies)

    def build(chosen: set[str]) -> st.SearchStrategy[Any]:
        return st.fixed_dictionaries({name: strategies[name] for name in sorted(chosen)}).map(
            lambda fields: cls(**fields)
        )

    return st.sets(st.sampled_from(names), max_size=min(4, len(names))).flatmap(build)


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Values that a field of this type can have."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in _LEAVES:
        return _LEAVES[annotation]
    if origin is Annotated:
        bits = next((m.bits for m in annotation.__metadata__ if isinstance(m, IntegerBits)), None)
        if bits is not None:
            return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return values(arguments[0])
    if origin is tuple:
        return st.lists(values(arguments[0]), max_size=2).map(tuple)
    if origin is Mapping:
        return st.dictionaries(texts, values(arguments[1]), max_size=2)
    if NoneType in arguments:
        return st.one_of(st.none(), *(values(a) for a in arguments if a is not NoneType))
    return api_objects(annotation)
