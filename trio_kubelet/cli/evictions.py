"""`trio-kubelet evictions`: which pods would be evicted next, and which have been, and why."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trio_kubelet.cli.agent_requests import AgentAddress, Json, root_option

if TYPE_CHECKING:
    from rich.table import Table

UNLIMITED_WIDTH = 10_000
SHOWN_PODS = 5


@click.command()
@root_option
@click.option("-o", "--output", type=click.Choice(["json"]), help="All that is known.")
def evictions(root_dir: Path, output: str | None) -> None:
    """Show which pods would be evicted next at each signal, and which have been, and why.

    Each pod stands with what it uses, which is what its end would give back, and what it asked for.
    """
    found = AgentAddress(root_dir=root_dir).get("/debug/evictions")
    if output == "json":
        click.echo(json.dumps(found, indent=4))
        return
    from rich.console import Console

    console = Console(width=UNLIMITED_WIDTH, highlight=False)
    console.print(signals_table(found["signals"]), soft_wrap=True)
    console.print()
    if found["evictions"]:
        console.print(evictions_table(found["evictions"]), soft_wrap=True)
    else:
        console.print("no pod was evicted")


def signals_table(signals: Iterable[Json]) -> "Table":
    """A line for each signal, and the pods that would go for it."""
    rows = []
    for each in signals:
        thresholds = ", ".join(_threshold(threshold) for threshold in each["thresholds"])
        pods = [_pod(pod) for pod in each["pods"][:SHOWN_PODS]]
        more = len(each["pods"]) + each["morePods"] - len(pods)
        pods += [f"and {more} more"] * (more > 0)
        available = f"{each['available']} of {each['capacity']}"
        rows.append((each["signal"], available, thresholds or "-", ", ".join(pods) or "nobody"))
    return _table(("SIGNAL", "AVAILABLE", "THRESHOLDS", "NEXT"), rows)


def evictions_table(records: Iterable[Json]) -> "Table":
    """A line for each eviction, the newest first."""
    rows = []
    for each in records:
        state = " (ending)" if each["is_open"] else ""
        pod = f"{each['namespace']}/{each['name']}{state}"
        rows.append((each["at"], pod, each["cause"], each["message"].strip()))
    return _table(("TIME", "POD", "CAUSE", "MESSAGE"), rows)


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _threshold(threshold: Json) -> str:
    state = "met" if threshold["met"] else "crossed" if threshold["crossed"] else "kept"
    return f"{threshold['kind']} {threshold['value']} {state}"


def _pod(pod: Json) -> str:
    used = f"{pod['used']} of {pod['requested']}" if pod["used"] is not None else "unknown"
    return f"{pod['namespace']}/{pod['name']} ({used})"
