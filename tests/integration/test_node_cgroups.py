"""The cgroups of the node's own processes, as an agent on a real containerd holds them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from lab.agent import LabAgent
from lab.containerd import Containerd
from lab.processes import wait_until
from trio_kubelet.kernel.mountinfo import mount_points
from trio_kubelet.node.system_cgroups import SystemCgroups
from trio_kubelet.resources import CgroupConfig, CgroupTree

MIB = 1 << 20
END_SECONDS = 60
SETTINGS = {
    "enforceNodeAllocatable": ["pods", "system-reserved", "kube-reserved-compressible"],
    "systemReserved": {"cpu": "100m", "memory": "64Mi", "pid": "100"},
    "kubeReserved": {"cpu": "100m", "memory": "64Mi"},
}


@pytest.fixture
def tree() -> CgroupTree:
    return CgroupTree.find(mount_points())


@pytest.fixture
def agent(containerd: Containerd, tmp_path: Path) -> Iterator[LabAgent]:
    """An agent that is not started yet, whose system has cgroups below its pods' root."""
    agent = LabAgent(tmp_path / "node", endpoint=containerd.endpoint)
    agent.folder.mkdir()
    agent.settings = {
        **SETTINGS,
        "systemReservedCgroup": f"{agent.cgroup_root}/system",
        "kubeReservedCgroup": f"{agent.cgroup_root}/kube",
    }
    yield agent
    agent.end()


def first_text(tree: CgroupTree, path: str, *names: str) -> str:
    """The text of the first of these files that the cgroup has in any hierarchy."""
    files = (folder / name for folder in tree.folders(path) for name in names)
    return next(file.read_text().strip() for file in files if file.exists())


def test_processes_of_the_system_and_all_pods_are_held_to_their_shares(
    tree: CgroupTree, agent: LabAgent
) -> None:
    for name in ("system", "kube"):
        tree.create(f"{agent.cgroup_root}/{name}", CgroupConfig())
    before = first_text(tree, f"{agent.cgroup_root}/kube", "memory.limit_in_bytes", "memory.max")
    agent.start()
    told = "Updated limits on kube reserved cgroup"
    wait_until(
        lambda: told in agent.log.read_text(),
        deadline_seconds=END_SECONDS,
        else_say=agent.last_words,
    )

    def memory(name: str) -> str:
        path = f"{agent.cgroup_root}/{name}"
        return first_text(tree, path, "memory.limit_in_bytes", "memory.max")

    assert memory("system") == str(64 * MIB)
    assert memory("kube") == before
    assert first_text(tree, f"{agent.cgroup_root}/system", "pids.max") == "100"
    shares = first_text(tree, f"{agent.cgroup_root}/kube", "cpu.shares", "cpu.weight")
    assert shares == ("102" if tree.version == 1 else "17")
    total = int(Path("/proc/meminfo").read_text().split()[1]) << 10
    assert int(memory("kubepods")) == pytest.approx(total - 128 * MIB, abs=4096)


def test_a_reserved_cgroup_that_is_missing_ends_the_start_with_its_name(
    tree: CgroupTree, agent: LabAgent
) -> None:
    tree.create(f"{agent.cgroup_root}/system", CgroupConfig())
    agent.launch()
    missing = f"{agent.cgroup_root}/kube"
    told = f'Failed to enforce Kube Reserved Compressible Cgroup Limits on "{missing}": '
    _, status = os.waitpid(agent.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    assert told in agent.log.read_text()


def test_the_agent_runs_in_the_cgroup_that_is_named_for_it(
    tree: CgroupTree, agent: LabAgent
) -> None:
    name = f"{agent.cgroup_root}/agent"
    agent.settings = {"kubeletCgroups": name}
    agent.start()
    wait_until(
        lambda: (
            tree.exists(name) and all(agent.pid in members(each) for each in tree.folders(name))
        ),
        deadline_seconds=END_SECONDS,
        else_say=agent.last_words,
    )


async def test_processes_that_nobody_put_anywhere_are_moved_together(
    tree: CgroupTree, agent: LabAgent
) -> None:
    top = agent.cgroup_root.strip("/")
    tree.create(agent.cgroup_root, CgroupConfig())
    hierarchies = {name: root / top for name, root in tree.hierarchies.items()}
    below = CgroupTree(version=tree.version, hierarchies=hierarchies)
    others = SystemCgroups(below, agent="", others="/others")
    await others.start()
    process = await trio.lowlevel.open_process(["sleep", "600"])
    try:
        for folder in below.folders("/"):
            (folder / "cgroup.procs").write_text(str(process.pid))
        await others.move()
        for folder in below.folders("/others"):
            assert members(folder) == {process.pid}
    finally:
        process.kill()
        await process.wait()


def members(folder: Path) -> set[int]:
    """The processes of a cgroup; none of one that is not there."""
    file = folder / "cgroup.procs"
    return {int(word) for word in file.read_text().split()} if file.exists() else set()
