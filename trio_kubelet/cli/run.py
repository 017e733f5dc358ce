"""`trio-kubelet run`: the node agent, with the Go kubelet's flags."""

import click


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
