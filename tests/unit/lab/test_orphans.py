"""Programs whose owner was killed go with a sweep; those of the living stay."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from lab import orphans
from lab.processes import alive

# Starts a program that outlives it, tells its process id, and waits to be killed.
OWNER = """
import os, signal, subprocess
from lab.orphans import marked
child = subprocess.Popen(["sleep", "1000"], env=marked(os.environ))
print(child.pid, flush=True)
signal.pause()
"""


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


def child_of(owner: "subprocess.Popen[bytes]") -> int:
    assert owner.stdout is not None
    return int(owner.stdout.readline())


def test_what_a_killed_owner_started_is_killed_and_not_before(
    owner: "subprocess.Popen[bytes]",
) -> None:
    child = child_of(owner)
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
    before_us = {**os.environ, orphans.MARK: f"{namespace}:{pid}:{int(began) - 1}"}
    with subprocess.Popen(["sleep", "1000"], env=before_us) as process:
        orphans.sweep()
        assert process.wait(60) == -signal.SIGKILL


def test_whoever_lives_in_another_namespace_of_process_ids_is_left_alone() -> None:
    elsewhere = {**os.environ, orphans.MARK: "1:999999999:1"}
    with subprocess.Popen(["sleep", "1000"], env=elsewhere) as process:
        orphans.sweep()
        assert process.poll() is None
        process.kill()
