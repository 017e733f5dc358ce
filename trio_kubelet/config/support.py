"""The settings that this agent does not act on: no setting is ignored silently.

Each field, option and gate says where it is declared why that is so. `not_acted_on` names what
was asked for and does not happen: fields and flags that were given another value than their
default and that no part of the agent acts on, fields and gates that were set to other than what
the agent does anyway. What the defaults promise and the agent lacks is in docs/settings.md, and
not named at each start.
"""

from collections.abc import Collection, Iterator
from typing import Any

import attrs
from attrs import frozen

from trio_kubelet.config.codec import ACTED_ON, Support, api_field_of
from trio_kubelet.config.eviction import IGNORED_SIGNALS
from trio_kubelet.config.flag_table import OPTION_FLAGS
from trio_kubelet.config.gates import unheeded_gates
from trio_kubelet.config.model import KubeletConfiguration, NodeOptions

_THRESHOLDS = ("evictionHard", "evictionSoft", "evictionSoftGracePeriod", "evictionMinimumReclaim")


@frozen
class DeclaredField:
    """A field of the configuration with its place, its support and its value."""

    path: str
    """Its name in the API, behind those of the parts that it is in: `logging.vmodule`."""
    support: Support
    value: Any
    default: Any

    def lacks_support(self, set_fields: Collection[str]) -> bool:
        """True if the value asks for something that does not happen."""
        if self.support.acts_as_with is not None:
            return self.path in set_fields and self.value != self.support.acts_as_with
        if not self.support.reason or self.value == self.default:
            return False
        return self.support.suffices is None or not self.support.suffices(self.value)


def declared_fields(value: Any, path: str = "") -> Iterator[DeclaredField]:
    """The fields of a configuration; in place of a part that has fields of its own, those."""
    default = type(value)()
    for attribute in attrs.fields(type(value)):
        api_field = api_field_of(attribute)
        member = getattr(value, attribute.name)
        if attrs.has(type(member)) and api_field.support == ACTED_ON:
            yield from declared_fields(member, f"{path}{api_field.name}.")
        else:
            yield DeclaredField(
                f"{path}{api_field.name}",
                api_field.support,
                member,
                getattr(default, attribute.name),
            )


def support_of(attribute: "attrs.Attribute[Any]") -> Support:
    """The support of an attribute of `NodeOptions`."""
    support: Support = attribute.metadata.get(Support, ACTED_ON)
    return support


def not_acted_on(
    configuration: KubeletConfiguration, options: NodeOptions, set_fields: Collection[str] = ()
) -> tuple[str, ...]:
    """The settings without effect: fields by path, gates, flags with their dashes.

    `set_fields` are the paths of the fields that a file or a flag sets, whatever their value.
    """
    return (
        *(each.path for each in declared_fields(configuration) if each.lacks_support(set_fields)),
        *_ignored_thresholds(configuration),
        *(f"featureGates.{name}" for name in unheeded_gates(configuration.feature_gates)),
        *_ignored_flags(options),
    )


def _ignored_thresholds(configuration: KubeletConfiguration) -> Iterator[str]:
    """Thresholds of signals that have no effect, by the field and the signal."""
    for each in declared_fields(configuration):
        if each.path in _THRESHOLDS:
            yield from (
                f"{each.path}.{signal}" for signal in IGNORED_SIGNALS if signal in each.value
            )


def _ignored_flags(options: NodeOptions) -> Iterator[str]:
    defaults = NodeOptions()
    flag_names = {flag.option: flag.name for flag in OPTION_FLAGS}
    for attribute in attrs.fields(NodeOptions):
        value = getattr(options, attribute.name)
        if not support_of(attribute).reason or value == getattr(defaults, attribute.name):
            continue
        if attribute.name == "cadvisor":
            yield from (f"--{name}" for name in value)
        else:
            yield f"--{flag_names[attribute.name]}"
