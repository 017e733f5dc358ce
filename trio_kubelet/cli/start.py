"""From a command line of flags to the running agent, or to one clear line on why not."""

import gc
import sys
from collections.abc import Callable, Sequence
from functools import partial

from trio_kubelet import KUBERNETES_VERSION
from trio_kubelet.cli.cycles import collected_in_portions
from trio_kubelet.config.flags import parse_flags
from trio_kubelet.config.settings import (
    WRONG_FLAG,
    ConfigurationError,
    Examination,
    Settings,
    examine,
    load,
)

EXIT_OK = 0
EXIT_FAILURE = 1

TURN_SECONDS = 0.001
"""The time that the event loop may go on while a thread waits to run Python (by default 5 ms). File
work is many short system calls, and its thread waits like that after each of them."""


def start(arguments: Sequence[str], program: str) -> int:
    """Run the agent with these flags until it ends; the value is the exit code.

    `--help` and `--version` print and return. A configuration that cannot be used is told on
    stderr, a line for each thing that is wrong.
    """
    command_line = parse_flags(tuple(arguments))
    if command_line.wants_help and not command_line.problems:
        from trio_kubelet.config.flags import flag_help

        print(f"Usage: {program} [flags]\n\nFlags:\n{flag_help()}")
        return EXIT_OK
    if command_line.wants_version and not command_line.problems:
        print(f"Kubernetes {KUBERNETES_VERSION}")
        return EXIT_OK
    try:
        settings = load(arguments)
    except ConfigurationError as error:
        from trio_kubelet.telemetry.log import tell_failure

        for problem in error.problems:
            hint = f" (see {program} --help)" if problem.startswith(WRONG_FLAG) else ""
            tell_failure(f"{program}: {problem}{hint}")
        return EXIT_FAILURE
    return _run(settings, partial(examine, arguments))


def _run(settings: Settings, read_anew: Callable[[], Examination]) -> int:
    gc.disable()
    import structlog

    from trio_kubelet.agent.main import run_agent
    from trio_kubelet.kernel.limits import give_back_large_blocks
    from trio_kubelet.telemetry.log import configure_logging

    give_back_large_blocks()
    sys.setswitchinterval(TURN_SECONDS)
    configure_logging(settings)
    log = structlog.get_logger("config")
    for warning in settings.warnings:
        log.warning(warning)
    with collected_in_portions():
        return run_agent(settings, read_anew)
