"""The configuration, its flags and gates against the tables of Kubernetes 1.36, both ways."""

import csv
import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import attrs
import pytest

from trio_kubelet.config import KubeletConfiguration, parts, records, to_wire
from trio_kubelet.config.codec import api_field_of
from trio_kubelet.config.flag_table import FLAGS, FORMER_FLAGS, OWN_FLAGS
from trio_kubelet.config.flags import default_text
from trio_kubelet.config.gates import COLLECTIVE_GATES, KNOWN_GATES, default_of
from trio_kubelet.config.model import NodeOptions
from trio_kubelet.k8s.quantity import Quantity

FACTS = Path(__file__).parents[2] / "facts"

# Where the defaults of the flags are not those of the file, this agent takes the file's.
DEFAULTS_OF_THE_FILE = {
    "anonymous-auth": "false",
    "authentication-token-webhook": "true",
    "authorization-mode": "Webhook",
    "read-only-port": "",
}
BESIDE_THE_TABLE = {
    "failSwapOn": True,
    "failCgroupV1": True,
    "cgroupDriver": "cgroupfs",
    "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
}
EMPTY = ("", "0", "0s", "false", "[]")


def rows(name: str) -> list[list[str]]:
    with (FACTS / name).open(encoding="utf-8") as file:
        return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def api_fields() -> dict[str, dict[str, str]]:
    classes: dict[str, dict[str, str]] = {}
    for row in rows("kubelet-configuration-v1beta1.tsv"):
        if row[0] == "field":
            classes.setdefault(row[1], {})[row[2]] = row[3]
    return classes


def class_named(name: str) -> Any:
    if name == "KubeletConfiguration":
        return KubeletConfiguration
    return getattr(parts, name, None) or getattr(records, name)


@pytest.mark.parametrize(("name", "fields"), api_fields().items())
def test_every_class_has_exactly_the_fields_of_the_api(name: str, fields: dict[str, str]) -> None:
    declared = [api_field_of(attribute).name for attribute in attrs.fields(class_named(name))]
    assert declared == list(fields)


def test_all_167_fields_are_there() -> None:
    fields = api_fields()
    assert len(fields["KubeletConfiguration"]) == 125
    assert sum(map(len, fields.values())) == 167


@pytest.mark.parametrize(("name", "fields"), api_fields().items())
def test_every_field_has_the_type_of_the_api(name: str, fields: dict[str, str]) -> None:
    cls = class_named(name)
    hints = get_type_hints(cls)
    for attribute in attrs.fields(cls):
        api_field = api_field_of(attribute)
        go_type = fields[api_field.name]
        if not go_type.startswith("*Duration") and "onfiguration" not in go_type:
            assert api_field.nullable == go_type.startswith("*"), api_field.name
        assert python_type_fits(hints[attribute.name], go_type.lstrip("*")), api_field.name
        if go_type.lstrip("*") in ("int32", "int64"):
            assert api_field.bits == int(go_type[-2:]), api_field.name


def python_type_fits(hint: Any, go_type: str) -> bool:
    members = [member for member in get_args(hint) if member is not type(None)]
    if get_origin(hint) is not None and type(None) in get_args(hint):
        hint = members[0]
    if go_type.startswith("map["):
        return get_origin(hint) is Mapping
    if go_type.startswith("[]"):
        return get_origin(hint) is tuple
    simple = {
        "bool": bool,
        "int32": int,
        "int64": int,
        "string": str,
        "float64": float,
        "Duration": timedelta,
    }
    if go_type in simple:
        return hint is simple[go_type]
    return hint is str or attrs.has(hint) or get_origin(hint) is Mapping


def leaves(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        return {path: value}
    found = {}
    for name, item in value.items():
        found.update(leaves(item, f"{path}.{name}" if path else name))
    return found


def test_the_defaults_are_those_of_the_reference_kubelet() -> None:
    expected = {
        path: json.loads(text) for path, text in rows("kubelet-configuration-defaults-1.36.tsv")[1:]
    }
    del expected["kind"], expected["apiVersion"]
    expected.update(BESIDE_THE_TABLE)
    actual = leaves(to_wire(KubeletConfiguration()), "")
    assert actual.pop("authentication.x509") == {}  # the table has leaves only
    assert actual == expected


def flag_rows() -> list[list[str]]:
    return rows("kubelet-flags-1.36.tsv")[1:]


def test_the_flags_are_those_of_the_table_former_ones_and_our_own() -> None:
    former, own = ({flag.name for flag in flags} for flags in (FORMER_FLAGS, OWN_FLAGS))
    assert set(FLAGS) - former - own == {row[0] for row in flag_rows()}
    assert former == {"pod-infra-container-image"}
    assert own == {"hollow", "eviction-mem-available", "device-plugin-wait"}


@pytest.mark.parametrize("row", flag_rows(), ids=lambda row: row[0])
def test_every_flag_has_type_default_and_deprecation_of_the_table(row: list[str]) -> None:
    name, type_name, default, deprecated = (*row, "", "")[:4]
    flag = FLAGS[name]
    assert flag.kind.type_name == type_name
    assert flag.deprecated == (deprecated == "deprecated")
    shown = default_text(flag)
    if name in DEFAULTS_OF_THE_FILE:
        assert shown in (DEFAULTS_OF_THE_FILE[name], "0")
    elif name == "eviction-hard":
        assert "memory.available=100Mi" in shown
    else:
        assert shown == default.strip('"') or (not default and shown in EMPTY)


@pytest.mark.parametrize("flag", FLAGS.values(), ids=lambda flag: flag.name)
def test_every_flag_sets_something_that_exists(flag: Any) -> None:
    if flag.option and flag.name not in ("help",):
        assert flag.option in attrs.fields_dict(NodeOptions)
    cls: Any = KubeletConfiguration
    for name in filter(None, flag.field.split(".")):
        by_wire_name = {api_field_of(attribute).name: attribute for attribute in attrs.fields(cls)}
        cls = get_type_hints(cls)[by_wire_name[name].name]


def test_every_option_of_the_node_has_its_flag() -> None:
    with_flag = {flag.option for flag in FLAGS.values() if flag.option}
    assert {attribute.name for attribute in attrs.fields(NodeOptions)} == with_flag - {"help"} | {
        "cadvisor"
    }


@pytest.mark.parametrize("row", rows("feature-gates-1.36.tsv")[1:], ids=lambda row: row[0])
def test_every_gate_has_stage_and_default_of_the_table(row: list[str]) -> None:
    name, stage, default = row
    if name in COLLECTIVE_GATES:
        assert COLLECTIVE_GATES[name].value == stage
    else:
        assert KNOWN_GATES[name].stage == stage
        assert KNOWN_GATES[name].default == (default == "true")


def test_only_runtime_events_have_a_default_of_their_own() -> None:
    differing = {name for name, gate in KNOWN_GATES.items() if default_of(name) != gate.default}
    assert differing == {"EventedPLEG"}


def test_there_are_no_gates_beside_the_table() -> None:
    table = {row[0] for row in rows("feature-gates-1.36.tsv")[1:]}
    assert set(KNOWN_GATES) | set(COLLECTIVE_GATES) == table


def test_a_quantity_of_the_configuration_is_a_quantity() -> None:
    assert KubeletConfiguration().logging.options.json.info_buffer_size == Quantity("0")
