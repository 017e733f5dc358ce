"""The text of `kubelet --help`: every flag with its type, its default and what it sets."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from trio_kubelet.config.codec import to_wire
from trio_kubelet.config.durations import format_duration
from trio_kubelet.config.flag_table import FLAGS, SHORTHANDS, Flag
from trio_kubelet.config.model import KubeletConfiguration
from trio_kubelet.config.options import NodeOptions
from trio_kubelet.foreign_text import MASKED, without_passwords

SECRET_FLAGS = frozenset({"manifest-url-header", "storage-driver-password"})
_UNINTERESTING = ("", "0", "0s", "false", "[]", "None")


def flag_help() -> str:
    """One line a flag, sorted by name."""
    short = {name: letter for letter, name in SHORTHANDS.items()}
    heads = {
        name: f"{f'-{short[name]},' if name in short else '   '} --{name} {_type(flag)}".rstrip()
        for name, flag in sorted(FLAGS.items())
    }
    width = min(max(map(len, heads.values())), 52)
    return "\n".join(f"  {head:<{width}}  {_remarks(FLAGS[name])}" for name, head in heads.items())


def default_text(flag: Flag) -> str:
    """The default of a flag as a person would type it, "" where there is none worth a word."""
    return flag.default or _value(flag, to_wire(KubeletConfiguration()), NodeOptions())


def flag_values(configuration: KubeletConfiguration, options: NodeOptions) -> Mapping[str, str]:
    """The value in force for each flag, whether the command line or a file says it; no secret."""
    wire = to_wire(configuration)
    values = {}
    for name, flag in FLAGS.items():
        given = options.cadvisor.get(name)
        text = _value(flag, wire, options) if given is None else _text(given)
        text = text or flag.default
        values[name] = MASKED if text and name in SECRET_FLAGS else without_passwords(text)
    return values


def _value(flag: Flag, wire: Mapping[str, Any], options: NodeOptions) -> str:
    if flag.option:
        return _text(getattr(options, flag.option, None))
    value: Any = wire if flag.field else None
    for name in filter(None, flag.field.split(".")):
        value = value.get(name) if value else None
    return _text(value)


def _type(flag: Flag) -> str:
    return (
        "" if flag.kind.alone == "true" and flag.kind.type_name == "bool" else flag.kind.type_name
    )


def _remarks(flag: Flag) -> str:
    default = default_text(flag)
    remarks = [flag.help or "Read for compatibility, without effect."]
    if default not in _UNINTERESTING:
        remarks.append(f"(default {default})")
    if flag.deprecated:
        remarks.append("(DEPRECATED)")
    return " ".join(remarks)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(str, value))}]"
    if isinstance(value, dict):
        return ",".join(f"{key}={item}" for key, item in value.items())
    return "" if value is None else str(value)
