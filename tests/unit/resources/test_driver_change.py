"""Which cgroups of the other driver keep an agent from starting, on a tree that files play."""

from pathlib import Path
from typing import Any

import pytest

from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.resources import CgroupDriver, Cgroups, CgroupTree
from trio_kubelet.resources.cgroups import driver_change_problem
from trio_kubelet.resources.systemd_slices import SystemdSlices

CGROUPFS, SYSTEMD = CgroupDriver.CGROUPFS, CgroupDriver.SYSTEMD
BURSTABLE = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podb_1.slice"
ROOTED = "a.slice/a-kubepods.slice/a-kubepods-podb_1.slice"


@pytest.mark.parametrize(
    ("driver", "uids", "expected"),
    [
        (SYSTEMD, (), ""),
        (
            CGROUPFS,
            ("b-1",),
            "the cgroup driver is cgroupfs, but pods run in cgroups of the driver systemd (b-1); "
            "set cgroupDriver (--cgroup-driver) and the container runtime's driver back to "
            "systemd, or drain the node and remove its static pods before the driver is changed",
        ),
        (SYSTEMD, ("e", "d", "c", "b", "a"), "cgroups of the driver cgroupfs (a, b, c and 2 more)"),
    ],
    ids=["no pod runs elsewhere", "one pod does", "many pods do"],
)
def test_the_sentence_names_pods_driver_and_setting(
    driver: CgroupDriver, uids: tuple[str, ...], expected: str
) -> None:
    problem = driver_change_problem(driver, uids)
    assert expected in problem
    assert bool(problem) == bool(expected)


def cgroup(root: Path, path: str, events: str | None) -> None:
    """A cgroup with the `events` of cgroup v2, or without any, as on v1."""
    folder = root / path
    folder.mkdir(parents=True)
    if events is not None:
        (folder / "cgroup.events").write_text(f"{events}\nfrozen 0\n")


@pytest.mark.parametrize(
    ("driver", "settings", "path", "events", "refused"),
    [
        (CGROUPFS, {}, BURSTABLE, "populated 1", True),
        (CGROUPFS, {}, BURSTABLE, "populated 0", False),
        (CGROUPFS, {}, "kubepods/burstable/podb-1", "populated 1", False),
        (SYSTEMD, {}, "kubepods/burstable/podb-1", "populated 1", True),
        (SYSTEMD, {}, "kubepods/podb-1", "populated 1", True),
        (SYSTEMD, {}, BURSTABLE, "populated 1", False),
        (SYSTEMD, {}, "kubepods/burstable", "populated 1", False),
        (CGROUPFS, {"cgroup_root": "/a"}, ROOTED, "populated 1", True),
        (CGROUPFS, {}, ROOTED, "populated 1", False),
        (CGROUPFS, {"cgroups_per_qos": False}, BURSTABLE, "populated 1", False),
    ],
    ids=[
        "a pod of systemd's runs",
        "a cgroup of systemd's is empty",
        "a pod of the same driver runs",
        "a pod of cgroupfs runs",
        "a guaranteed pod of cgroupfs runs",
        "a pod of systemd's runs with systemd's driver",
        "what runs is no pod's",
        "below a root of its own",
        "below the root of another agent",
        "pods have no cgroups",
    ],
)
async def test_what_runs_in_cgroups_of_the_other_driver_forbids_a_start(
    driver: CgroupDriver,
    settings: dict[str, Any],
    path: str,
    events: str,
    refused: bool,
    tmp_path: Path,
) -> None:
    cgroup(tmp_path, path, events)
    tree = CgroupTree(version=2, hierarchies={"cpu": tmp_path, "memory": tmp_path})
    cgroups = Cgroups(tree, KubeletConfiguration(**settings), driver=driver)
    problem = await cgroups.driver_change_problem()
    assert bool(problem) is refused
    assert not refused or "b-1" in problem


@pytest.mark.parametrize("processes", ["", "17\n"])
async def test_on_cgroup_v1_it_is_the_processes_of_any_hierarchy_that_count(
    processes: str, tmp_path: Path
) -> None:
    hierarchies = {"cpu": tmp_path / "cpu", "memory": tmp_path / "memory"}
    for root in hierarchies.values():
        cgroup(root, f"{BURSTABLE}/container", None)
    (tmp_path / "memory" / BURSTABLE / "container" / "cgroup.procs").write_text(processes)
    tree = CgroupTree(version=1, hierarchies=hierarchies)
    problem = await Cgroups(
        tree, KubeletConfiguration(), driver=CgroupDriver.CGROUPFS
    ).driver_change_problem()
    assert bool(problem) is bool(processes)


@pytest.mark.parametrize(
    ("driver", "settings", "runs_in", "stays"),
    [
        (SYSTEMD, {}, "", False),
        (CGROUPFS, {}, "", True),
        (SYSTEMD, {}, "kubepods", True),
        (SYSTEMD, {"cgroup_root": "/a"}, "", True),
        (SYSTEMD, {"cgroups_per_qos": False}, "", True),
    ],
    ids=[
        "of the other driver",
        "of the same driver",
        "with a process that is in no pod",
        "below another root",
        "where pods have no cgroups",
    ],
)
async def test_empty_cgroups_of_the_other_driver_are_removed_before_those_of_this_one_are_made(
    driver: CgroupDriver,
    settings: dict[str, Any],
    runs_in: str,
    stays: bool,
    tmp_path: Path,
) -> None:
    (tmp_path / "kubepods" / "burstable" / "podb-1").mkdir(parents=True)
    (tmp_path / "system.slice").mkdir()
    if runs_in:
        (tmp_path / runs_in / "cgroup.procs").write_text("17\n")
    tree = CgroupTree(version=2, hierarchies={"cpu": tmp_path, "memory": tmp_path})
    cgroups = Cgroups(tree, KubeletConfiguration(**settings), driver=driver)
    await cgroups.remove_cgroups_of_other_driver()
    assert (tmp_path / "kubepods" / "burstable" / "podb-1").exists() is stays
    assert (tmp_path / "kubepods").exists() is stays
    assert (tmp_path / "system.slice").exists()


async def test_slices_are_removed_where_there_is_no_systemd_any_more(tmp_path: Path) -> None:
    (tmp_path / BURSTABLE).mkdir(parents=True)
    tree = CgroupTree(version=2, hierarchies={"cpu": tmp_path, "memory": tmp_path})
    absent = SystemdSlices(2, f"unix:path={tmp_path}/absent", f"{tmp_path}/absent")
    await Cgroups(
        tree, KubeletConfiguration(), driver=CgroupDriver.CGROUPFS, slices=absent
    ).remove_cgroups_of_other_driver()
    assert not (tmp_path / "kubepods.slice").exists()
