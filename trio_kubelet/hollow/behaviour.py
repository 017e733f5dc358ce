"""The behaviour of a hollow container once it is started.

A `Behaviour` is a value: how long the first process runs, how it ends, whether it obeys the stop
signal, what it prints. When a container is created the runtime asks one function of type
`Behaviours` for it; the default one is `annotation.behaviour_of`, simulations pass their own.
"""

import math
from collections.abc import Callable, Mapping

from attrs import field, frozen

KILLED = 137  # 128 + SIGKILL
TERMINATED = 143  # 128 + SIGTERM


@frozen(kw_only=True)
class LogLine:
    """A line that the process prints `at_seconds` after its start, unless it ended before.

    With `every_seconds` (more than 0) it is printed again and again.
    """

    text: str
    at_seconds: float = 0.0
    every_seconds: float | None = None
    stream: str = "stdout"


@frozen(kw_only=True)
class ExecResult:
    """The answer of a command run inside of the container after `run_seconds`."""

    exit_code: int = 0
    stdout: str = ""
    stderr: str = ""
    run_seconds: float = 0.0


@frozen(kw_only=True)
class Behaviour:
    """One container's script. Durations are seconds on trio's clock.

    `run_seconds` None: runs until it is stopped. `obeys_term` is the time from the stop signal
    to the end with `term_exit_code`; None: the signal is ignored. `start_error` makes
    StartContainer fail with that text. `oom_killed` turns the natural end into a kill by the
    kernel (137, OOMKilled). `termination_message` is written when the process ends by itself.
    `execs` maps a command line (arguments joined by a space) to its result; other commands are
    read by `shell.py`.
    """

    run_seconds: float | None = None
    exit_code: int = 0
    obeys_term: float | None = 0.0
    term_exit_code: int = TERMINATED
    create_latency: float = 0.0
    start_latency: float = 0.0
    start_error: str = ""
    oom_killed: bool = False
    log_lines: tuple[LogLine, ...] = ()
    termination_message: str = ""
    execs: Mapping[str, ExecResult] = field(factory=dict)


@frozen(kw_only=True)
class Invocation:
    """The facts that are known of a container when it is created.

    `attempt` is the restart count in its metadata; `owns_pid_namespace` tells whether its
    process is number 1, for which the kernel drops signals that it has no handler for.
    """

    name: str
    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    attempt: int = 0
    owns_pid_namespace: bool = True
    pod_name: str = ""
    pod_namespace: str = ""
    pod_labels: Mapping[str, str] = field(factory=dict)
    pod_annotations: Mapping[str, str] = field(factory=dict)


Behaviours = Callable[[Invocation], Behaviour]


def natural_end(behaviour: Behaviour) -> float:
    """Seconds from the start until the process ends by itself; infinite if it never does."""
    return math.inf if behaviour.run_seconds is None else behaviour.run_seconds
