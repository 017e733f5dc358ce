"""The command line: `trio-kubelet COMMAND`, and `kubelet` with the Go kubelet's flags.

Under the program name `kubelet` (a link is enough) there are no commands: the arguments are the
flags, as people's units have them. Commands are found by name and imported when they are called,
so that `version` need not wait for the parts that `run` needs.
"""

import signal
import sys
from pathlib import Path

KUBELET_NAME = "kubelet"
RUN = "run"


def main() -> None:
    """Run the program that was called, and exit with its code."""
    program, *arguments = sys.argv
    is_kubelet = Path(program).name == KUBELET_NAME
    if is_kubelet or arguments[:1] == [RUN]:
        # SIGHUP ends a process that is not ready for it, which an agent is only when it has read
        # its configuration and made its event loop: until then the kernel holds the signal back.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    if is_kubelet:
        from trio_kubelet.cli.start import start

        sys.exit(start(arguments, KUBELET_NAME))
    from trio_kubelet.cli.commands import commands

    commands.main(arguments, prog_name="trio-kubelet")
