"""`trio-kubelet pods`: the pods of an agent, once or as they change."""

import json
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click

from trio_kubelet.cli.agent_requests import (
    AgentAddress,
    AgentUnreachableError,
    Json,
    root_option,
    url_option,
)

WATCH_SECONDS = 1.0
UNLIMITED_WIDTH = 10_000


@click.command()
@root_option
@url_option
@click.option("-w", "--watch", is_flag=True, help="Go on and show changes, until Ctrl-C.")
@click.option(
    "-o", "--output", type=click.Choice(["wide", "json"]), help="More columns, or the whole list."
)
def pods(root_dir: Path, url: str, watch: bool, output: str | None) -> None:
    """List the pods of an agent on this machine, as `kubectl get pods` does.

    The agent is asked over the socket in its root folder, which takes its owner's rights, or
    over the read-only port that --url names.
    """
    if watch and output == "json":
        raise click.UsageError("--watch shows tables; it does not go with -o json")
    agent = AgentAddress(root_dir=root_dir, url=url)
    found = agent.get("/pods")
    if output == "json":
        click.echo(json.dumps(found, indent=4))
    elif watch:
        import trio

        with suppress(KeyboardInterrupt):
            trio.run(partial(_watch, agent, found, wide=output == "wide"))
    else:
        _print_once(found, wide=output == "wide")


def _print_once(found: Json, *, wide: bool) -> None:
    from rich.console import Console

    from trio_kubelet.cli.pod_table import pod_rows, pod_table

    if not found["items"]:
        click.echo("no pods", err=True)
        return
    rows = pod_rows(found["items"], datetime.now(UTC))
    # As wide as it is: cut columns help nobody, a terminal wraps long lines by itself.
    Console(width=UNLIMITED_WIDTH).print(pod_table(rows, wide=wide), soft_wrap=True)


async def _watch(agent: AgentAddress, found: Json, *, wide: bool) -> None:
    """Show the table until cancelled. An agent that is away for a while is waited for."""
    import trio
    from rich.console import Console, Group, RenderableType
    from rich.live import Live

    from trio_kubelet.cli.pod_table import pod_rows, pod_table

    def view(problem: str = "") -> RenderableType:
        table = pod_table(pod_rows(found["items"], datetime.now(UTC)), wide=wide)
        return Group(table, problem) if problem else table

    ask = partial(agent.get, "/pods")
    with Live(view(), console=Console(), auto_refresh=False) as live:
        while True:
            await trio.sleep(WATCH_SECONDS)
            try:
                found = await trio.to_thread.run_sync(ask, abandon_on_cancel=True)
                live.update(view(), refresh=True)
            except AgentUnreachableError as error:
                live.update(view(error.message), refresh=True)
