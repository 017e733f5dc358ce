"""docs/pod-spec.md against the API, the code and real admission: nothing is left out in silence."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.unit.field_tables import (
    CODE,
    PYTHON_NAMES,
    Page,
    Row,
    missing_capabilities,
    read_facts,
    short,
)
from tests.unit.sync.admission.pods_and_nodes import make_admission, make_pod
from trio_kubelet.sync.admission import Rejection
from trio_kubelet.volumes import PodFolders, local_volumes
from trio_kubelet.volumes.plugin import VolumesNotReady

ACTED_ON, WAITS, IGNORED = TREATMENTS = ("acted on", "waits", "ignored")
NOT_OF_A_POD = {"meta.v1.ObjectMeta"}
"""Types that a spec only carries within the template of a claim, which the control plane makes."""


SPEC = read_facts("core.v1.PodSpec", NOT_OF_A_POD)
PAGE = Page.read("pod-spec.md", SPEC)
ROWS = PAGE.rows


def test_every_field_of_the_pod_spec_has_one_row() -> None:
    PAGE.assert_complete(TREATMENTS)


def test_a_field_is_treated_no_better_than_the_one_it_is_part_of() -> None:
    above: dict[str, set[str]] = {}
    for type_name, kinds in SPEC.items():
        for field, kind in kinds.items():
            (row,) = PAGE.rows_of(type_name, field)
            above.setdefault(short(kind), set()).add(row.treatment)
    whole = [row for row in ROWS if row.field == "*" and row.treatment != IGNORED]
    acted_on = [row for row in ROWS if row.treatment == ACTED_ON and row.types != ("PodSpec",)]
    wrong = {
        (row.name, type_name)
        for row in (*whole, *acted_on)
        for type_name in row.types
        if row.treatment not in above[type_name]
    }
    assert wrong == set()


@cache
def nodes(module: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(module.read_text())))


def attributes_read(module: Path) -> set[str]:
    return {node.attr for node in nodes(module) if isinstance(node, ast.Attribute)}


def names_read(module: Path) -> set[str]:
    """Attributes, and strings: some tables name fields so."""
    constants = (node.value for node in nodes(module) if isinstance(node, ast.Constant))
    return attributes_read(module) | {value for value in constants if isinstance(value, str)}


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.treatment == ACTED_ON], ids=lambda row: row.name
)
def test_a_field_that_is_acted_on_is_read_where_the_page_says(row: Row) -> None:
    modules = [CODE / name for name in re.findall(r"`([\w/]+\.py)`", row.why)]
    assert modules
    for each in PAGE.covered(row):
        assert any(PYTHON_NAMES[each] in names_read(module) for module in modules), each


OF_OTHER_OBJECTS = {"namespaces"}
"""Names of ignored fields that something beside the API has, too: the config of a process."""


def test_a_field_that_is_ignored_is_read_nowhere() -> None:
    """As far as its name tells: of fields whose name no other type has."""
    named = Counter(PYTHON_NAMES.values())
    modules = [path for path in CODE.rglob("*.py") if "k8s" not in path.parts]
    read = set().union(*map(attributes_read, modules))
    ignored = {PYTHON_NAMES[each] for each in PAGE.treated(IGNORED)}
    alone = {name for name in ignored if named[name] == 1} - OF_OTHER_OBJECTS
    assert "scheduler_name" in alone
    assert alone & read == set()


RULE = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}


@pytest.mark.parametrize(
    ("name", "spec", "reason"),
    [
        ("PodSpec.runtimeClassName", {"runtimeClassName": "x"}, "RuntimeClass"),
        (
            "PodSecurityContext.supplementalGroupsPolicy",
            {"securityContext": {"supplementalGroupsPolicy": "Strict"}},
            "SupplementalGroupsPolicyNotSupported",
        ),
        (
            "ContainerRestartRule.action",
            {"containers": [{"name": "c", "restartPolicyRules": [RULE]}]},
            "PodFeatureUnsupported",
        ),
    ],
)
def test_a_pod_is_rejected_for_values_that_the_page_says_cannot_be(
    name: str, spec: dict[str, Any], reason: str
) -> None:
    rejection = make_admission()(make_pod(**spec), [])
    assert isinstance(rejection, Rejection)
    assert rejection.reason == reason
    (row,) = (row for row in ROWS if row.name == name)
    assert f"`{reason}`" in row.why


def of_volume(field: str) -> list[str]:
    return sorted(name for type_name, name in PAGE.treated(WAITS) if type_name == field)


async def problems_of(root: Path, spec: dict[str, Any]) -> str:
    """Why the volumes of a pod cannot be prepared."""
    volumes = local_volumes(PodFolders(root), lambda _: 1 << 20, privileged=False)
    with pytest.raises(VolumesNotReady) as caught:
        await volumes.prepare(make_pod(**spec))
    return str(caught.value)


def mounting(source: dict[str, Any]) -> dict[str, Any]:
    mount = {"name": "v", "mountPath": "/v"}
    return {
        "volumes": [{"name": "v", **source}],
        "containers": [{"name": "c", "volumeMounts": [mount]}],
    }


@pytest.mark.parametrize("field", of_volume("Volume"))
async def test_a_pod_waits_for_a_volume_that_there_is_no_plugin_for(
    field: str, tmp_path: Path
) -> None:
    found = await problems_of(tmp_path, mounting({field: {}}))
    words = f"no volume plugin matched: this kubelet has no volumes of the kind {field}"
    assert found == f'MountVolume.SetUp failed for volume "v" : {words}'


@pytest.mark.parametrize("field", of_volume("VolumeProjection"))
async def test_a_pod_waits_for_a_projection_that_is_not_there(field: str, tmp_path: Path) -> None:
    source: dict[str, Any] = {"projected": {"sources": [{field: {}}]}}
    assert field in await problems_of(tmp_path, mounting(source))


async def test_a_pod_waits_for_the_claim_of_a_device(tmp_path: Path) -> None:
    device = {"name": "v", "devicePath": "/dev/v"}
    spec = {
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
        "containers": [{"name": "c", "volumeDevices": [device]}],
    }
    assert "failed to fetch PVC" in await problems_of(tmp_path, spec)


def test_what_is_missing_is_named_among_what_is_not_there() -> None:
    missing = missing_capabilities()
    left = [row for row in ROWS if row.treatment == WAITS]
    assert [row.name for row in left if row.capability.lower() not in missing] == []
    without = [row for row in left if not row.capability]
    assert [row.name for row in without if "Go kubelet" not in row.why and row.field != "*"] == []
