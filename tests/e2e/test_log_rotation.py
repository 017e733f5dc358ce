"""`kubectl logs -f` of a container that prints some 5 MB a second, through the agent's rotations.

`TRIO_KUBELET_LOG_SECONDS` is for how long it prints (`nox -s logs`: half an hour).
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest

from lab.agent import LabAgent
from tests.e2e.cluster import Namespace, is_ready, shell
from tests.e2e.local import AGENT, LocalCluster

SECONDS = int(os.environ.get("TRIO_KUBELET_LOG_SECONDS", "60"))
MAX_MIB, MAX_FILES = 4, 4
MOST_MIB = 128
"""Of all files of a log, on a machine that is so loaded that rotations come late."""
MIB = 1 << 20
TEXT = b"x" * 80
LINES_AT_ONCE = 20_000
# In the log each line has its time, stream and tag, too: 130 bytes.
# The pause begins with the lines, so that the time in which they are printed slows nothing down.
PRINTS = f"""
echo first
until test -e /tmp/go; do sleep 0.1; done
n=0
while [ $n -lt {SECONDS * 2} ]; do
  sleep 0.5 &
  seq $((n * {LINES_AT_ONCE} + 1)) $(((n + 1) * {LINES_AT_ONCE})) | sed 's/$/ {TEXT.decode()}/'
  n=$((n + 1))
  wait
done
echo over
"""


@pytest.fixture
def rotating(local_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """A node whose agent rotates logs of a few MiB."""
    local_cluster.restart_agent(
        containerLogMaxSize=f"{MAX_MIB}Mi",
        containerLogMaxFiles=MAX_FILES,
        containerLogMonitorInterval="3s",
    )
    yield local_cluster
    local_cluster.restart_agent()


def size_of(folder: Path) -> int:
    """The bytes of a container's logs; a file may go meanwhile."""
    sizes = []
    for each in folder.iterdir():
        with suppress(FileNotFoundError):
            sizes.append(each.stat().st_size)
    return sum(sizes)


def first_wrong_line(lines: IO[bytes], folder: Path) -> str:
    """Read all that a follower is told; return what is not as it should be, or ""."""
    known = 0
    for line in lines:
        if line == b"over\n":
            break
        known += 1
        if line != b"%d %s\n" % (known, TEXT):
            return f"{line[:100]!r} in place of line {known}"
        if known % LINES_AT_ONCE == 0 and (size := size_of(folder)) > MOST_MIB * MIB:
            return f"logs of {size} bytes"
    printed = SECONDS * 2 * LINES_AT_ONCE
    return "" if known == printed else f"{known} lines of {printed}"


@pytest.mark.skipif(AGENT is not LabAgent, reason="the Go kubelet loses lines at each rotation")
def test_a_follower_has_every_line_once_while_the_agent_rotates_the_log(
    rotating: LocalCluster, namespace: Namespace
) -> None:
    namespace.add("prints", shell("c", PRINTS), restartPolicy="Never")
    uid = namespace.wait("prints", is_ready)["metadata"]["uid"]
    folder = rotating.agent.pod_logs / f"{namespace.name}_prints_{uid}" / "c"
    command = namespace.kubectl_command("logs", "--follow", "prints")
    with subprocess.Popen(command, stdout=subprocess.PIPE) as following:
        assert following.stdout is not None
        try:
            assert following.stdout.readline() == b"first\n"
            namespace.kubectl("exec", "prints", "--", "touch", "/tmp/go")
            assert first_wrong_line(following.stdout, folder) == ""
            assert following.wait(60) == 0
        finally:
            following.kill()
    rotated = [each.name for each in folder.iterdir() if each.name != "0.log"]
    assert rotated, "the log was never rotated"
