"""From a command line to the settings that the agent starts with.

Flags are read, then the files they name; the flags are laid over the files, the gates resolved,
and the whole is checked. `examine` tells everything that is wrong, for who wants to know it;
`load` raises where something of it stops the agent.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

from attrs import field, frozen

from trio_kubelet.config.flags import deprecation_warning, lay_over, parse_flags
from trio_kubelet.config.gates import FeatureGates, resolve
from trio_kubelet.config.loading import load_files
from trio_kubelet.config.model import KubeletConfiguration
from trio_kubelet.config.options import NodeOptions
from trio_kubelet.config.support import given_fields, not_acted_on
from trio_kubelet.config.validation import validate

WRONG_FLAG = "failed to parse kubelet flag"
"""The beginning of a problem of the command line itself."""


class ConfigurationError(Exception):
    """The configuration cannot be used. `problems` has one line for everything that is wrong."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@frozen(kw_only=True)
class Settings:
    """All that the agent is told: the shared configuration, this node's options, the gates.

    `warnings` are one line each, meant for the log at start.
    """

    configuration: KubeletConfiguration = field(factory=KubeletConfiguration)
    options: NodeOptions = field(factory=NodeOptions)
    gates: FeatureGates = field(factory=FeatureGates)
    warnings: tuple[str, ...] = ()


@frozen(kw_only=True)
class Examination:
    """The settings that a command line and its files give, and all problems of them.

    An agent does not start with `problems`. It does start with `oddities`, as the Go kubelet
    does, and warns of them; they are what a strict reader of the files would refuse.
    """

    settings: Settings
    problems: tuple[str, ...] = ()
    oddities: tuple[str, ...] = ()


def load(arguments: Sequence[str]) -> Settings:
    """The settings that the flags in `arguments` give, with the files that they name.

    Reads files, blocking. Raises ConfigurationError with all that is wrong.
    """
    examination = examine(arguments)
    if examination.problems:
        raise ConfigurationError(examination.problems)
    return examination.settings


def examine(arguments: Sequence[str]) -> Examination:
    """All that is to be said about a command line and the files that it names. Blocks.

    Rules that look at several fields are asked as well where another field is wrong, which then
    has its default; but not where a file could not be parsed at all.
    """
    command_line = parse_flags(tuple(arguments))
    options = command_line.options
    loaded = load_files(
        Path(options.config) if options.config else None,
        Path(options.config_dir) if options.config_dir else None,
        command_line.feature_gates,
    )
    configuration = lay_over(loaded.configuration, command_line)
    resolution = resolve(configuration.feature_gates)
    invalid = validate(configuration, options, resolution.gates) if loaded.is_whole else ()
    given = given_fields(loaded.given) | command_line.fields.keys()
    warnings = (
        deprecation_warning(command_line),
        *loaded.warnings,
        *resolution.warnings,
        _not_acted_on_warning(configuration, options, given),
    )
    return Examination(
        settings=Settings(
            configuration=configuration,
            options=options,
            gates=resolution.gates,
            warnings=tuple(filter(None, warnings)),
        ),
        problems=(
            *(f"{WRONG_FLAG}: {problem}" for problem in command_line.problems),
            *loaded.problems,
            *resolution.problems,
            *invalid,
        ),
        oddities=tuple(f"{path}: {odd}" for path, odds in loaded.oddities.items() for odd in odds),
    )


def _not_acted_on_warning(
    configuration: KubeletConfiguration, options: NodeOptions, given: Collection[str]
) -> str:
    names = not_acted_on(configuration, options, given)
    if not names:
        return ""
    return f"settings that this agent does not act on yet: {', '.join(names)}"
