"""Real cgroups, under a root of the test's own."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from lab.orphans import cgroup_of_ours
from lab.processes import wait_until
from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.k8s import Container, ObjectMeta, Pod, PodSpec, Quantity, ResourceRequirements
from trio_kubelet.kernel.mountinfo import mount_points
from trio_kubelet.resources import CgroupConfig, CgroupDriver, Cgroups, CgroupTree
from trio_kubelet.resources.cgroups import CgroupBusy, MissingCgroup
from trio_kubelet.resources.oom_kills import OomKills
from trio_kubelet.resources.oom_ledger import SeenContainer
from trio_kubelet.resources.qos_memory import MemoryReserve

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="making cgroups needs root"),
]

MI = 1 << 20


def pod_with(uid: str, requests: str = "", limits: str = "") -> Pod:
    def amounts(text: str) -> dict[str, Quantity]:
        return {n: Quantity(q) for n, q in (part.split("=") for part in text.split())}

    resources = ResourceRequirements(requests=amounts(requests), limits=amounts(limits))
    return Pod(
        metadata=ObjectMeta(name="p", namespace="n", uid=uid),
        spec=PodSpec(containers=(Container(name="c", resources=resources),)),
    )


BURSTABLE = pod_with("b-1", "cpu=500m", "cpu=1 memory=64Mi")
BEST_EFFORT = pod_with("e-1")
GUARANTEED = pod_with("g-1", "cpu=1 memory=64Mi", "cpu=1 memory=64Mi")


@pytest.fixture
def tree() -> CgroupTree:
    return CgroupTree.find(mount_points())


@pytest.fixture
def root() -> str:
    return f"/{cgroup_of_ours(uuid.uuid4().hex[:8])}"


@pytest.fixture
async def cgroups(tree: CgroupTree, root: str) -> AsyncIterator[Cgroups]:
    cgroups = Cgroups(tree, KubeletConfiguration(cgroup_root=root), driver=CgroupDriver.CGROUPFS)
    await cgroups.start(CgroupConfig(cpu_shares=2048, memory_limit_bytes=512 * MI))
    yield cgroups
    with trio.fail_after(60):
        while not [*tree.removal(root)][-1]:
            await trio.lowlevel.checkpoint()


def value(tree: CgroupTree, path: str, v1: str, v2: str) -> str:
    """What a file of a cgroup says: controller and name of the file on v1, name on v2."""
    controller = v1.partition(".")[0] or "memory"
    name = v1 if tree.version == 1 else v2
    return (tree.hierarchies[controller] / path.lstrip("/") / name).read_text().strip()


async def test_the_cgroups_above_the_pods_exist_in_every_hierarchy(
    tree: CgroupTree, root: str, cgroups: Cgroups
) -> None:
    for path in ("/kubepods", "/kubepods/burstable", "/kubepods/besteffort"):
        assert tree.exists(root + path)
    limit = value(tree, f"{root}/kubepods", "memory.limit_in_bytes", "memory.max")
    assert limit == str(512 * MI)
    shares = value(tree, f"{root}/kubepods/besteffort", "cpu.shares", "cpu.weight")
    assert shares == ("2" if tree.version == 1 else "1")


async def test_starting_again_changes_nothing(
    tree: CgroupTree, root: str, cgroups: Cgroups
) -> None:
    await cgroups.ensure(BURSTABLE)
    await cgroups.start()
    assert await cgroups.list_pod_uids() == {"b-1"}
    limit = value(tree, f"{root}/kubepods", "memory.limit_in_bytes", "memory.max")
    assert limit == str(512 * MI)


async def test_a_pods_cgroup_has_its_values(tree: CgroupTree, root: str, cgroups: Cgroups) -> None:
    await cgroups.ensure(BURSTABLE)
    path = f"{root}/kubepods/burstable/podb-1"
    assert tree.exists(path)
    assert value(tree, path, "memory.limit_in_bytes", "memory.max") == str(64 * MI)
    shares = value(tree, path, "cpu.shares", "cpu.weight")
    assert shares == ("512" if tree.version == 1 else "59")
    quota = value(tree, path, "cpu.cfs_quota_us", "cpu.max")
    assert quota.split()[0] == "100000"


async def test_a_cgroup_that_was_made_without_values_gets_them_and_keeps_a_resize(
    tree: CgroupTree, root: str, cgroups: Cgroups
) -> None:
    path = f"{root}/kubepods/burstable/podb-1"
    tree.create(path, CgroupConfig())  # The agent that made it was killed right after.

    def limit() -> str:
        return value(tree, path, "memory.limit_in_bytes", "memory.max")

    await cgroups.ensure(BURSTABLE)
    assert limit() == str(64 * MI)
    tree.create(f"{path}/sandbox", CgroupConfig(memory_limit_bytes=32 * MI))
    await cgroups.update(BURSTABLE, CgroupConfig(memory_limit_bytes=128 * MI))
    configuration = KubeletConfiguration(cgroup_root=root)
    restarted = Cgroups(tree, configuration, driver=CgroupDriver.CGROUPFS)
    await restarted.ensure(BURSTABLE)
    assert limit() == str(128 * MI)


async def test_pods_are_listed_by_uid_whatever_their_class(cgroups: Cgroups) -> None:
    for pod in (BURSTABLE, BEST_EFFORT, GUARANTEED):
        await cgroups.ensure(pod)
        await cgroups.ensure(pod)
    assert await cgroups.list_pod_uids() == {"b-1", "e-1", "g-1"}
    await cgroups.remove("g-1")
    assert await cgroups.list_pod_uids() == {"b-1", "e-1"}


async def test_the_qos_cgroup_weighs_what_its_pods_ask_for(
    tree: CgroupTree, root: str, cgroups: Cgroups
) -> None:
    path = f"{root}/kubepods/burstable"
    await cgroups.update_qos((BURSTABLE, pod_with("b-2", "cpu=500m"), GUARANTEED))
    shares = value(tree, path, "cpu.shares", "cpu.weight")
    assert shares == ("1024" if tree.version == 1 else "100")
    await cgroups.update_qos(())
    shares = value(tree, path, "cpu.shares", "cpu.weight")
    assert shares == ("2" if tree.version == 1 else "1")


async def test_of_several_weighings_the_last_counts(
    tree: CgroupTree, root: str, cgroups: Cgroups
) -> None:
    pods = [pod_with(f"b-{number}", "cpu=250m") for number in range(8)]
    async with trio.open_nursery() as nursery:

        async def pods_come() -> None:
            for number in range(1, 9):
                nursery.start_soon(cgroups.update_qos, pods[:number])
                await trio.lowlevel.checkpoint()

        nursery.start_soon(pods_come)
    shares = value(tree, f"{root}/kubepods/burstable", "cpu.shares", "cpu.weight")
    assert shares == ("2048" if tree.version == 1 else "174")


async def test_a_cgroup_can_hold_processes_in_every_hierarchy(
    tree: CgroupTree, root: str, cgroups: Cgroups
) -> None:
    await cgroups.ensure(BEST_EFFORT)
    process = await trio.lowlevel.open_process(["sleep", "600"])
    try:
        _join(tree, f"{root}/kubepods/besteffort/pode-1", process.pid)
    finally:
        process.kill()
        await process.wait()


async def test_removing_kills_what_still_runs_below(
    tree: CgroupTree, root: str, cgroups: Cgroups
) -> None:
    await cgroups.ensure(BURSTABLE)
    container = f"{root}/kubepods/burstable/podb-1/container"
    for folder in tree.folders(container):
        folder.mkdir()
    if tree.version == 1:
        for name in ("cpuset.cpus", "cpuset.mems"):
            folder = tree.hierarchies["cpuset"] / container.lstrip("/")
            (folder / name).write_text((folder.parent / name).read_text())
    process = await trio.lowlevel.open_process(["sleep", "600"])
    _join(tree, container, process.pid)
    with trio.fail_after(60):
        await cgroups.remove("b-1")
        assert await process.wait() == -9
    assert await cgroups.list_pod_uids() == set()


async def test_removing_gives_up_after_its_deadline(
    tree: CgroupTree, cgroups: Cgroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cgroups.ensure(BURSTABLE)
    with monkeypatch.context() as patched:
        patched.setattr("trio_kubelet.resources.cgroup_tree._remove_empty", lambda folder: False)
        with pytest.raises(CgroupBusy, match="still in use"):
            await cgroups.remove("b-1", deadline_seconds=0.05)


async def test_removing_what_is_not_there_is_fine(cgroups: Cgroups) -> None:
    await cgroups.remove("never-was")


async def test_a_cgroup_lost_from_one_hierarchy_is_made_again(
    tree: CgroupTree, root: str, cgroups: Cgroups
) -> None:
    await cgroups.ensure(BEST_EFFORT)
    path = f"{root}/kubepods/besteffort/pode-1"
    tree.folders(path)[-1].rmdir()
    await cgroups.ensure(BEST_EFFORT)
    assert tree.exists(path)


async def test_without_qos_cgroups_nothing_is_made(tree: CgroupTree, root: str) -> None:
    cgroups = Cgroups(
        tree,
        KubeletConfiguration(cgroup_root=root, cgroups_per_qos=False),
        driver=CgroupDriver.CGROUPFS,
    )
    await cgroups.start()
    await cgroups.ensure(BEST_EFFORT)
    await cgroups.update_qos((BURSTABLE,))
    assert not any(folder.exists() for folder in tree.folders(root))
    assert await cgroups.list_pod_uids() == set()


def _join(tree: CgroupTree, path: str, pid: int) -> None:
    for folder in tree.folders(path):
        (folder / "cgroup.procs").write_text(str(pid))
        members = Path(folder / "cgroup.procs").read_text().split()
        assert str(pid) in members


def end_in(tree: CgroupTree, folder: Path, script: str) -> int:
    """Run a container's only process in the cgroup that a runtime makes, and removes."""
    folder.mkdir(exist_ok=True)
    limit = "memory.limit_in_bytes"
    if tree.version == 2:
        limit = "memory.max"
        (folder.parent / "cgroup.subtree_control").write_text("+memory")
    (folder / limit).write_text(str(8 * MI))
    shell = ["sh", "-c", f"echo $$ >{folder}/cgroup.procs; {script}"]
    status = subprocess.run(shell, check=False).returncode
    wait_until(
        lambda: bool([*tree.removal(f"/{folder.relative_to(tree.hierarchies['memory'])}")][-1]),
        deadline_seconds=60,
        else_say=lambda: f"{folder} is not gone",
    )
    return status


def listens() -> int:
    """How many eventfds this process has."""
    targets = []
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            targets.append(str(fd.readlink()))
    return targets.count("anon_inode:[eventfd]")


async def test_the_kernel_tells_whom_it_killed_for_their_memory_when_they_are_gone(
    tree: CgroupTree, root: str, cgroups: Cgroups, tmp_path: Path
) -> None:
    await cgroups.ensure(BURSTABLE)
    pod = tree.hierarchies["memory"] / f"{root}/kubepods/burstable/podb-1".lstrip("/")
    (tmp_path / "b-1").mkdir()
    kills = OomKills(tree, tmp_path, cgroup_root=root)
    before, seen, hungry = listens(), [], set()
    for number, script in enumerate(("exec tail /dev/zero", "kill -9 $$") * 5):
        name = f"c{number}"
        await kills.expect_start("b-1", name)
        status = await trio.to_thread.run_sync(end_in, tree, pod / name, script)
        assert status == -signal.SIGKILL
        seen.append(SeenContainer(id=name, name=name, ended=True, exit_code=137))
        if "tail" in script:
            hungry.add(name)
        assert await kills.killed("b-1", seen, trio.current_time()) == hungry
    assert listens() == before
    restarted = OomKills(tree, tmp_path, cgroup_root=root)
    assert await restarted.killed("b-1", seen, trio.current_time()) == hungry


async def test_nothing_is_left_of_what_was_prepared_for_a_container_that_is_gone(
    tree: CgroupTree, root: str, cgroups: Cgroups, tmp_path: Path
) -> None:
    await cgroups.ensure(BURSTABLE)
    pod = tree.hierarchies["memory"] / f"{root}/kubepods/burstable/podb-1".lstrip("/")
    kills = OomKills(tree, tmp_path, cgroup_root=root)
    began, before = trio.current_time(), listens()
    await kills.expect_start("b-1", "c")
    await kills.killed("b-1", [], began)
    created = SeenContainer(id="c", name="c", started=False)
    await kills.killed("b-1", [created], trio.current_time())
    assert listens() == before + 2 * (tree.version == 1)
    await kills.killed("b-1", [], trio.current_time())
    assert listens() == before
    assert not (pod / "c").exists()


async def test_what_was_prepared_goes_with_its_container_and_with_its_pod(
    tree: CgroupTree, root: str, cgroups: Cgroups, tmp_path: Path
) -> None:
    await cgroups.ensure(BURSTABLE)
    pod = tree.hierarchies["memory"] / f"{root}/kubepods/burstable/podb-1".lstrip("/")
    kills = OomKills(tree, tmp_path, cgroup_root=root)
    before, each = listens(), 2 * (tree.version == 1)
    await kills.expect_start("b-1", "c")
    await kills.expect_start("b-1", "d")
    await kills.forget_container("b-1", "c")
    assert listens() == before + each
    assert not (pod / "c").exists()
    await kills.forget("b-1")
    assert listens() == before
    assert not (pod / "d").exists()


async def test_processes_of_the_system_are_held_to_what_is_reserved_for_them(
    tree: CgroupTree, root: str, cgroups: Cgroups
) -> None:
    name = f"{root}/system"
    with pytest.raises(MissingCgroup, match=f'cgroup "{name}" has some missing paths: /sys/fs/'):
        await cgroups.limit_existing(name, CgroupConfig(cpu_shares=512))
    assert not tree.exists_anywhere(name)
    tree.create(name, CgroupConfig())
    await cgroups.limit_existing(
        name, CgroupConfig(cpu_shares=512, memory_limit_bytes=64 * MI, memory_min_bytes=64 * MI)
    )
    assert value(tree, name, "memory.limit_in_bytes", "memory.max") == str(64 * MI)
    shares = value(tree, name, "cpu.shares", "cpu.weight")
    assert shares == ("512" if tree.version == 1 else "59")
    if tree.version == 2:
        assert value(tree, name, "", "memory.min") == str(64 * MI)


@pytest.fixture
async def protecting(tree: CgroupTree, root: str, cgroups: Cgroups) -> Cgroups:
    """Cgroups below the same root, whose configuration protects the memory of pods."""
    configuration = KubeletConfiguration(
        cgroup_root=root, memory_reservation_policy="TieredReservation"
    )
    return Cgroups(tree, configuration, driver=CgroupDriver.CGROUPFS)


async def test_memory_that_pods_ask_for_is_protected_while_the_setting_says_so(
    tree: CgroupTree, root: str, cgroups: Cgroups, protecting: Cgroups
) -> None:
    if tree.version == 1:
        pytest.skip("cgroup v1 has no such protection")
    asking = pod_with("b-2", "memory=16Mi", "memory=64Mi")
    await protecting.ensure(GUARANTEED)
    await protecting.ensure(asking)
    await protecting.update_qos((GUARANTEED, asking))

    def protection(path: str) -> tuple[str, str]:
        return value(tree, path, "", "memory.min"), value(tree, path, "", "memory.low")

    paths = ("/kubepods", "/kubepods/burstable", "/kubepods/podg-1", "/kubepods/burstable/podb-2")
    assert [protection(root + path) for path in paths] == [
        (str(80 * MI), str(16 * MI)),
        ("0", str(16 * MI)),
        (str(64 * MI), "0"),
        ("0", str(16 * MI)),
    ]
    await cgroups.start()
    for pod in (GUARANTEED, asking):
        await cgroups.ensure(pod)
    assert [protection(root + path) for path in paths] == [("0", "0")] * len(paths)


async def test_a_class_that_uses_more_than_it_is_left_is_limited_as_far_as_the_kernel_does(
    tree: CgroupTree, root: str, cgroups: Cgroups
) -> None:
    reserving = Cgroups(
        tree,
        KubeletConfiguration(cgroup_root=root),
        driver=CgroupDriver.CGROUPFS,
        reserve=MemoryReserve(percent=100, allocatable_bytes=96 * MI),
    )
    await reserving.ensure(BURSTABLE)
    path = f"{root}/kubepods/burstable"
    hoard = "hoard = bytearray(48 << 20); import time; print(1, flush=True); time.sleep(600)"
    folder = tree.hierarchies["memory"] / f"{path}/podb-1".lstrip("/")
    script = f"echo $$ >{folder}/cgroup.procs; exec {sys.executable} -c '{hoard}'"
    process = await trio.lowlevel.open_process(["sh", "-c", script], stdout=subprocess.PIPE)

    def limit() -> int:
        return int(value(tree, path, "memory.limit_in_bytes", "memory.max"))

    try:
        assert process.stdout is not None
        await process.stdout.receive_some()
        await reserving.update_qos((GUARANTEED, BURSTABLE))
        if tree.version == 1:
            # The kernel refuses a limit below what is in use: no more than that it is.
            assert 48 * MI <= limit() < 64 * MI
        else:
            with trio.fail_after(60):
                assert await process.wait() == -signal.SIGKILL
    finally:
        process.kill()
        await process.wait()
    await reserving.update_qos((GUARANTEED, BURSTABLE))
    assert limit() == 32 * MI
