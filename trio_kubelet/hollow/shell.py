"""Reads simple busybox command lines, so that plain manifests behave as they would for real.

Understood, alone or in `sh -c SCRIPT`: `sleep N`, `true`, `false`, `echo TEXT` (also to stderr
and into the termination log), `exit N`, `set -e`, `trap 'exit N' TERM`, background jobs with `&`
and `wait`, `exec COMMAND`, the operators `;`, `&&` and `||`, loops with `while true` or
`while :`, and servers that run forever such as `httpd -f`. Any other command inside of a script
succeeds at once; a container whose only command is unknown runs forever and obeys the stop
signal. A shell without a trap and the applets have no handler for TERM, so as process 1 they
ignore it.
"""

import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping

from attrs import define, evolve, field

from trio_kubelet.hollow.behaviour import TERMINATED, Behaviour, ExecResult, LogLine

TERMINATION_LOG = "/dev/termination-log"

_INITS = frozenset({"catatonit", "dumb-init", "tini"})
_SHELLS = frozenset({"sh", "ash", "bash", "dash"})
_SERVERS = frozenset({"httpd", "nginx", "pause", "tail", "top", "yes"})
_APPLETS = frozenset({"echo", "false", "httpd", "printf", "sleep", "tail", "top", "true", "yes"})
_SEPARATORS = frozenset({";", "&&", "||", "&"})
_LOOPS = frozenset({"for", "until", "while"})
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)([smhd]?)")


def behaviour_of_command(argv: tuple[str, ...], owns_pid_namespace: bool = True) -> Behaviour:
    """The behaviour of a container with this command; with none it is a server that obeys TERM."""
    if argv and _program(argv[0]) in _INITS:
        argv, owns_pid_namespace = argv[argv.index("--") + 1 if "--" in argv else 1 :], False
    if not argv or not _is_understood(argv):
        return Behaviour()
    run = _Run()
    _command(run, list(argv))
    ignores_term = run.trap is None and owns_pid_namespace
    return Behaviour(
        run_seconds=None if math.isinf(run.now) else run.now,
        exit_code=run.status,
        obeys_term=None if ignores_term else 0.0,
        term_exit_code=TERMINATED if run.trap is None else run.trap,
        log_lines=tuple(run.lines),
        termination_message=run.termination_message,
    )


def result_of_exec(argv: tuple[str, ...]) -> ExecResult:
    """The answer of a command run inside of a container; an unknown one succeeds silently."""
    run = _Run()
    _command(run, list(argv))
    stdout, stderr = (
        "".join(f"{line.text}\n" for line in run.lines if line.stream == stream)
        for stream in ("stdout", "stderr")
    )
    return ExecResult(exit_code=run.status, run_seconds=run.now, stdout=stdout, stderr=stderr)


@define
class _Run:
    """A shell on its way through a script: seconds since its start, and what it did so far.

    `output` is where the command at hand prints: stdout, stderr or the path of a file.
    """

    now: float = 0.0
    status: int = 0
    trap: int | None = None
    jobs_end: float = 0.0
    exits_on_error: bool = False
    ended: bool = False
    output: str = "stdout"
    termination_message: str = ""
    lines: list[LogLine] = field(factory=list)


def _is_understood(argv: tuple[str, ...]) -> bool:
    name = _program(argv[0])
    return name in _APPLETS or (name in _SHELLS and "-c" in argv[:-1])


def _program(path: str) -> str:
    return path.rpartition("/")[2]


def _script(run: _Run, words: list[str]) -> None:
    before = ";"
    for command, after in _statements(words):
        skipped = (before == "&&" and run.status != 0) or (before == "||" and run.status == 0)
        before = after
        if skipped:
            continue
        if after == "&":
            _background(run, command)
            continue
        _command(run, command)
        if run.exits_on_error and run.status != 0 and after == ";":
            run.ended = True
        if run.ended or math.isinf(run.now):
            return


def _words(text: str) -> list[str]:
    lexer = shlex.shlex(text.replace("\n", " ; "), posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:
        return ["exit", "2"]  # as a shell ends that finds a quotation without end


def _statements(words: list[str]) -> Iterator[tuple[list[str], str]]:
    """The commands, each with the operator that follows it; a loop is one command."""
    command: list[str] = []
    depth = 0
    for word in words:
        depth += (word in _LOOPS) - (word == "done")
        if depth > 0 or word not in _SEPARATORS:
            command.append(word)
            continue
        if command:
            yield command, word
        command = []
    if command:
        yield command, ";"


def _background(run: _Run, command: list[str]) -> None:
    job = _Run()
    _command(job, command)
    run.jobs_end = max(run.jobs_end, run.now + job.now)
    run.lines += _later(job.lines, run.now)
    run.status = 0


def _later(lines: list[LogLine], seconds: float) -> list[LogLine]:
    return [evolve(line, at_seconds=line.at_seconds + seconds) for line in lines]


def _command(run: _Run, words: list[str]) -> None:
    name = _program(words[0])
    if name in _SHELLS and "-c" in words[:-1]:
        _script(run, _words(words[words.index("-c") + 1]))
        return
    if name == "while":
        _while(run, words)
        return
    words, run.output = _redirected(words)
    run.status = 0
    if name in _SERVERS:
        run.now = math.inf
    elif name in _COMMANDS:
        _COMMANDS[name](run, words[1:])


def _redirected(words: list[str]) -> tuple[list[str], str]:
    """The command without its redirection, and where it prints."""
    for place, word in enumerate(words[:-1]):
        if word in (">", ">>"):
            return words[:place], words[place + 1]
        if word == ">&":
            kept = words[: place - 1] if words[place - 1] in ("1", "2") else words[:place]
            return kept, "stderr" if words[place + 1] == "2" else "stdout"
    return words, "stdout"


def _sleep(run: _Run, arguments: list[str]) -> None:
    for argument in arguments:
        if argument in ("infinity", "inf"):
            run.now = math.inf
        elif match := _DURATION.fullmatch(argument):
            run.now += float(match[1]) * _UNITS[match[2]]


def _echo(run: _Run, arguments: list[str]) -> None:
    text = " ".join(argument for argument in arguments if argument != "-n")
    if run.output == TERMINATION_LOG:
        run.termination_message += f"{text}\n"
    elif run.output in ("stdout", "stderr"):
        run.lines.append(LogLine(text=text, at_seconds=run.now, stream=run.output))


def _exit(run: _Run, arguments: list[str]) -> None:
    run.status = int(arguments[0]) if arguments and arguments[0].isdigit() else 0
    run.ended = True


def _trap(run: _Run, arguments: list[str]) -> None:
    if not {"TERM", "SIGTERM", "15"} & set(arguments[1:]):
        return
    handler = _Run()
    _script(handler, _words(arguments[0]))
    run.trap = handler.status if handler.ended else None


def _wait(run: _Run, arguments: list[str]) -> None:
    del arguments
    run.now = max(run.now, run.jobs_end)


def _false(run: _Run, arguments: list[str]) -> None:
    del arguments
    run.status = 1


def _set(run: _Run, arguments: list[str]) -> None:
    run.exits_on_error |= any("e" in argument for argument in arguments if argument[:1] == "-")


def _exec(run: _Run, arguments: list[str]) -> None:
    """Become another program, which loses the shell's handlers; an unknown one has its own."""
    if not arguments:
        return
    if _is_understood(tuple(arguments)):
        run.trap = None
        _command(run, arguments)
        run.ended = True
    else:
        run.trap = TERMINATED
        run.now = math.inf


def _while(run: _Run, words: list[str]) -> None:
    if words[1:2] not in (["true"], [":"]) or "do" not in words:
        run.status = 0
        return
    body = _Run(exits_on_error=run.exits_on_error, trap=run.trap)
    _script(body, words[words.index("do") + 1 : -1])
    period = None if body.ended or math.isinf(body.now) or body.now <= 0 else body.now
    run.lines += [evolve(line, every_seconds=period) for line in _later(body.lines, run.now)]
    run.trap, run.status, run.ended = body.trap, body.status, body.ended
    run.now = run.now + body.now if body.ended else math.inf


_COMMANDS: Mapping[str, Callable[[_Run, list[str]], None]] = {
    "echo": _echo,
    "exec": _exec,
    "exit": _exit,
    "false": _false,
    "printf": _echo,
    "set": _set,
    "sleep": _sleep,
    "trap": _trap,
    "wait": _wait,
}
