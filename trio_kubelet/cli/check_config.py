"""`trio-kubelet check-config`: whether a file, with its drop-ins, says what it is meant to."""

from pathlib import Path

import click

from trio_kubelet.config import KubeletConfiguration, Settings, examine, to_wire


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--config-dir",
    type=click.Path(path_type=Path),
    help="Folder with drop-ins to merge over the file.",
)
def check_config(file: Path, config_dir: Path | None) -> None:
    """Check the KubeletConfiguration in FILE, without touching this host.

    Prints one line and exits with 0 if all is well; else prints everything that is wrong, a line
    each, and exits with 1. That includes fields that the API does not have and keys that stand
    twice, which an agent reads past with a warning. Warnings go to stderr.
    """
    flags = [f"--config={file}"] + ([f"--config-dir={config_dir}"] if config_dir else [])
    examination = examine(flags)
    wrong = (*examination.problems, *examination.oddities)
    for problem in wrong:
        click.echo(_one_line(problem))
    if wrong:
        raise SystemExit(1)
    settings = examination.settings
    for warning in settings.warnings:
        click.echo(f"warning: {_one_line(warning)}", err=True)
    click.echo(f"{file}: valid; {_summary(settings)}")


def _one_line(text: str) -> str:
    """`text` with what would break the line, or cannot be printed, in the form of escapes."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def _summary(settings: Settings) -> str:
    default = to_wire(KubeletConfiguration())
    actual = to_wire(settings.configuration)
    changed = [name for name in {**default, **actual} if default.get(name) != actual.get(name)]
    if not changed:
        return "every setting has its default"
    return f"{len(changed)} of its settings differ from the default"
