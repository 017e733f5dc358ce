"""The table of commands, and those that are only a few lines.

A command is an entry in `COMMANDS`: its name, the module and attribute where its click command
is, and the line that `--help` shows. The module is imported when the command is called.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click
from attrs import frozen

from trio_kubelet import KUBERNETES_VERSION, __version__

if TYPE_CHECKING:
    from trio_kubelet.config import Settings


@frozen
class CommandEntry:
    """The place of a command, and its purpose in one line."""

    module: str
    attribute: str
    summary: str


COMMANDS: Mapping[str, CommandEntry] = {
    "check-config": CommandEntry(
        "trio_kubelet.cli.commands", "check_config", "Check a KubeletConfiguration file."
    ),
    "disk": CommandEntry(
        "trio_kubelet.cli.disk", "disk", "Show what uses the disk of a running agent's node."
    ),
    "evictions": CommandEntry(
        "trio_kubelet.cli.evictions",
        "evictions",
        "Show which pods would be evicted next, and which have been.",
    ),
    "pods": CommandEntry("trio_kubelet.cli.pods", "pods", "List the pods of a running agent."),
    "run": CommandEntry(
        "trio_kubelet.cli.commands", "run", "Run the node agent; takes the kubelet's flags."
    ),
    "timeline": CommandEntry(
        "trio_kubelet.cli.timeline",
        "timeline",
        "Show what happened to a pod, and where the time went.",
    ),
    "version": CommandEntry("trio_kubelet.cli.commands", "version", "Print the version."),
}


class _Commands(click.Group):
    """Finds commands in the table."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's interface
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(import_module(entry.module), entry.attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].summary) for name in sorted(COMMANDS)])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def commands() -> None:
    """Run a Kubernetes node agent in Python, and look into it.

    Called by the name `kubelet`, the program takes the flags of the Go kubelet.
    """


@click.command()
def version() -> None:
    """Print the agent's version and the Kubernetes release that it behaves as."""
    click.echo(f"trio-kubelet {__version__} (Kubernetes {KUBERNETES_VERSION})")


class _FlagsCommand(click.Command):
    """Leaves its arguments alone: their grammar is that of the Go kubelet, not click's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["arguments"] = tuple(args)
        return []


@click.command(cls=_FlagsCommand)
def run(arguments: tuple[str, ...]) -> None:
    """Run the node agent until SIGTERM or SIGINT."""
    from trio_kubelet.cli.start import start

    raise SystemExit(start(arguments, "trio-kubelet run"))


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--config-dir",
    type=click.Path(path_type=Path),
    help="Folder with drop-ins to merge over the file.",
)
@click.option(
    "--diff",
    "running",
    metavar="RUNNING",
    type=click.Path(path_type=Path),
    help="File of a running agent: show what changes from it to FILE, and what each change needs.",
)
@click.option(
    "--diff-config-dir",
    "running_dir",
    type=click.Path(path_type=Path),
    help="Folder with drop-ins to merge over RUNNING.",
)
def check_config(
    file: Path, config_dir: Path | None, running: Path | None, running_dir: Path | None
) -> None:
    """Check the KubeletConfiguration in FILE, without touching this host.

    Prints one line and exits with 0 if all is well; else prints everything that is wrong, a line
    each, and exits with 1. That includes fields that the API does not have and keys that stand
    twice, which an agent reads past with a warning. Warnings go to stderr.

    With --diff there is a line more for each setting that changes: whether a running agent takes it
    over when it is told to reload ("live"), has to be restarted, or restarted on a drained node.
    """
    settings = _examined(file, config_dir)
    for warning in settings.warnings:
        click.echo(f"warning: {_one_line(warning)}", err=True)
    click.echo(f"{file}: valid; {_summary(settings)}")
    if running is not None:
        _tell_changes(_examined(running, running_dir), settings)


def _examined(file: Path, config_dir: Path | None) -> "Settings":
    """The settings in a file and its drop-ins; says what is wrong, and ends the program then."""
    from trio_kubelet.config import examine

    flags = [f"--config={file}"] + ([f"--config-dir={config_dir}"] if config_dir else [])
    examination = examine(flags)
    wrong = (*examination.problems, *examination.oddities)
    for problem in wrong:
        click.echo(_one_line(problem))
    if wrong:
        raise SystemExit(1)
    return examination.settings


def _tell_changes(running: "Settings", new: "Settings") -> None:
    from trio_kubelet.config.changes import changes

    found = changes(running.configuration, new.configuration)
    for change in found:
        click.echo(_one_line(f"{change.effect}: {change}"))
    if not found:
        click.echo("no setting changes")


def _one_line(text: str) -> str:
    """`text` with what would break the line, or cannot be printed, in the form of escapes."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def _summary(settings: "Settings") -> str:
    from trio_kubelet.config import KubeletConfiguration, to_wire

    default = to_wire(KubeletConfiguration())
    actual = to_wire(settings.configuration)
    changed = [name for name in {**default, **actual} if default.get(name) != actual.get(name)]
    if not changed:
        return "every setting has its default"
    return f"{len(changed)} of its settings differ from the default"
