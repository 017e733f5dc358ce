"""Feature gates: which are known, what was asked for, what holds.

`resolve` turns the requested values (file and flags, merged) into `FeatureGates`, the value that
the agent asks `gates.enabled("EventedPLEG")`. As in Kubernetes an unknown gate is an error, as is
switching a locked one; a GA or deprecated gate is accepted with a warning, because it will be
unknown one day. `AllAlpha` and `AllBeta` set every gate of their stage that is not named itself.
"""

from collections.abc import Iterator, Mapping

from attrs import field, frozen

from trio_kubelet.config.gate_table import KNOWN_GATES, Stage

COLLECTIVE_GATES: Mapping[str, Stage] = {"AllAlpha": Stage.ALPHA, "AllBeta": Stage.BETA}

OWN_DEFAULTS: Mapping[str, bool] = {
    # The agent watches the runtime's events, falls back by itself where they are not to be
    # trusted, and goes on relisting: it needs no operator to opt in.
    "EventedPLEG": True,
}
"""Where this agent's default is not that of the Go kubelet."""

DEPENDENCIES: Mapping[str, tuple[str, ...]] = {
    "ClusterTrustBundleProjection": ("ClusterTrustBundle",),
    "DRADeviceBindingConditions": ("DRAResourceClaimDeviceStatus",),
    "DRADeviceTaintRules": ("DRADeviceTaints",),
    "DeclarativeValidationTakeover": ("DeclarativeValidation",),
    "GangScheduling": ("GenericWorkload",),
    "GracefulNodeShutdownBasedOnPodPriority": ("GracefulNodeShutdown",),
    "ImageVolumeWithDigest": ("ImageVolume",),
    "InPlacePodLevelResourcesVerticalScaling": ("PodLevelResources", "NodeDeclaredFeatures"),
    "MatchLabelKeysInPodTopologySpreadSelectorMerge": ("MatchLabelKeysInPodTopologySpread",),
    "ProcMountType": ("UserNamespacesSupport",),
    "RestartAllContainersOnContainerExits": ("ContainerRestartRules", "NodeDeclaredFeatures"),
    "StorageVersionAPI": ("APIServerIdentity",),
    "UnknownVersionInteroperabilityProxy": ("APIServerIdentity",),
    "UserNamespacesHostNetworkSupport": ("UserNamespacesSupport",),
    "WindowsGracefulNodeShutdown": ("GracefulNodeShutdown",),
}
"""A gate may be on only while those it needs are on; locked gates are left out."""


@frozen
class FeatureGates(Mapping[str, bool]):
    """The value of each known gate; as a mapping it has all of them, the collective ones too."""

    _values: Mapping[str, bool] = field(factory=lambda: _effective({}))

    def enabled(self, name: str) -> bool:
        """True if the feature is on. An unknown name is a bug of the caller: KeyError."""
        return self._values[name]

    def __getitem__(self, name: str) -> bool:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


@frozen
class Resolution:
    """The gates that hold, and what is to be said about the request."""

    gates: FeatureGates
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def resolve(requested: Mapping[str, bool]) -> Resolution:
    """The gates that follow from the `requested` ones; refused ones keep their default."""
    problems = tuple(filter(None, (_problem(*item) for item in sorted(requested.items()))))
    accepted = {name: value for name, value in requested.items() if not _problem(name, value)}
    gates = FeatureGates(_effective(accepted))
    return Resolution(
        gates,
        problems + _unmet_dependencies(gates),
        tuple(filter(None, (_warning(*item) for item in sorted(accepted.items())))),
    )


def default_of(name: str) -> bool:
    """The value of a known gate that nobody set. KeyError for an unknown one."""
    if name in COLLECTIVE_GATES:
        return False
    return OWN_DEFAULTS.get(name, KNOWN_GATES[name].default)


def _effective(accepted: Mapping[str, bool]) -> dict[str, bool]:
    values = {name: default_of(name) for name in (*COLLECTIVE_GATES, *KNOWN_GATES)}
    for collective, stage in COLLECTIVE_GATES.items():
        if collective in accepted:
            members = (name for name, gate in KNOWN_GATES.items() if gate.stage is stage)
            values.update(dict.fromkeys(members, accepted[collective]))
    values.update(accepted)
    return values


def _problem(name: str, value: bool) -> str:
    if name in COLLECTIVE_GATES:
        return ""
    gate = KNOWN_GATES.get(name)
    if gate is None:
        return f"unrecognized feature gate: {name}"
    if gate.locked and value != gate.default:
        return (
            f"cannot set feature gate {name} to {_go(value)}, "
            f"feature is locked to {_go(gate.default)}"
        )
    return ""


def _warning(name: str, value: bool) -> str:
    gate = KNOWN_GATES.get(name)
    if gate is None or gate.stage not in (Stage.GA, Stage.DEPRECATED):
        return ""
    stage = "GA" if gate.stage is Stage.GA else "deprecated"
    return (
        f"Setting {stage} feature gate {name}={_go(value)}. It will be removed in a future release."
    )


def _unmet_dependencies(gates: FeatureGates) -> tuple[str, ...]:
    return tuple(
        f"{name} is enabled, but depends on features that are disabled: [{' '.join(missing)}]"
        for name, needed in DEPENDENCIES.items()
        if gates.enabled(name)
        and (missing := [other for other in needed if not gates.enabled(other)])
    )


def _go(value: bool) -> str:
    return "true" if value else "false"
