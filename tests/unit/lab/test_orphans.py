"""Programs whose owner was killed go with a sweep; those of the living stay."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab import orphans
from lab.processes import alive

# Says its process id once it runs: in the middle of its exec a process shows no environment.
PROGRAM = (
    sys.executable,
    "-c",
    "import os, signal; print(os.getpid(), flush=True); signal.pause()",
)

# Other sweeps on this host do not judge what is marked here, nor do these judge what is not.
NAMESPACE = f"of-{os.getpid()}"

# Starts that program, which outlives it, and waits to be killed.
OWNER = f"""
import os, signal, subprocess
from lab import orphans
orphans._namespace = lambda: "{NAMESPACE}"
subprocess.Popen({PROGRAM}, env=orphans.marked(os.environ))
signal.pause()
"""


@pytest.fixture(autouse=True)
def namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "_namespace", lambda: NAMESPACE)


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


def said_by(process: "subprocess.Popen[bytes]") -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


@contextmanager
def marked_as(mark: str) -> Iterator["subprocess.Popen[bytes]"]:
    environment = {**os.environ, orphans.MARK: mark}
    with subprocess.Popen(PROGRAM, env=environment, stdout=subprocess.PIPE) as process:
        said_by(process)
        yield process


def test_what_a_killed_owner_started_is_killed_and_not_before(
    owner: "subprocess.Popen[bytes]",
) -> None:
    child = said_by(owner)
    orphans.sweep()
    assert alive(child)
    owner.kill()
    owner.wait()
    assert alive(child)
    orphans.sweep()
    assert not alive(child)


def test_a_process_id_that_somebody_else_has_by_now_is_no_owner() -> None:
    (mark,) = orphans.marked({}).values()
    namespace, pid, began = mark.split(":")
    with marked_as(f"{namespace}:{pid}:{int(began) - 1}") as process:
        orphans.sweep()
        assert process.wait(60) == -signal.SIGKILL


def test_whoever_lives_in_another_namespace_of_process_ids_is_left_alone() -> None:
    with marked_as("1:999999999:1") as process:
        orphans.sweep()
        assert process.poll() is None
        process.kill()
