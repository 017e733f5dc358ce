"""Containers that the kernel kills for their memory, however short they live, say OOMKilled."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import host
from lab.agent import Json, LabAgent
from lab.containerd import Containerd
from lab.images import BUSYBOX
from tests.integration.pods import (
    Node,
    container_ids,
    is_over,
    one_shot,
    status_of,
    until_term,
)
from tests.oom_kills import rounds

PODS = ("hungry-a", "hungry-b")
HUNGRY = tuple(f"c{number}" for number in range(10))
OTHER = "other"
# On cgroup v2 the runtime's own start counts, and would not come to its end with so little.
LIMIT = {"limits": {"memory": "6Mi" if host.cgroup_version() == 1 else "16Mi"}}
SHORT_LIVED = {"image": BUSYBOX, "command": ["tail", "/dev/zero"], "resources": LIMIT}


@pytest.fixture(scope="module")
def node(containerd: Containerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """An agent that evicts nobody: on cgroup v1 thresholds of memory are eventfds, too."""
    settings = {"evictionHard": {"memory.available": "0%"}}
    folder = tmp_path_factory.mktemp("oom-kills")
    with LabAgent(folder, endpoint=containerd.endpoint, settings=settings) as agent:
        yield Node(agent=agent, containerd=containerd)


def ends(pod: Json) -> dict[str, tuple[str, int]]:
    """Reason and exit code of each container that has ended."""
    found = {}
    for name in (*HUNGRY, OTHER):
        if end := status_of(pod, name)["state"].get("terminated"):
            found[name] = (end["reason"], end["exitCode"])
    return found


def eventfds(pid: int) -> int:
    """How many notices a process listens to."""
    targets = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            targets.append(str(entry.readlink()))
        except FileNotFoundError:
            continue
    return targets.count("anon_inode:[eventfd]")


EXPECTED = {**dict.fromkeys(HUNGRY, ("OOMKilled", 137)), OTHER: ("Error", 137)}


def test_who_is_killed_at_once_for_its_memory_says_so_and_who_is_killed_otherwise_does_not(
    node: Node,
) -> None:
    hungry = [{"name": name, **SHORT_LIVED} for name in HUNGRY]
    for number in rounds(len(PODS) * len(HUNGRY)):
        names = [f"{name}-{number}" for name in PODS]
        assert node.agent.pid is not None
        listened_to = eventfds(node.agent.pid)
        node.add(*(one_shot(name, until_term(OTHER), *hungry) for name in names))
        for name in names:
            pod = node.wait(name, lambda pod: len(ends(pod)) == len(HUNGRY))
            node.containerd.ctr("tasks", "kill", "-s", "KILL", container_ids(pod)[OTHER])
        for name in names:
            assert ends(node.wait(name, is_over)) == EXPECTED
        assert eventfds(node.agent.pid) == listened_to

        node.agent.kill()
        node.agent.start()
        for name in names:
            assert ends(node.wait(name, is_over)) == EXPECTED
        node.remove(*names)
        for name in names:
            node.wait_gone(name)
