"""Reads a command line as the Go kubelet does, and lays its values over the configuration.

The grammar is pflag's: `--flag=value` or `--flag value`, booleans also alone, `_` for `-`,
`-v 4`, `-v4` or `-v=4`, nothing after `--`. A flag outweighs the file and the drop-ins; feature
gates are merged with theirs. All mistakes are reported, not only the first.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
from attrs import evolve, field, frozen

from trio_kubelet.config.codec import field_at
from trio_kubelet.config.flag_table import FLAGS, FORMER_FLAGS, SHORTHANDS, Flag
from trio_kubelet.config.model import KubeletConfiguration
from trio_kubelet.config.options import NodeOptions


@frozen
class CommandLine:
    """The settings of a command line.

    `fields` has the values for the configuration by their paths (`authorization.mode`), `given`
    the names of all flags that occurred, in order.
    """

    fields: Mapping[str, Any] = field(factory=dict)
    options: NodeOptions = field(factory=NodeOptions)
    given: tuple[str, ...] = ()
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
    flags = [FLAGS[name] for name in command_line.given if FLAGS[name].deprecated]
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
        given=tuple(values),
        problems=problems,
        wants_help=options.get("help", False),
        wants_version=version in ("true", "raw"),
    )


def _with_field(value: Any, path: list[str], new: Any) -> Any:
    name = field_at(type(value), path[0])
    if len(path) > 1:
        new = _with_field(getattr(value, name), path[1:], new)
    return attrs.evolve(value, **{name: new})
