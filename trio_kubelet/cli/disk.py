"""`trio-kubelet disk`: what uses the disk of a node, and what could be given back."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trio_kubelet.cli.agent_requests import AgentAddress, Json, root_option
from trio_kubelet.foreign_text import printable

if TYPE_CHECKING:
    from rich.table import Table

UNLIMITED_WIDTH = 10_000
_UNITS = ("B", "Ki", "Mi", "Gi", "Ti", "Pi")


@click.command()
@root_option
@click.option("-o", "--output", type=click.Choice(["json"]), help="All of it, for programs.")
def disk(root_dir: Path, output: str | None) -> None:
    """Show what uses the disk: pods, images, dead containers, deleted files that are open.

    Figures of pods are as old as those of /stats/summary.
    """
    found = AgentAddress(root_dir=root_dir).get("/debug/disk")
    if output == "json":
        click.echo(json.dumps(found, indent=4))
        return
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else UNLIMITED_WIDTH, highlight=False)
    for each in tables(found):
        console.print(each)
        console.print()
    for what, problem in found["problems"].items():
        click.echo(f"{what}: {problem}", err=True)


def tables(found: Json) -> Sequence["Table"]:
    """The tables of a report; what there is nothing of has none."""
    made = (
        _table(
            "Pods",
            ("pod", "logs", "writable layers", "emptyDir"),
            (
                (
                    f"{each['namespace']}/{each['name']}",
                    size(each["logBytes"]),
                    size(each["writableLayerBytes"]),
                    size(each["emptyDirBytes"]),
                )
                for each in found["pods"]
            ),
        ),
        _table(
            "Images, those first that were used least recently",
            ("image", "size", "last used", ""),
            (
                (each["name"], size(each["bytes"]), each["lastUsed"] or "never", _state(each))
                for each in found["images"]
            ),
        ),
        _table(
            "Dead containers",
            ("pod", "container", "finished"),
            (
                (f"{each['namespace']}/{each['pod']}", each["container"], each["finished"])
                for each in found["deadContainers"]
            ),
        ),
        _table(
            "Deleted files that are open",
            ("pod", "container", "process", "size", "file"),
            (
                (
                    f"{each['namespace']}/{each['pod']}" if each["pod"] else "the node",
                    each["container"],
                    f"{each['pid']} {each['command']}",
                    size(each["bytes"]),
                    each["path"],
                )
                for each in found["deletedFiles"]
            ),
        ),
    )
    return [table for table in made if table.row_count]


def _state(image: Json) -> str:
    states = {"in use": image["inUse"], "pinned": image["pinned"]}
    return ", ".join(name for name, holds in states.items() if holds)


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(escape(printable(str(cell))) for cell in row))
    return table


def size(amount: int | None) -> str:
    """Bytes with a unit in three digits or so; a question mark where nobody knows."""
    if amount is None:
        return "?"
    value, unit = float(amount), 0
    while value >= 1024 and unit + 1 < len(_UNITS):
        value, unit = value / 1024, unit + 1
    return (
        f"{value:.0f}{_UNITS[unit]}" if unit == 0 or value >= 10 else f"{value:.1f}{_UNITS[unit]}"
    )
