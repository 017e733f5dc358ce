"""Chooses a container's behaviour: what the pod's annotations say, else what its command would do.

The annotation `hollow.trio-kubelet.dev/behaviour.<container>` speaks for one container,
`hollow.trio-kubelet.dev/behaviour` for all of the pod. Its value is JSON or YAML with the fields
of `Behaviour` in camelCase, or a list with one such mapping for each attempt:

    hollow.trio-kubelet.dev/behaviour: '[{runSeconds: 2, exitCode: 1}, {runSeconds: null}]'
"""

from collections.abc import Callable, Mapping
from typing import Any

import yaml
from attrs import fields
from cattrs import BaseValidationError, Converter, transform_error
from cattrs.gen import make_dict_structure_fn, override

from trio_kubelet.hollow.behaviour import Behaviour, ExecResult, Invocation, LogLine
from trio_kubelet.hollow.shell import behaviour_of_command

BEHAVIOUR_ANNOTATION = "hollow.trio-kubelet.dev/behaviour"


class BehaviourError(ValueError):
    """The behaviour annotation cannot be read; the text says why."""


def behaviour_of(invocation: Invocation) -> Behaviour:
    """The behaviour that the pod's annotations ask for, else what its command would do.

    Raises `BehaviourError` for an annotation that is not a mapping of known fields.
    """
    for key in (f"{BEHAVIOUR_ANNOTATION}.{invocation.name}", BEHAVIOUR_ANNOTATION):
        if text := invocation.pod_annotations.get(key):
            return parse_behaviour(text, invocation.attempt)
    return behaviour_of_command(
        (*invocation.command, *invocation.args), invocation.owns_pid_namespace
    )


def parse_behaviour(text: str, attempt: int = 0) -> Behaviour:
    """Read a behaviour from JSON or YAML with the field names in camelCase.

    A list gives one behaviour for each attempt; its last entry repeats. An entry of `logLines`
    may be a mere text. Raises `BehaviourError`.
    """
    try:
        value = yaml.safe_load(text)
        if isinstance(value, list) and value:
            value = value[min(attempt, len(value) - 1)]
        return _CONVERTER.structure(value, Behaviour)
    except yaml.YAMLError as error:
        raise BehaviourError(f"not YAML: {error}") from error
    except BaseValidationError as error:
        raise BehaviourError("; ".join(transform_error(error, "behaviour"))) from error
    except TypeError as error:
        raise BehaviourError(str(error)) from error


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _mapping_hook(kind: type[Any]) -> Callable[[Any, Any], Any]:
    names: dict[str, Any] = {
        attribute.name: override(rename=_camel_case(attribute.name)) for attribute in fields(kind)
    }
    hook = make_dict_structure_fn(kind, _CONVERTER, **names)

    def structure(value: Any, target: Any) -> Any:
        if not isinstance(value, Mapping):
            raise TypeError(f"expected a mapping, got {value!r}")
        return hook(value, target)

    return structure


_CONVERTER = Converter(forbid_extra_keys=True)
_line_from_mapping = _mapping_hook(LogLine)
_CONVERTER.register_structure_hook(
    LogLine,
    lambda value, kind: (
        LogLine(text=value) if isinstance(value, str) else _line_from_mapping(value, kind)
    ),
)
_CONVERTER.register_structure_hook(ExecResult, _mapping_hook(ExecResult))
_CONVERTER.register_structure_hook(Behaviour, _mapping_hook(Behaviour))
