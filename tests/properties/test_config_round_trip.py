"""Any configuration survives YAML, JSON and the file; any part of one merges as itself."""

import json
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args, get_type_hints

import attrs
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.config import KubeletConfiguration, to_wire
from trio_kubelet.config.codec import api_field_of, decode, format_duration, parse_duration
from trio_kubelet.config.model import API_VERSION, KIND
from trio_kubelet.config.settings import load_files, merge_patch
from trio_kubelet.k8s.quantity import Quantity

NAMES = st.from_regex(r"[a-z][a-z0-9.]{0,10}", fullmatch=True)
TEXTS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=12
)


class QuotingDumper(yaml.SafeDumper):
    """Quotes all text: PyYAML alone leaves `y` and `0E0` bare, which Kubernetes reads otherwise."""


QuotingDumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)
DURATIONS = st.timedeltas(timedelta(microseconds=1), timedelta(days=365))
QUANTITIES = st.from_regex(r"[1-9][0-9]{0,3}(Mi|Gi|m|k)?", fullmatch=True).map(Quantity)


def strategy(hint: Any, bits: int) -> st.SearchStrategy[Any]:
    """Values that are not zero: a zero of a plain field means the default."""
    simple: dict[Any, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        int: st.integers(1, 2 ** (bits - 1) - 1),
        float: st.floats(0.01, 1.0),
        str: TEXTS,
        timedelta: DURATIONS,
        Quantity: QUANTITIES,
    }
    if hint in simple:
        return simple[hint]
    if attrs.has(hint):
        return instances(hint)
    (*_, item) = hint.__args__ if hint.__args__[-1] is not Ellipsis else hint.__args__[:-1]
    if hint.__origin__ is tuple:
        return st.lists(strategy(item, bits), max_size=3).map(tuple)
    return st.dictionaries(NAMES, strategy(item, bits), max_size=3)


def instances(cls: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls)
    some = {
        attribute.name: strategy(without_none(hints[attribute.name]), api_field_of(attribute).bits)
        for attribute in attrs.fields(cls)
    }
    return st.fixed_dictionaries({}, optional=some).map(lambda given: cls(**given))


def without_none(hint: Any) -> Any:
    members = [member for member in get_args(hint) if member is not type(None)]
    return members[0] if type(None) in get_args(hint) else hint


CONFIGURATIONS = instances(KubeletConfiguration)


@given(CONFIGURATIONS)
def test_decoding_undoes_encoding(configuration: KubeletConfiguration) -> None:
    decoded = decode(KubeletConfiguration, to_wire(configuration))
    assert decoded.value == configuration
    assert decoded.problems == decoded.unknown == ()


@given(CONFIGURATIONS, st.sampled_from(["yaml", "json"]))
def test_a_file_with_every_setting_is_read_as_it_was_written(
    configuration: KubeletConfiguration, form: str
) -> None:
    document = {"apiVersion": API_VERSION, "kind": KIND, **to_wire(configuration)}
    text = yaml.dump(document, Dumper=QuotingDumper) if form == "yaml" else json.dumps(document)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "config")
        file.write_text(text, encoding="utf-8")
        loaded = load_files(file, None, {})
    assert not loaded.warnings
    for attribute in attrs.fields(KubeletConfiguration):
        if attribute.name not in DEPEND_ON_OTHERS:
            assert getattr(loaded.configuration, attribute.name) == getattr(
                configuration, attribute.name
            )


# Paths become absolute, and a few settings follow from others when the file is read.
DEPEND_ON_OTHERS = frozenset(
    {
        "authentication",
        "eviction_hard",
        "resolv_conf",
        "static_pod_path",
        "tls_cert_file",
        "tls_private_key_file",
        "volume_plugin_dir",
    }
)


@given(CONFIGURATIONS, CONFIGURATIONS)
def test_merging_a_complete_configuration_over_another_keeps_its_plain_settings(
    base: KubeletConfiguration, overlay: KubeletConfiguration
) -> None:
    merged = decode(KubeletConfiguration, merge_patch(to_wire(base), to_wire(overlay))).value
    assert merged.sync_frequency == overlay.sync_frequency
    assert merged.healthz_port == overlay.healthz_port
    assert merged.authorization == overlay.authorization
    assert merged.enforce_node_allocatable == overlay.enforce_node_allocatable
    assert set(merged.feature_gates) == {*base.feature_gates, *overlay.feature_gates}


@given(CONFIGURATIONS)
def test_merging_nothing_changes_nothing(configuration: KubeletConfiguration) -> None:
    api_field = to_wire(configuration)
    assert merge_patch(api_field, {}) == api_field
    assert merge_patch(api_field, api_field) == api_field


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
WIRE_NAMES = st.sampled_from(sorted(to_wire(KubeletConfiguration())))


@given(st.dictionaries(WIRE_NAMES | NAMES, JSON, max_size=6))
def test_nonsense_is_reported_and_never_breaks_the_decoder(document: dict[str, Any]) -> None:
    decoded = decode(KubeletConfiguration, document)
    assert isinstance(decoded.value, KubeletConfiguration)
    assert all("\n" not in path for path in decoded.unknown)


@given(st.timedeltas(timedelta(days=-36500), timedelta(days=36500)))
def test_durations_survive_their_text(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration
