"""What commands of plain manifests are taken to do."""

import pytest

from trio_kubelet.hollow import Behaviour, LogLine
from trio_kubelet.hollow.shell import behaviour_of_command, result_of_exec

SCRIPTS = {
    # script: how long it runs, its exit code
    "exit 3": (0, 3),
    "sleep 5": (5, 0),
    "sleep 5; exit 3": (5, 3),
    "sleep 1m 2s": (62, 0),
    "sleep infinity": (None, 0),
    "true && exit 4": (0, 4),
    "false && exit 4": (0, 1),
    "false || exit 4": (0, 4),
    "true || exit 4": (0, 0),
    "false; true": (0, 0),
    "set -e; false; sleep 9": (0, 1),
    "set -e; false || true; sleep 9": (9, 0),
    "sleep 3 & sleep 1; wait": (3, 0),
    "sleep 3 & sleep 5; wait": (5, 0),
    "sleep 3 &": (0, 0),
    "while true; do sleep 1; done": (None, 0),
    "while :; do sleep 2; exit 7; done": (2, 7),
    "sleep 1; while true; do echo x; sleep 1; done; exit 9": (None, 0),
    "exec sleep 4": (4, 0),
    "httpd -f -p 80": (None, 0),
    "touch /data/here; exit 2": (0, 2),
    "echo a; sleep 1\necho b; exit 1": (1, 1),
    "sh -c 'sleep 2; exit 5'; exit 6": (2, 5),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_runs_as_long_and_ends_as_it_would_for_real(script: str) -> None:
    behaviour = behaviour_of_command(("/bin/sh", "-c", script))
    assert (behaviour.run_seconds, behaviour.exit_code) == SCRIPTS[script]


@pytest.mark.parametrize(
    ("argv", "seconds", "exit_code"),
    [
        (("true",), 0, 0),
        (("/bin/false",), 0, 1),
        (("sleep", "1.5"), 1.5, 0),
        (("echo", "hi"), 0, 0),
        (("httpd", "-f"), None, 0),
        (("/usr/bin/server", "--port", "80"), None, 0),
        ((), None, 0),
    ],
)
def test_a_command_without_a_shell_is_understood_too(
    argv: tuple[str, ...], seconds: float | None, exit_code: int
) -> None:
    behaviour = behaviour_of_command(argv)
    assert (behaviour.run_seconds, behaviour.exit_code) == (seconds, exit_code)


def test_lines_are_printed_when_the_script_comes_to_them() -> None:
    script = "echo one; sleep 2; echo 'two; three' >&2; echo four > /data/file"
    assert behaviour_of_command(("sh", "-c", script)).log_lines == (
        LogLine(text="one"),
        LogLine(text="two; three", at_seconds=2, stream="stderr"),
    )


def test_a_loop_prints_again_and_again() -> None:
    script = "sleep 1; while true; do echo tick; sleep 5; done"
    assert behaviour_of_command(("sh", "-c", script)).log_lines == (
        LogLine(text="tick", at_seconds=1, every_seconds=5),
    )


def test_the_termination_log_gets_the_termination_message() -> None:
    script = "echo it broke > /dev/termination-log; exit 1"
    assert behaviour_of_command(("sh", "-c", script)).termination_message == "it broke\n"


@pytest.mark.parametrize(
    ("argv", "owns_pid_namespace", "obeys_term", "exit_code"),
    [
        # As process 1, what has no handler for TERM does not get it.
        (("sleep", "9"), True, None, 143),
        (("sleep", "9"), False, 0, 143),
        (("sh", "-c", "sleep 9"), True, None, 143),
        (("sh", "-c", "trap 'exit 5' TERM; sleep 9"), True, 0, 5),
        (("sh", "-c", "trap 'echo bye; exit 0' INT TERM; sleep 9"), True, 0, 0),
        (("sh", "-c", "trap 'exit 5' INT; sleep 9"), True, None, 143),
        # exec takes the shell's handlers away; a server brings its own.
        (("sh", "-c", "trap 'exit 5' TERM; exec sleep 9"), True, None, 143),
        (("sh", "-c", "exec server"), True, 0, 143),
        (("server",), True, 0, 143),
        # An init passes TERM on to a process that is not number 1.
        (("/sbin/tini", "--", "sleep", "9"), True, 0, 143),
    ],
)
def test_term_is_obeyed_by_what_has_a_handler_for_it(
    argv: tuple[str, ...], owns_pid_namespace: bool, obeys_term: float | None, exit_code: int
) -> None:
    behaviour = behaviour_of_command(argv, owns_pid_namespace)
    assert (behaviour.obeys_term, behaviour.term_exit_code) == (obeys_term, exit_code)


def test_an_init_runs_the_command_after_it() -> None:
    behaviour = behaviour_of_command(("catatonit", "--", "sh", "-c", "sleep 3; exit 2"))
    assert (behaviour.run_seconds, behaviour.exit_code) == (3, 2)


def test_an_unknown_program_is_a_server() -> None:
    assert behaviour_of_command(("nginx", "-g", "daemon off;")) == Behaviour()


def test_a_command_inside_of_a_container_answers() -> None:
    result = result_of_exec(("sh", "-c", "echo a; echo b; echo c >&2; sleep 2; exit 4"))
    assert (result.stdout, result.stderr) == ("a\nb\n", "c\n")
    assert (result.run_seconds, result.exit_code) == (2, 4)


def test_an_unknown_command_inside_of_a_container_succeeds() -> None:
    assert result_of_exec(("/app/healthy", "--quick")).exit_code == 0


@pytest.mark.parametrize("script", ["echo 'open", ";;", "while true", "trap", "wait", "&"])
def test_broken_scripts_fail_as_a_shell_does_or_do_nothing(script: str) -> None:
    behaviour = behaviour_of_command(("sh", "-c", script))
    assert behaviour.run_seconds in (0, None)
