"""The topology of machines, read from the files of sysfs."""

from pathlib import Path

import pytest

from tests.unit.resource_managers.machines import (
    EIGHT_NODES,
    FOUR_NODES,
    HYBRID,
    NEIGHBOURS,
    PARTLY_OFFLINE,
    SINGLE_THREADED,
    SMALL,
    SPLIT_CACHES,
    TWO_SOCKETS,
    Shape,
    machine,
    write_machine,
)
from trio_kubelet.resource_managers.cpu_sets import cpu_list, parsed_cpus
from trio_kubelet.resource_managers.machine_topology import (
    Cpu,
    Level,
    flat_topology,
    read_topology,
)


@pytest.mark.parametrize(
    ("shape", "counts"),
    [
        (SMALL, (8, 4, 1, 1, 2)),
        (SINGLE_THREADED, (8, 8, 1, 1, 1)),
        (TWO_SOCKETS, (24, 12, 2, 2, 2)),
        (FOUR_NODES, (32, 16, 4, 2, 2)),
        (EIGHT_NODES, (512, 256, 8, 2, 2)),
        (HYBRID, (12, 8, 1, 1, 1)),
        (NEIGHBOURS, (8, 4, 1, 1, 2)),
        (PARTLY_OFFLINE, (6, 4, 1, 1, 1)),
    ],
)
def test_cpus_cores_nodes_and_sockets_are_counted(shape: Shape, counts: tuple[int, ...]) -> None:
    found = machine(shape)
    assert counts == (
        len(found.all),
        found.cores,
        found.nodes,
        found.sockets,
        found.cpus_per_core,
    )


def groups(shape: Shape, level: Level) -> list[str]:
    return [cpu_list(group) for group in machine(shape).groups[level].values()]


def test_cpus_are_grouped_by_what_they_share() -> None:
    assert groups(SMALL, Level.CORE) == ["0,4", "1,5", "2,6", "3,7"]
    assert groups(NEIGHBOURS, Level.CORE) == ["0-1", "2-3", "4-5", "6-7"]
    assert groups(TWO_SOCKETS, Level.SOCKET) == ["0-5,12-17", "6-11,18-23"]
    assert groups(FOUR_NODES, Level.NODE) == ["0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"]
    assert groups(FOUR_NODES, Level.SOCKET) == ["0-7,16-23", "8-15,24-31"]
    assert groups(SPLIT_CACHES, Level.CACHE) == ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]
    assert groups(HYBRID, Level.CORE) == ["0,4", "1,5", "2,6", "3,7", "8", "9", "10", "11"]


def test_cpus_without_a_cache_outside_of_the_core_count_as_sharing_one_for_each_socket() -> None:
    assert groups(TWO_SOCKETS, Level.CACHE) == ["6-11,18-23", "0-5,12-17"]


def test_what_is_offline_is_not_there_and_names_no_core() -> None:
    assert cpu_list(machine(PARTLY_OFFLINE).all) == "0-1,3-6"
    assert groups(PARTLY_OFFLINE, Level.CORE) == ["0,4", "1,5", "3", "6"]


def test_only_cores_that_are_free_altogether_are_whole() -> None:
    assert cpu_list(machine(SMALL).of_whole_cores(parsed_cpus("0-2,5-7"))) == "1-2,5-6"


def test_a_kernel_that_tells_nothing_has_a_flat_machine(tmp_path: Path) -> None:
    assert read_topology(tmp_path, 3) == flat_topology(3)
    assert flat_topology(2).cpus[1] == Cpu(id=1, core=1, cache=-1, node=0, socket=0)


def test_a_kernel_without_numa_has_one_node_and_folders_tell_what_is_online(tmp_path: Path) -> None:
    write_machine(tmp_path, SMALL)
    (tmp_path / "cpu/online").unlink()
    (tmp_path / "cpu/cpuidle").mkdir()
    for path in (tmp_path / "node").rglob("cpulist"):
        path.unlink()
    assert read_topology(tmp_path, 1) == machine(SMALL)


@pytest.mark.parametrize("package", ["-1", ""])
def test_a_socket_without_a_number_is_the_first(tmp_path: Path, package: str) -> None:
    write_machine(tmp_path, SMALL)
    for path in tmp_path.rglob("physical_package_id"):
        path.write_text(package)
    assert read_topology(tmp_path, 1) == machine(SMALL)


def test_older_kernels_have_another_file_for_the_threads_of_a_core(tmp_path: Path) -> None:
    write_machine(tmp_path, SMALL)
    for path in tmp_path.rglob("core_cpus_list"):
        path.rename(path.with_name("thread_siblings_list"))
    assert read_topology(tmp_path, 1) == machine(SMALL)


@pytest.mark.parametrize("text", ["many", "0-99999", "3-1", "0,,1", "²"])
def test_a_list_of_cpus_that_makes_no_sense_is_an_error(tmp_path: Path, text: str) -> None:
    write_machine(tmp_path, SMALL)
    (tmp_path / "cpu/online").write_text(text)
    with pytest.raises(ValueError, match=r"no number of a CPU|no range of CPUs"):
        read_topology(tmp_path, 1)


@pytest.mark.parametrize("text", ["", "0", "0-2,7", "1,3,5-65535"])
def test_lists_of_cpus_are_read_and_written_alike(text: str) -> None:
    assert cpu_list(parsed_cpus(text)) == text
