"""The changes between two configurations, and what each of them needs to take effect; pure.

A running agent takes some fields over when it reads its files anew (SIGHUP): those in `LIVE`, each
of which a part of the agent follows, or reads whenever it needs it. All others need a restart, some
of them of a node without pods, as what pods were made with would not fit any more.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from attrs import evolve, frozen

from trio_kubelet.config.codec import field_at, to_wire
from trio_kubelet.config.model import KubeletConfiguration
from trio_kubelet.config.support import declared_fields

T = TypeVar("T")

LIVE = frozenset(
    {
        "containerLogMaxFiles",
        "containerLogMaxSize",
        "containerLogMaxWorkers",
        "containerLogMonitorInterval",
        "crashLoopBackOff.maxContainerRestartPeriod",
        "evictionHard",
        "evictionMaxPodGracePeriod",
        "evictionMinimumReclaim",
        "evictionPressureTransitionPeriod",
        "evictionSoft",
        "evictionSoftGracePeriod",
        "fileCheckFrequency",
        "httpCheckFrequency",
        "imageGCHighThresholdPercent",
        "imageGCLowThresholdPercent",
        "imageMaximumGCAge",
        "imageMinimumGCAge",
        "logging.verbosity",
        "logging.vmodule",
        "maxParallelImagePulls",
        "mergeDefaultEvictionSettings",
        "nodeStatusReportFrequency",
        "nodeStatusUpdateFrequency",
        "registryBurst",
        "registryPullQPS",
        "serializeImagePulls",
        "staticPodPath",
        "staticPodURL",
        "staticPodURLHeader",
        "streamingConnectionIdleTimeout",
    }
)
DRAIN = frozenset(
    {
        "cgroupDriver",
        "cgroupRoot",
        "cgroupsPerQOS",
        "containerRuntimeEndpoint",
        "cpuManagerPolicy",
        "memoryManagerPolicy",
        "podLogsDir",
        "reservedMemory",
        "userNamespaces",
        "userNamespaces.idsPerPod",
    }
)
"""Fields that name where pods and their files are, or how their resources were handed out."""

SECRET = frozenset({"staticPodURL", "staticPodURLHeader"})
HIDDEN = "<hidden>"
UNSET = "unset"


class Effect(StrEnum):
    """The step that brings a changed field into force."""

    LIVE = "live"
    RESTART = "restart"
    DRAIN = "drain first"


@frozen(kw_only=True)
class Change:
    """A field that differs, by its path in the API (`logging.verbosity`); the values as text."""

    path: str
    before: str
    after: str
    effect: Effect

    def __str__(self) -> str:
        return f"{self.path}: {self.before} -> {self.after}"


def changes(running: KubeletConfiguration, new: KubeletConfiguration) -> tuple[Change, ...]:
    """All fields in which two configurations differ, in the order of the API."""
    before, after = to_wire(running), to_wire(new)
    return tuple(
        Change(
            path=path,
            before=_shown(path, before),
            after=_shown(path, after),
            effect=effect_of(path),
        )
        for path in _paths(running, new)
        if _value_at(before, path) != _value_at(after, path)
    )


def effect_of(path: str) -> Effect:
    """The step that brings a change of a field into force."""
    if path in LIVE:
        return Effect.LIVE
    return Effect.DRAIN if path in DRAIN else Effect.RESTART


def with_fields(running: T, new: T, paths: Iterable[str]) -> T:
    """A configuration with some of its fields, by their paths, as in another one."""
    for path in paths:
        head, _, rest = path.partition(".")
        name = field_at(type(running), head)
        value = getattr(new, name)
        if rest:
            value = with_fields(getattr(running, name), value, (rest,))
        running = evolve(running, **{name: value})  # type: ignore[misc]
    return running


def _paths(*configurations: KubeletConfiguration) -> Iterator[str]:
    """The paths of all fields; those of the parts in place of a part that one of them has."""
    paths = dict.fromkeys(field.path for each in configurations for field in declared_fields(each))
    parts = {path.rpartition(".")[0] for path in paths}
    return (path for path in paths if path not in parts)


def _value_at(wire: Any, path: str) -> Any:
    for name in path.split("."):
        wire = wire.get(name) if isinstance(wire, Mapping) else None
    return wire


def _shown(path: str, wire: Mapping[str, Any]) -> str:
    value = _value_at(wire, path)
    if value is None:
        return UNSET
    if path in SECRET:
        return HIDDEN
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
