"""The command line: `trio-kubelet COMMAND`, and `kubelet` with the Go kubelet's flags.

Under the program name `kubelet` (a link is enough) there are no commands: the arguments are the
flags, as people's units have them. Commands are found by name and imported when they are called,
so that `version` need not wait for the parts that `run` needs.
"""

import sys
from pathlib import Path

KUBELET_NAME = "kubelet"


def main() -> None:
    """Run the program that was called, and exit with its code."""
    program, *arguments = sys.argv
    if Path(program).name == KUBELET_NAME:
        from trio_kubelet.cli.start import start

        sys.exit(start(arguments, KUBELET_NAME))
    from trio_kubelet.cli.commands import commands

    commands.main(arguments, prog_name="trio-kubelet")
