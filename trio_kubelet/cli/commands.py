"""The table of commands, and those that are only a few lines.

A command is an entry in `COMMANDS`: its name, the module and attribute where its click command
is, and the line that `--help` shows. The module is imported when the command is called.
"""

from collections.abc import Mapping
from importlib import import_module

import click
from attrs import frozen

from trio_kubelet import KUBERNETES_VERSION, __version__


@frozen
class CommandEntry:
    """Where a command is to be found, and what it is for in one line."""

    module: str
    attribute: str
    summary: str


COMMANDS: Mapping[str, CommandEntry] = {
    "check-config": CommandEntry(
        "trio_kubelet.cli.check_config", "check_config", "Check a KubeletConfiguration file."
    ),
    "pods": CommandEntry("trio_kubelet.cli.pods", "pods", "List the pods of a running agent."),
    "run": CommandEntry(
        "trio_kubelet.cli.run", "run", "Run the node agent; takes the kubelet's flags."
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
