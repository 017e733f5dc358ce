"""From a command line to the settings that the agent starts with.

Flags are read, then the files they name; the flags are laid over the files, the gates resolved,
and the whole is checked. What the user should know goes into `warnings`, what stops the agent
into one `ConfigurationError` with everything that is wrong.
"""

from collections.abc import Sequence
from pathlib import Path

from attrs import field, frozen

from trio_kubelet.config.flags import CommandLine, deprecation_warning, lay_over, parse_flags
from trio_kubelet.config.gates import FeatureGates, resolve
from trio_kubelet.config.loading import ConfigurationError, load_files
from trio_kubelet.config.model import KubeletConfiguration
from trio_kubelet.config.options import NodeOptions
from trio_kubelet.config.support import not_acted_on
from trio_kubelet.config.validation import validate


@frozen(kw_only=True)
class Settings:
    """All that the agent is told: the shared configuration, this node's options, the gates.

    `warnings` are one line each, meant for the log at start.
    """

    configuration: KubeletConfiguration = field(factory=KubeletConfiguration)
    options: NodeOptions = field(factory=NodeOptions)
    gates: FeatureGates = field(factory=FeatureGates)
    warnings: tuple[str, ...] = ()


def load(arguments: Sequence[str]) -> Settings:
    """The settings that the flags in `arguments` give, with the files that they name.

    Reads files, blocking. Raises ConfigurationError.
    """
    command_line = parse_flags(tuple(arguments))
    if command_line.problems:
        raise ConfigurationError(
            tuple(f"failed to parse kubelet flag: {problem}" for problem in command_line.problems)
        )
    return settings_of(command_line)


def settings_of(command_line: CommandLine) -> Settings:
    """The settings that a command line without problems gives. As `load`."""
    options = command_line.options
    loaded = load_files(
        Path(options.config) if options.config else None,
        Path(options.config_dir) if options.config_dir else None,
        command_line.feature_gates,
    )
    configuration = lay_over(loaded.configuration, command_line)
    resolution = resolve(configuration.feature_gates)
    problems = resolution.problems + validate(configuration, options, resolution.gates)
    if problems:
        raise ConfigurationError(problems)
    warnings = (
        deprecation_warning(command_line),
        *loaded.warnings,
        *resolution.warnings,
        _not_acted_on_warning(configuration, options),
    )
    return Settings(
        configuration=configuration,
        options=options,
        gates=resolution.gates,
        warnings=tuple(filter(None, warnings)),
    )


def _not_acted_on_warning(configuration: KubeletConfiguration, options: NodeOptions) -> str:
    names = not_acted_on(configuration, options)
    if not names:
        return ""
    return f"settings that this agent does not act on yet: {', '.join(names)}"
