"""`trio-kubelet check-config`: whether the agent would start with a file."""

from pathlib import Path

import click

from trio_kubelet.config import ConfigurationError, KubeletConfiguration, Settings, to_wire
from trio_kubelet.config.settings import load


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--config-dir",
    type=click.Path(path_type=Path),
    help="Folder with drop-ins to merge over the file.",
)
def check_config(file: Path, config_dir: Path | None) -> None:
    """Check the KubeletConfiguration in FILE, without touching this host.

    Prints one line and exits with 0 if the agent would accept it; else prints everything that is
    wrong, a line each, and exits with 1. Warnings go to stderr.
    """
    flags = [f"--config={file}"] + ([f"--config-dir={config_dir}"] if config_dir else [])
    try:
        settings = load(flags)
    except ConfigurationError as error:
        for problem in error.problems:
            click.echo(problem)
        raise SystemExit(1) from None
    for warning in settings.warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"{file}: valid; {_summary(settings)}")


def _summary(settings: Settings) -> str:
    default = to_wire(KubeletConfiguration())
    actual = to_wire(settings.configuration)
    changed = [name for name in {**default, **actual} if default.get(name) != actual.get(name)]
    if not changed:
        return "every setting has its default"
    return f"{len(changed)} of its settings differ from the default"
