"""Cgroups of the agent and of processes that nobody put anywhere."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.unit.resources.fake_cgroups import FakeV2
from trio_kubelet.config.model import KubeletConfiguration, NodeOptions
from trio_kubelet.errors import StartError
from trio_kubelet.node.system_cgroups import SystemCgroups, system_cgroup_paths

AGENT, KERNEL_THREAD, STRAY = 0, 2, 300


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A hierarchy with process 1, a thread of the kernel and a stray process in its root."""
    root = tmp_path / "cgroup"
    root.mkdir()
    FakeV2(root, "cpu memory", ("others", "agent"))
    (root / "cgroup.procs").write_text(f"1\n{KERNEL_THREAD}\n{STRAY}\n")
    for pid in (1, KERNEL_THREAD, STRAY):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
    for pid in (1, STRAY):
        (tmp_path / f"proc/{pid}/exe").symlink_to("/bin/sh")
    return root


def cgroups(root: Path, agent: str = "", others: str = "") -> SystemCgroups:
    tree = FakeV2(root, "cpu memory", ()).tree
    return SystemCgroups(tree, agent, others, processes=root.parent / "proc")


def processes(root: Path, name: str) -> str:
    return (root / name / "cgroup.procs").read_text()


async def test_the_agent_is_moved_before_it_does_anything_else(root: Path) -> None:
    await cgroups(root, agent="/agent").start()
    assert processes(root, "agent") == str(AGENT)


async def test_who_is_nowhere_is_moved_but_no_thread_of_the_kernel(
    root: Path, autojump_clock: MockClock
) -> None:
    system = cgroups(root, others="/others")
    await system.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(system.run)
        await trio.sleep(1)
        assert processes(root, "others") == str(STRAY)
        (root / "cgroup.procs").write_text("1\n301\n")
        (root.parent / "proc/301").mkdir()
        (root.parent / "proc/301/exe").symlink_to("/bin/sh")
        await trio.sleep(60)
        assert processes(root, "others") == "301"
        nursery.cancel_scope.cancel()


async def test_a_cgroup_that_is_not_there_is_made(root: Path) -> None:
    await cgroups(root, others="/new").start()
    assert (root / "new").is_dir()


def test_the_root_is_no_cgroup_of_processes(root: Path) -> None:
    tree = FakeV2(root, "cpu memory", ()).tree
    with pytest.raises(StartError, match="system container cannot be root"):
        SystemCgroups.of(tree, KubeletConfiguration(system_cgroups="/"))
    assert SystemCgroups.of(tree, KubeletConfiguration()) is None
    assert SystemCgroups.of(tree, KubeletConfiguration(kubelet_cgroups="/kubelet")) is not None


def test_statistics_know_the_cgroups_that_settings_name_by_upstreams_names() -> None:
    configuration = KubeletConfiguration(kubelet_cgroups="agent", system_cgroups="/others/")
    options = NodeOptions(runtime_cgroups="/system.slice/containerd.service")
    assert system_cgroup_paths(configuration, options) == {
        "kubelet": "/agent",
        "runtime": "/system.slice/containerd.service",
        "misc": "/others",
    }
    assert system_cgroup_paths(KubeletConfiguration(), NodeOptions()) == {}
