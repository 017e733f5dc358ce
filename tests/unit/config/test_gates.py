"""Feature gates: what may be asked for, and what follows from it."""

import pytest

from trio_kubelet.config.gates import (
    DEPENDENCIES,
    KNOWN_GATES,
    FeatureGates,
    Stage,
    resolve,
)


def test_without_a_request_every_gate_has_its_default() -> None:
    resolution = resolve({})
    assert resolution.gates == FeatureGates()
    assert resolution.problems == resolution.warnings == ()
    assert all(
        resolution.gates[name] == gate.default
        for name, gate in KNOWN_GATES.items()
        if name != "EventedPLEG"
    )


def test_runtime_events_are_on_and_can_be_switched_off() -> None:
    assert resolve({}).gates["EventedPLEG"]
    assert not resolve({"EventedPLEG": False}).gates["EventedPLEG"]
    assert not resolve({"AllAlpha": False}).gates["EventedPLEG"]


def test_an_unknown_gate_is_an_error() -> None:
    assert resolve({"Fly": True}).problems == ("unrecognized feature gate: Fly",)


def test_a_locked_gate_keeps_its_value() -> None:
    resolution = resolve({"NodeSwap": False})
    assert resolution.problems == (
        "cannot set feature gate NodeSwap to false, feature is locked to true",
    )
    assert resolution.gates["NodeSwap"]


@pytest.mark.parametrize(
    ("name", "value", "stage"),
    [("NodeSwap", True, "GA"), ("KubeletPSI", False, "GA"), ("KMSv1", True, "deprecated")],
)
def test_a_gate_that_will_go_away_is_a_warning(name: str, value: bool, stage: str) -> None:
    resolution = resolve({name: value})
    assert resolution.problems == ()
    assert resolution.gates[name] == value
    (warning,) = resolution.warnings
    assert warning.startswith(f"Setting {stage} feature gate {name}={str(value).lower()}.")


@pytest.mark.parametrize(
    ("collective", "stage"), [("AllAlpha", Stage.ALPHA), ("AllBeta", Stage.BETA)]
)
@pytest.mark.parametrize("value", [True, False])
def test_a_collective_gate_sets_its_stage_and_nothing_else(
    collective: str, stage: Stage, value: bool
) -> None:
    resolution = resolve({collective: value})
    assert resolution.problems == resolution.warnings == ()
    defaults = FeatureGates()
    for name, gate in KNOWN_GATES.items():
        expected = value if gate.stage is stage else defaults[name]
        assert resolution.gates[name] == expected, name


def test_a_gate_s_own_value_outweighs_the_collective_one() -> None:
    gates = resolve({"AllAlpha": True, "QOSReserved": False}).gates
    assert not gates["QOSReserved"]
    assert gates["CSIVolumeHealth"]


def test_a_gate_is_refused_without_those_it_needs() -> None:
    assert resolve({"ClusterTrustBundleProjection": True}).problems == (
        "ClusterTrustBundleProjection is enabled, but depends on features that are disabled: "
        "[ClusterTrustBundle]",
    )
    both = {"ClusterTrustBundleProjection": True, "ClusterTrustBundle": True}
    assert resolve(both).problems == ()


def test_dependencies_are_known_gates() -> None:
    assert {*DEPENDENCIES, *(name for names in DEPENDENCIES.values() for name in names)} <= set(
        KNOWN_GATES
    )


def test_asking_for_a_gate_that_does_not_exist_is_a_bug() -> None:
    with pytest.raises(KeyError):
        FeatureGates()["Fly"]
