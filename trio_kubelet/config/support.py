"""The settings that this agent does not act on yet: no setting is ignored silently.

`not_acted_on` names what was asked for and does not happen: fields and flags that were given
another value than their default and that no part of the agent acts on, fields and gates that were
set to other than what the agent does anyway. The tables are in `field_support.py` and
`gate_support.py`. What the defaults promise and the agent lacks is in docs/settings.md, and not
named at each start.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import attrs

from trio_kubelet.config.codec import to_wire
from trio_kubelet.config.eviction import IGNORED_SIGNALS
from trio_kubelet.config.field_support import (
    ACTED_ON,
    ENDS_WITH_LOADING,
    FIXED,
    OPTIONS_ACTED_ON,
    PARTLY,
    WITHOUT_EFFECT_ANYWHERE,
)
from trio_kubelet.config.flag_table import OPTION_FLAGS
from trio_kubelet.config.gate_support import unheeded_gates
from trio_kubelet.config.model import KubeletConfiguration
from trio_kubelet.config.options import NodeOptions

_HEEDED = ACTED_ON | ENDS_WITH_LOADING | WITHOUT_EFFECT_ANYWHERE | FIXED.keys()
_USER_MAPS = frozenset({"evictionHard"})
_THRESHOLDS = ("evictionHard", "evictionSoft", "evictionSoftGracePeriod", "evictionMinimumReclaim")


def not_acted_on(
    configuration: KubeletConfiguration, options: NodeOptions, given: Collection[str] = ()
) -> tuple[str, ...]:
    """The settings without effect: fields by path, gates, flags with their dashes.

    `given` are the paths of the fields that a file or a flag sets, whatever their value.
    """
    wire = to_wire(configuration)
    return (
        *(
            path
            for path in _changed(wire, to_wire(KubeletConfiguration()), "")
            if _lacks(path, wire)
        ),
        *(path for path, value in FIXED.items() if path in given and wire.get(path) != value),
        *_ignored_thresholds(wire),
        *(f"featureGates.{name}" for name in unheeded_gates(configuration.feature_gates)),
        *_ignored_flags(options),
    )


def _ignored_thresholds(wire: Mapping[str, Any]) -> Iterator[str]:
    """Thresholds of signals that have no effect, by the field and the signal."""
    for field in _THRESHOLDS:
        for signal in IGNORED_SIGNALS:
            if signal in wire.get(field, ()):
                yield f"{field}.{signal}"


def given_fields(content: Mapping[str, Any]) -> frozenset[str]:
    """The top-level fields that a file sets."""
    return frozenset(name for name, value in content.items() if value is not None)


def _lacks(path: str, wire: Mapping[str, Any]) -> bool:
    if path in PARTLY:
        _, is_enough = PARTLY[path]
        return not is_enough(wire.get(path, ()))
    return not _covered(path)


def _changed(value: Any, default: Any, path: str) -> Iterator[str]:
    """Paths of the fields whose value is not the default; a map of the user's is one field."""
    if value == default:
        return
    if isinstance(value, dict) and isinstance(default, dict) and path not in _USER_MAPS:
        for name in {**default, **value}:
            below = f"{path}.{name}" if path else name
            yield from _changed(value.get(name), default.get(name), below)
        return
    yield path


def _covered(path: str) -> bool:
    parts = path.split(".")
    return any(".".join(parts[:count]) in _HEEDED for count in range(1, len(parts) + 1))


def _ignored_flags(options: NodeOptions) -> tuple[str, ...]:
    defaults = NodeOptions()
    flag_names = {flag.option: flag.name for flag in OPTION_FLAGS}
    attributes = (
        attribute.name
        for attribute in attrs.fields(NodeOptions)
        if attribute.name not in OPTIONS_ACTED_ON and attribute.name != "cadvisor"
    )
    ignored = (
        f"--{flag_names[name]}"
        for name in attributes
        if getattr(options, name) != getattr(defaults, name)
    )
    return (*ignored, *(f"--{name}" for name in options.cadvisor))
