"""Reads a command line as the Go kubelet does, lays it over the configuration, and shows it.

The grammar is pflag's: `--flag=value` or `--flag value`, booleans also alone, `_` for `-`,
`-v 4`, `-v4` or `-v=4`, nothing after `--`. A flag outweighs the file and the drop-ins; feature
gates are merged with theirs. All mistakes are reported, not only the first. The text of
`kubelet --help` has every flag with its type, its default and what it sets.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import attrs
from attrs import evolve, field, frozen

from trio_kubelet.config.codec import field_at, format_duration, to_wire
from trio_kubelet.config.flag_table import FLAGS, FORMER_FLAGS, SHORTHANDS, Flag
from trio_kubelet.config.model import KubeletConfiguration, NodeOptions
from trio_kubelet.foreign_text import MASKED, without_passwords


@frozen
class CommandLine:
    """The settings of a command line.

    `fields` has the values for the configuration by their paths (`authorization.mode`), `names`
    those of all flags that occurred, in order.
    """

    fields: Mapping[str, Any] = field(factory=dict)
    options: NodeOptions = field(factory=NodeOptions)
    names: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    wants_help: bool = False
    wants_version: bool = False

    @property
    def feature_gates(self) -> Mapping[str, bool]:
        """The gates that `--feature-gates` sets."""
        gates: Mapping[str, bool] = self.fields.get("featureGates", {})
        return gates


def parse_flags(arguments: tuple[str, ...]) -> CommandLine:
    """The meaning of `arguments` (without the program's name). Raises nothing."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for flag, text, problem in _occurrences(arguments):
        if flag is None or text is None:
            problems.append(problem)
            continue
        try:
            values[flag.name] = flag.kind.parse(text, values.get(flag.name))
        except ValueError as error:
            problems.append(f'invalid argument "{text}" for "--{flag.name}" flag: {error}')
    return _command_line(values, tuple(problems))


def lay_over(
    configuration: KubeletConfiguration, command_line: CommandLine
) -> KubeletConfiguration:
    """The configuration with the command line's values in place of its own."""
    for path, value in command_line.fields.items():
        if path == "featureGates":
            value = {**configuration.feature_gates, **value}
        configuration = _with_field(configuration, path.split("."), value)
    if command_line.options.seccomp_default:
        configuration = evolve(configuration, seccomp_default=True)
    return configuration


def deprecation_warning(command_line: CommandLine) -> str:
    """One line that names the deprecated flags that were given, empty if there are none."""
    flags = [FLAGS[name] for name in command_line.names if FLAGS[name].deprecated]
    if not flags:
        return ""
    named = ", ".join(
        f"--{flag.name} (set {flag.field} in the file)" if flag.field else f"--{flag.name}"
        for flag in flags
    )
    return f"deprecated flags are in use; they will be removed in a future version: {named}"


def _occurrences(arguments: tuple[str, ...]) -> Iterator[tuple[Flag | None, str | None, str]]:
    """Each flag with the text of its value, or None and what is wrong."""
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            yield from ((None, None, f"unknown command {word}") for word in rest)
            return
        if not argument.startswith("-") or argument == "-":
            yield None, None, f"unknown command {argument}"
            continue
        flag, text, problem = _split(argument)
        if flag is not None and text is None:
            text = flag.kind.alone if flag.kind.alone is not None else next(rest, None)
            problem = f"flag needs an argument: --{flag.name}"
        yield flag, text, problem


def _split(argument: str) -> tuple[Flag | None, str | None, str]:
    if not argument.startswith("--"):
        letter, text = argument[1], argument[2:].removeprefix("=")
        name = SHORTHANDS.get(letter)
        if name is None:
            return None, None, f"unknown shorthand flag: '{letter}' in {argument}"
        return FLAGS[name], text or None, ""
    name, equals, text = argument[2:].partition("=")
    if not name or name.startswith("-"):
        return None, None, f"bad flag syntax: {argument}"
    flag = FLAGS.get(name.replace("_", "-"))
    if flag is None:
        return None, None, f"unknown flag: --{name}"
    return flag, text if equals else None, ""


def _command_line(values: Mapping[str, Any], problems: tuple[str, ...]) -> CommandLine:
    fields: dict[str, Any] = {}
    options: dict[str, Any] = {}
    collector: dict[str, Any] = {}
    for name, value in values.items():
        flag = FLAGS[name]
        if flag.field and value is not None:
            fields[flag.field] = value
        elif flag.option:
            options[flag.option] = value
        elif not flag.field and flag not in FORMER_FLAGS:
            collector[name] = value
    version = options.pop("version", "false")
    return CommandLine(
        fields=fields,
        options=NodeOptions(
            cadvisor=collector,
            version=version if version.startswith("v") else "",
            **{name: value for name, value in options.items() if name != "help"},
        ),
        names=tuple(values),
        problems=problems,
        wants_help=options.get("help", False),
        wants_version=version in ("true", "raw"),
    )


def _with_field(value: Any, path: list[str], new: Any) -> Any:
    name = field_at(type(value), path[0])
    if len(path) > 1:
        new = _with_field(getattr(value, name), path[1:], new)
    return attrs.evolve(value, **{name: new})


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
        tuning = options.cadvisor.get(name)
        text = _value(flag, wire, options) if tuning is None else _text(tuning)
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
