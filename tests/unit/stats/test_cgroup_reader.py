"""What is read of a tree of cgroups, and how often."""

import shutil
from pathlib import Path

import pytest
from attrs import evolve

from tests.unit.stats.kernel import CONTAINER, POD_CGROUP, SANDBOX, UID, machine, write_cgroup
from trio_kubelet.resources import CgroupTree
from trio_kubelet.stats import cgroup_files, cgroup_reader
from trio_kubelet.stats.cgroup_files import read_file
from trio_kubelet.stats.cgroup_reader import (
    MAX_WITHIN_CONTAINERS,
    CgroupReader,
    Depth,
    Stopwatch,
    id_in,
)

MI = 1 << 20
CONTAINER_CGROUP = f"{POD_CGROUP}/cri-containerd-{CONTAINER}.scope"


def reader(root: Path) -> CgroupReader:
    controllers = ("cpu", "memory", "io", "pids")
    tree = CgroupTree(version=2, hierarchies=dict.fromkeys(controllers, machine(root)))
    return CgroupReader(tree=tree, host=str(root / "host"))


def limit(reader: CgroupReader) -> int | None:
    pod = reader.read(Stopwatch(0), Depth.USAGE, dict).pods[UID]
    memory = pod.children[CONTAINER].usage.memory
    assert memory is not None
    return memory.limit


def test_a_limit_is_read_again_when_it_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = reader(tmp_path)
    assert limit(here) is None
    (tmp_path / "cgroup" / CONTAINER_CGROUP.lstrip("/") / "memory.max").write_text(f"{64 * MI}\n")
    assert limit(here) is None
    monkeypatch.setattr(cgroup_files, "LIMIT_SECONDS", -1.0)
    assert limit(here) == 64 * MI


def test_the_limit_of_all_pods_is_read_each_time(tmp_path: Path) -> None:
    """Or a node whose agent reserves more for the system would evict too late for a minute."""
    here = reader(tmp_path)
    for limit_mi in (1024, 512):
        file = tmp_path / "cgroup/kubepods.slice/memory.max"
        file.write_text(f"{limit_mi * MI}\n")
        pods = here.read_node(Stopwatch(0)).pods
        assert pods is not None
        assert pods.memory is not None
        assert pods.memory.limit == limit_mi * MI


def test_use_is_read_each_time(tmp_path: Path) -> None:
    here = reader(tmp_path)
    here.read(Stopwatch(0), Depth.USAGE, dict)
    write_cgroup(tmp_path / "cgroup", CONTAINER_CGROUP, cpu_seconds=99, memory=50 * MI)
    usage = here.read(Stopwatch(0), Depth.USAGE, dict).pods[UID].children[CONTAINER].usage
    assert usage.cpu is not None
    assert usage.cpu.total_ns == 99_000_000_000


def tasks(reader: CgroupReader) -> int | None:
    pod = reader.read(Stopwatch(0), Depth.USAGE, dict).pods[UID]
    return pod.children[CONTAINER].usage.tasks


def test_other_files_of_a_cgroup_are_read_again_once_it_has_run(tmp_path: Path) -> None:
    here = reader(tmp_path)
    folder = tmp_path / "cgroup" / CONTAINER_CGROUP.lstrip("/")
    assert tasks(here) == 1
    (folder / "pids.current").write_text("7\n")
    assert tasks(here) == 1
    write_cgroup(tmp_path / "cgroup", CONTAINER_CGROUP, cpu_seconds=3, memory=30 * MI)
    (folder / "pids.current").write_text("7\n")
    assert tasks(here) == 7


def test_the_time_of_an_idle_cgroup_is_that_of_the_reading(tmp_path: Path) -> None:
    here = reader(tmp_path)
    for now_ns in (5, 6_000_000_000):
        found = here.read(Stopwatch(now_ns), Depth.DETAILS, dict).pods[UID]
        assert found.usage.time_ns >= now_ns


def test_a_cgroup_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    here = reader(tmp_path)
    assert tasks(here) == 1
    shutil.rmtree(tmp_path / "cgroup" / POD_CGROUP.lstrip("/"))
    assert here.read(Stopwatch(0), Depth.USAGE, dict).pods == {}
    write_cgroup(tmp_path / "cgroup", POD_CGROUP, cpu_seconds=3, memory=31 * MI)
    write_cgroup(tmp_path / "cgroup", CONTAINER_CGROUP, cpu_seconds=2, memory=30 * MI)
    (tmp_path / "cgroup" / CONTAINER_CGROUP.lstrip("/") / "pids.current").write_text("9\n")
    assert tasks(here) == 9


@pytest.mark.parametrize("below", ["", "/container"])
def test_a_pod_has_the_network_of_its_processes_also_of_those_a_folder_deeper(
    tmp_path: Path, below: str
) -> None:
    here = reader(tmp_path)
    folder = tmp_path / "cgroup" / f"{CONTAINER_CGROUP}{below}".lstrip("/")
    folder.mkdir(exist_ok=True)
    (folder / "cgroup.procs").write_text("42\n43\n")
    (tmp_path / "host/proc/42/net").mkdir(parents=True)
    (tmp_path / "host/proc/42/net/dev").write_text("  eth0: 7 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0\n")
    network = here.read(Stopwatch(0), Depth.NETWORK, dict).pods[UID].network
    assert network is not None
    assert [(each.name, each.rx_bytes) for each in network.interfaces] == [("eth0", 7)]


def test_of_the_cgroups_that_a_container_has_made_only_some_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, looked_at = reader(tmp_path), set[str]()

    def read(path: str) -> bytes | None:
        if path.endswith("/cgroup.procs"):
            looked_at.add(path)
        return read_file(path)

    monkeypatch.setattr(cgroup_reader, "read_file", read)
    for number in range(2 * MAX_WITHIN_CONTAINERS):
        (tmp_path / "cgroup" / f"{CONTAINER_CGROUP}/made-{number}".lstrip("/")).mkdir()
    assert here.read(Stopwatch(0), Depth.NETWORK, dict).pods[UID].network is None
    containers = 2  # The pod's, and its sandbox.
    assert len(looked_at) == containers + MAX_WITHIN_CONTAINERS


def test_the_cgroups_above_the_pods_begin_with_that_of_all_pods(tmp_path: Path) -> None:
    found = reader(tmp_path).read(Stopwatch(0), Depth.USAGE, dict)
    assert list(found.between) == ["/kubepods.slice", "/kubepods.slice/kubepods-besteffort.slice"]
    assert found.pods[UID].children.keys() == {CONTAINER, SANDBOX}
    assert [each.name for each in found.system] == ["pods"]


def test_cgroups_that_settings_name_are_system_containers_whatever_runs_there(
    tmp_path: Path,
) -> None:
    write_cgroup(tmp_path / "cgroup", "/kubelet", cpu_seconds=3, memory=5 * MI)
    named = {"kubelet": "/kubelet", "misc": "/nobody"}
    here = evolve(reader(tmp_path), system_cgroups=named)
    (tmp_path / "host/proc/42").mkdir(parents=True)
    (tmp_path / "host/proc/42/cgroup").write_text("0::/elsewhere\n")
    found = here.read(Stopwatch(0), Depth.USAGE, lambda: {"kubelet": 42}).system
    assert [(each.name, each.cgroup) for each in found][:-1] == [("kubelet", "/kubelet")]


@pytest.mark.parametrize(
    "folder", ["abc", "cri-containerd-abc.scope", "crio-abc.scope", "crio-abc"]
)
def test_the_id_in_the_name_of_a_cgroup(folder: str) -> None:
    assert id_in(folder) == "abc"
