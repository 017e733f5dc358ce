"""Settings that nothing acts on are named, all in one warning; and the tables that say which."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs
import pytest
import yaml
from attrs import evolve

from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.config.codec import ACTED_ON, field_at
from trio_kubelet.config.flag_table import COLLECTOR_FLAGS, FLAGS
from trio_kubelet.config.gates import KNOWN_GATES, Use, default_of, unheeded_gates
from trio_kubelet.config.model import NodeOptions
from trio_kubelet.config.parts import (
    FormatOptions,
    LoggingConfiguration,
    OutputRoutingOptions,
    VModuleItem,
)
from trio_kubelet.config.settings import ConfigurationError, load
from trio_kubelet.config.support import declared_fields, not_acted_on, support_of
from trio_kubelet.config.support_page import page
from trio_kubelet.k8s.quantity import Quantity
from trio_kubelet.node.profile import IMPLEMENTED_FEATURES

ROOT = Path(__file__).parents[3]
FACTS = ROOT / "tests" / "facts"
HEADER = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}

FIELDS = list(declared_fields(KubeletConfiguration()))
OPTIONS = {each.name: support_of(each) for each in attrs.fields(NodeOptions)}
DONE_WITH_WHEN_LOADED = {
    *("featureGates", "mergeDefaultEvictionSettings", "runOnce"),
    *("config", "config_dir"),
    *("image_credential_provider_config", "image_credential_provider_bin_dir"),
}
"""Fields and options that only the loading of the configuration reads.

`runOnce: true` is refused.
"""
DECIDED_BY_THE_CONFIGURATION = {
    *("GracefulNodeShutdown", "GracefulNodeShutdownBasedOnPodPriority"),
    *("CPUManagerPolicyAlphaOptions", "CPUManagerPolicyBetaOptions"),
    *("KubeletCrashLoopBackOffMax", "LoggingAlphaOptions", "RotateKubeletServerCertificate"),
    "KubeletServiceAccountTokenForCredentialProviders",
    "TopologyManagerPolicyOptions",
}
"""Gates whose whole effect is what the configuration may say."""


def rows(name: str) -> list[list[str]]:
    return [line.split("\t") for line in (FACTS / name).read_text().splitlines()]


def sources() -> Iterator[ast.AST]:
    """What the agent is made of, without its configuration."""
    folder = ROOT / "trio_kubelet"
    for path in folder.rglob("*.py"):
        if folder / "config" not in path.parents:
            yield from ast.walk(ast.parse(path.read_text()))


def reads() -> Mapping[str, set[str]]:
    """What is read of each of `configuration`, `options` and their parts, by attribute."""
    found: dict[str, set[str]] = {}
    for node in sources():
        if isinstance(node, ast.Attribute):
            base = node.value
            name = getattr(base, "id", "") or getattr(base, "attr", "")
            found.setdefault(name.strip("_"), set()).add(node.attr)
    return found


def gates_asked_for() -> Iterator[str]:
    """The names in each `gates["NAME"]` of the agent's code."""
    for node in sources():
        if isinstance(node, ast.Subscript) and "gates" in ast.dump(node.value):
            asked = node.slice
            if isinstance(asked, ast.Constant) and isinstance(asked.value, str):
                yield asked.value


# What is said


def test_the_defaults_leave_nothing_to_tell() -> None:
    assert not_acted_on(KubeletConfiguration(), NodeOptions()) == ()


def test_what_is_acted_upon_is_not_named() -> None:
    configuration = evolve(KubeletConfiguration(), max_pods=5, static_pod_path="/m", port=10250)
    assert not_acted_on(configuration, NodeOptions(root_dir="/srv", hollow=True)) == ()


def test_a_setting_in_a_part_is_named_by_its_path() -> None:
    configuration = evolve(
        KubeletConfiguration(),
        logging=LoggingConfiguration(
            verbosity=4,
            vmodule=(VModuleItem(file_pattern="a"),),
            options=FormatOptions(text=OutputRoutingOptions(info_buffer_size=Quantity("1k"))),
        ),
        system_reserved={"cpu": "1"},
        system_reserved_cgroup="/system",
        eviction_hard={},
    )
    assert set(not_acted_on(configuration, NodeOptions())) == {
        "logging.options.text.infoBufferSize",
    }


def test_thresholds_that_have_no_effect_are_named_by_their_signal() -> None:
    configuration = evolve(
        KubeletConfiguration(),
        eviction_soft={"containerfs.available": "10%", "memory.available": "1Gi"},
        eviction_soft_grace_period={"containerfs.available": "1m", "memory.available": "1m"},
    )
    assert set(not_acted_on(configuration, NodeOptions())) == {
        "evictionSoft.containerfs.available",
        "evictionSoftGracePeriod.containerfs.available",
    }


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("enableServer: true", []),
        ("makeIPTablesUtilChains: true", []),
        ("makeIPTablesUtilChains: false", []),
        ("makeIPTablesUtilChains: null", []),
        ("tlsMinVersion: VersionTLS11", ["tlsMinVersion"]),
        ("tlsMinVersion: VersionTLS13", []),
        ("tlsCurvePreferences: [29]", []),
        ("tlsCurvePreferences: [4588]", ["tlsCurvePreferences"]),
        ("tlsCurvePreferences: [23, 29]", ["tlsCurvePreferences"]),
        ("contentType: application/json", []),
        ("contentType: application/vnd.kubernetes.protobuf", ["contentType"]),
        ("maxPods: 7", []),
        ("enableContentionProfiling: false", []),
        ("enableContentionProfiling: true", ["enableContentionProfiling"]),
        ("{enforceNodeAllocatable: [pods, kube-reserved], kubeReservedCgroup: /kube}", []),
        ("{cgroupRoot: /pods, memorySwap: {swapBehavior: LimitedSwap}}", []),
        ("featureGates: {EventedPLEG: false, StatefulSetSemanticRevisionComparison: false}", []),
        (
            "featureGates: {GracefulNodeShutdown: false, "
            "GracefulNodeShutdownBasedOnPodPriority: false, WindowsGracefulNodeShutdown: false}",
            [],
        ),
        ("featureGates: {EnvFiles: true}", []),
        ("featureGates: {EnvFiles: false}", ["featureGates.EnvFiles"]),
        (
            "featureGates: {NativeHistograms: true, CRIListStreaming: false}",
            ["featureGates.NativeHistograms"],
        ),
        ("featureGates: {AtomicFIFO: false, WinDSR: true, KMSv1: true}", []),
    ],
)
def test_a_file_is_told_of_what_it_asks_for_in_vain(
    tmp_path: Path, text: str, named: list[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({**HEADER, **yaml.safe_load(text)}))
    assert sorted(names_in_warning(["--config", str(file)])) == sorted(named)


def names_in_warning(arguments: list[str]) -> list[str]:
    warnings = [line for line in load(arguments).warnings if "does not act on" in line]
    assert len(warnings) <= 1
    return warnings[0].partition(": ")[2].split(", ") if warnings else []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--make-iptables-util-chains"], []),
        (["--make-iptables-util-chains=false"], []),
        (
            ["--feature-gates=NativeHistograms=true,EnvFiles=true"],
            ["featureGates.NativeHistograms"],
        ),
        (["--max-pods=5"], []),
    ],
)
def test_flags_are_told_of_as_fields_are(arguments: list[str], named: list[str]) -> None:
    assert names_in_warning(arguments) == named


def test_a_drop_in_may_take_back_what_the_file_asks_for(tmp_path: Path) -> None:
    file, folder = tmp_path / "config.yaml", tmp_path / "conf.d"
    file.write_text(yaml.safe_dump({**HEADER, "enableContentionProfiling": True}))
    folder.mkdir()
    arguments = [f"--config={file}", f"--config-dir={folder}"]
    assert names_in_warning(arguments) == ["enableContentionProfiling"]
    (folder / "10.conf").write_text(yaml.safe_dump({**HEADER, "enableContentionProfiling": None}))
    assert names_in_warning(arguments) == []


def test_a_collective_gate_names_what_it_changes_to_no_effect() -> None:
    alpha = names_in_warning(["--feature-gates=AllAlpha=true,CSIVolumeHealth=false"])
    assert "featureGates.InPlacePodVerticalScalingExclusiveCPUs" in alpha
    assert "featureGates.CSIVolumeHealth" not in alpha
    assert "featureGates.MemoryQoS" not in alpha
    assert "featureGates.HPAScaleToZero" not in alpha
    with pytest.raises(ConfigurationError, match="GracefulNodeShutdown"):
        load(["--feature-gates=GracefulNodeShutdown=false"])
    assert "featureGates.ComponentFlagz" not in names_in_warning(["--feature-gates=AllBeta=true"])


FIXED = {name: gate.acts_as for name, gate in KNOWN_GATES.items() if gate.acts_as is not None}


@pytest.mark.parametrize("name", list(FIXED))
@pytest.mark.parametrize("value", [True, False])
def test_a_gate_is_named_when_it_is_set_to_other_than_what_is_done(name: str, value: bool) -> None:
    assert (name in unheeded_gates({name: value})) is (
        value is not FIXED[name] and not locked_against(name, value)
    )


def locked_against(name: str, value: bool) -> bool:
    """True if the request is refused: it is a problem then, and no warning."""
    return KNOWN_GATES[name].locked and KNOWN_GATES[name].default is not value


def test_flags_are_named_with_their_dashes() -> None:
    options = NodeOptions(
        experimental_mounter_path="/k", cadvisor={"storage-driver-password": "hunter2"}
    )
    assert not_acted_on(KubeletConfiguration(), options) == (
        "--experimental-mounter-path",
        "--storage-driver-password",
    )


def test_there_is_one_warning_for_all_of_them_without_values() -> None:
    arguments = [
        "--experimental-mounter-path=/k",
        "--storage-driver-password=hunter2",
        "--contention-profiling",
        "--feature-gates=NativeHistograms=true,NodeLogQuery=true",
    ]
    assert names_in_warning(arguments) == [
        "enableContentionProfiling",
        "featureGates.NativeHistograms",
        "--experimental-mounter-path",
        "--storage-driver-password",
    ]
    assert not any("hunter2" in line for line in load(arguments).warnings)


# The declarations and the code


@pytest.mark.parametrize("row", rows("kubelet-flags-1.36.tsv")[1:], ids=lambda row: row[0])
def test_every_flag_sets_what_says_why_it_does_nothing(row: list[str]) -> None:
    flag = FLAGS[row[0]]
    if flag.field:
        assert any(flag.field.startswith(each.path) for each in FIELDS)
    elif flag.option:
        assert flag.option == "help" or flag.option in OPTIONS
    else:
        assert flag in COLLECTOR_FLAGS


def attribute_of(path: str) -> tuple[str, str]:
    """On what a field is read, and by which attribute."""
    value: object = KubeletConfiguration()
    base, attribute = "", "configuration"
    for name in path.split("."):
        base, attribute = attribute, field_at(type(value), name)
        value = getattr(value, attribute)
    return base, attribute


def is_read(path: str, found: Mapping[str, set[str]]) -> bool:
    base, attribute = attribute_of(path)
    # A part may have been given a name of its own before it is read: `options.verbosity`.
    return any(attribute in found.get(name, ()) for name in (base, "configuration", "options"))


def test_a_field_that_is_acted_on_is_read_and_no_other() -> None:
    found = reads()
    for each in FIELDS:
        if each.path not in DONE_WITH_WHEN_LOADED:
            done = each.support == ACTED_ON or each.support.suffices is not None
            assert is_read(each.path, found) is done, each.path


def test_an_option_that_is_acted_on_is_read_and_no_other() -> None:
    found = reads()["options"]
    for name, support in OPTIONS.items():
        assert (name in found | DONE_WITH_WHEN_LOADED) is (support == ACTED_ON), name


def test_a_gate_that_is_asked_for_is_asked_for_and_no_other() -> None:
    asked_for = set(gates_asked_for()) | IMPLEMENTED_FEATURES | DECIDED_BY_THE_CONFIGURATION
    assert asked_for == {name for name, gate in KNOWN_GATES.items() if gate.use is Use.ASKED}


# The page


def test_the_page_in_the_documentation_is_that_of_the_tables() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == page()


def test_what_is_not_done_has_its_reason_on_the_page() -> None:
    lines = page().splitlines()
    explained = [(each.path, each.support.reason) for each in FIELDS]
    explained += [(name, gate.reason) for name, gate in KNOWN_GATES.items()]
    for name, why in explained:
        listed = any(line.endswith(f"| {why} |") and f"`{name}`" in line for line in lines)
        assert listed is bool(why), name


def test_every_gate_that_is_as_if_off_says_why() -> None:
    for name, gate in KNOWN_GATES.items():
        assert bool(gate.reason) is (gate.use is Use.AS_IF_OFF), name


def test_a_gate_that_is_on_by_default_and_off_here_is_bold_on_the_page() -> None:
    for name, value in FIXED.items():
        assert (f"**`{name}`**" in page()) is (default_of(name) is not value)
