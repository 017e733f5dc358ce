"""Logs of a container that prints fast, rotated by an agent, on real containerds.

`TRIO_KUBELET_LOG_SECONDS` is for how long it prints, some 5 MB a second.
"""

import os
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
import trio

from lab.agent import LabAgent, is_running
from lab.containerd import Containerd
from lab.images import BUSYBOX
from lab.processes import wait_until
from tests.integration.pods import Node
from tests.turns import making_test_data
from trio_kubelet.k8s import ObjectMeta
from trio_kubelet.logs import LogChanges, LogReader
from trio_kubelet.logs.files import place_of
from trio_kubelet.logs.options import LogOptions
from trio_kubelet.tasks.threads import run_in_thread

SECONDS = int(os.environ.get("TRIO_KUBELET_LOG_SECONDS", "8"))
LINES_AT_ONCE = 20_000
MAX_BYTES, MAX_FILES = 2 << 20, 5
PRINTS = f"""
n=0
while [ $n -lt {SECONDS * 2} ]; do
  seq $((n * {LINES_AT_ONCE} + 1)) $(((n + 1) * {LINES_AT_ONCE})) | sed 's/$/ {"x" * 80}/'
  n=$((n + 1))
  sleep 0.5
done
echo over
exec sleep 100000
"""


@pytest.fixture
def node(containerd: Containerd, tmp_path: Path) -> Iterator[Node]:
    """An agent that rotates logs of 2 MiB."""
    settings = {
        "containerLogMaxSize": str(MAX_BYTES),
        "containerLogMaxFiles": MAX_FILES,
        "containerLogMonitorInterval": "3s",
    }
    agent = LabAgent(tmp_path / "node", endpoint=containerd.endpoint, settings=settings)
    with agent:
        yield Node(agent=agent, containerd=containerd)


async def follow(path: Path, root: Path, until: str) -> list[bytes]:
    """The pieces of a log up to a line, as somebody has them who follows it."""
    changes, text, tail = LogChanges(), [b""], b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(changes.run)
        pod = ObjectMeta(namespace="default", name="p", uid="u")
        place = place_of(str(path), str(root))
        pieces = LogReader(changes).read(place, LogOptions(follow=True), pod, lambda: False)
        async with aclosing(pieces):
            async for piece in pieces:
                text.append(piece)
                tail = (tail + piece)[-200:]
                if tail.endswith(f"{until}\n".encode()):
                    break
        nursery.cancel_scope.cancel()
    return text


def numbers(pieces: list[bytes]) -> list[int]:
    """The numbers of all lines but the last."""
    lines = b"".join(pieces).splitlines()
    return [int(line.partition(b" ")[0]) for line in lines[:-1]]


def wait_until_packed(folder: Path) -> None:
    """Wait until all files of a log but itself and the newest rotated one are packed."""

    def names() -> list[str]:
        return sorted(each.name for each in folder.iterdir())

    wait_until(
        lambda: len(names()) > 2 and all(name.endswith(".gz") for name in names()[1:-1]),
        deadline_seconds=60,
        else_say=lambda: f"not packed: {names()}",
    )


async def test_a_follower_has_every_line_once_while_the_log_stays_small(node: Node) -> None:
    largest = [0, 0]
    container = {"name": "c", "image": BUSYBOX, "command": ["sh", "-c", PRINTS]}
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "prints"},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }
    await run_in_thread(node.add, manifest)
    pod = await run_in_thread(node.wait, "prints", is_running)
    path = node.log_file(pod, "c")

    async def watch() -> None:
        while True:
            sizes = [each.stat().st_size for each in path.parent.iterdir()]
            largest[:] = max(largest[0], *sizes), max(largest[1], len(sizes))
            await trio.sleep(0.2)

    async def kill_the_agent() -> None:
        await trio.sleep(SECONDS / 2)
        await run_in_thread(node.agent.kill)
        await run_in_thread(node.agent.start)

    with trio.fail_after(SECONDS * 3 + 60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            nursery.start_soon(kill_the_agent)
            pieces = await follow(path, node.agent.pod_logs, "over")
            nursery.cancel_scope.cancel()
    printed = await run_in_thread(numbers, pieces)
    with making_test_data():
        assert printed == list(range(1, SECONDS * 2 * LINES_AT_ONCE + 1))
    assert largest[1] <= MAX_FILES + 1, "one more while one is being packed"
    await run_in_thread(wait_until_packed, path.parent)
    await run_in_thread(node.remove_all)
