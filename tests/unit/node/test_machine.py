"""The machine, read from files as Linux has them."""

from pathlib import Path

import pytest

from tests.unit.node.nodes import a_machine
from trio_kubelet.config.flags import parse_flags
from trio_kubelet.config.settings import Settings
from trio_kubelet.node.host import read_this_machine
from trio_kubelet.node.machine import (
    IdFiles,
    go_architecture,
    is_kernel_older_than,
    read_machine,
)
from trio_kubelet.resource_managers.machine_topology import flat_topology

FILES = {
    "proc/meminfo": "MemTotal:        4030068 kB\nSwapTotal:       1048576 kB\n",
    "proc/sys/kernel/pid_max": "4194304\n",
    "proc/sys/kernel/threads-max": "31000\n",
    "proc/sys/kernel/random/boot_id": "99135cc2-87e3\n",
    "etc/machine-id": "3d1219c7c4c5\n",
    "etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 13 (trixie)"\n',
    "sys/class/dmi/id/product_uuid": "4c4c4544-0042\n",
    "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "3\n",
}


def a_host(folder: Path, *without: str, **files: str) -> Path:
    for name, content in {**FILES, **files}.items():
        if name not in without:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    return folder


def test_identity_and_size_are_read_from_the_host(tmp_path: Path) -> None:
    machine = read_machine(tmp_path, a_host(tmp_path))
    assert machine.machine_id == "3d1219c7c4c5"
    assert machine.system_uuid == "4c4c4544-0042"
    assert machine.boot_id == "99135cc2-87e3"
    assert machine.os_image == "Debian GNU/Linux 13 (trixie)"
    assert machine.swap_bytes == 1 << 30
    assert machine.max_pids == 31000
    assert machine.size.memory_bytes == 4030068 << 10
    assert machine.size.hugepages == {2 << 20: 6 << 20}
    assert machine.kernel_version
    assert machine.architecture


def test_a_machine_without_firmware_has_its_id_for_a_uuid(tmp_path: Path) -> None:
    host = a_host(tmp_path, "sys/class/dmi/id/product_uuid")
    assert read_machine(tmp_path, host).system_uuid == "3d1219c7c4c5"


def test_on_a_kernel_without_numa_one_node_has_all_memory(tmp_path: Path) -> None:
    machine = read_machine(tmp_path, a_host(tmp_path))
    (node,) = machine.topology.numa_nodes
    assert (node.memory_bytes, node.hugepages) == (machine.size.memory_bytes, {2 << 20: 6 << 20})


def test_what_cannot_be_read_is_empty(tmp_path: Path) -> None:
    host = a_host(tmp_path, "etc/machine-id", "etc/os-release", "sys/class/dmi/id/product_uuid")
    machine = read_machine(tmp_path, host)
    assert (machine.machine_id, machine.system_uuid, machine.os_image) == ("", "", "Linux")


def test_the_first_of_the_named_files_that_can_be_read_tells_an_id(tmp_path: Path) -> None:
    host = a_host(tmp_path)
    (host / "etc/other-id").write_text("an-image-s-id\n")
    ids = IdFiles(machine=("/no/such", "/etc/other-id", "/etc/machine-id"), boot=())
    machine = read_machine(tmp_path, host, ids)
    assert (machine.machine_id, machine.boot_id) == ("an-image-s-id", "")


def test_a_file_that_never_ends_tells_no_id(tmp_path: Path) -> None:
    host = a_host(tmp_path)
    ids = IdFiles(machine=("/etc/endless",))
    (host / "etc/endless").symlink_to("/dev/zero")
    assert read_machine(tmp_path, host, ids).machine_id == ""


@pytest.mark.parametrize(
    ("flag", "told"),
    [("--boot-id-file", "boot_id"), ("--machine-id-file", "machine_id")],
)
async def test_flags_name_the_files_of_ids(tmp_path: Path, flag: str, told: str) -> None:
    host = a_host(tmp_path)
    (host / "etc/other-id").write_text("of-a-flag")
    command_line = parse_flags((f"{flag}=/no/such,/etc/other-id", "--hollow"))
    settings = Settings(options=command_line.options)
    assert getattr(await read_this_machine(settings, host), told) == "of-a-flag"


def test_an_unlimited_number_of_tasks_is_unknown(tmp_path: Path) -> None:
    host = a_host(tmp_path, "proc/sys/kernel/pid_max", "proc/sys/kernel/threads-max")
    assert read_machine(tmp_path, host).max_pids is None


def test_a_root_folder_that_is_not_there_yet_has_the_size_of_what_it_will_be_on(
    tmp_path: Path,
) -> None:
    host = a_host(tmp_path)
    machine = read_machine(tmp_path / "not" / "yet", host)
    assert machine.storage_bytes == read_machine(tmp_path, host).storage_bytes
    assert machine.storage_bytes


@pytest.mark.parametrize(
    ("uname", "go"), [("x86_64", "amd64"), ("aarch64", "arm64"), ("s390x", "s390x")]
)
def test_architectures_are_named_as_go_names_them(uname: str, go: str) -> None:
    assert go_architecture(uname) == go


@pytest.mark.parametrize(
    "name",
    [
        "etc/os-release",
        "etc/machine-id",
        "sys/class/dmi/id/product_uuid",
        "proc/sys/kernel/random/boot_id",
        "proc/sys/kernel/pid_max",
    ],
)
def test_bytes_that_are_no_text_keep_no_machine_from_starting(tmp_path: Path, name: str) -> None:
    host = a_host(tmp_path)
    (host / name).write_bytes(b"PRETTY_NAME=\xffOS\xb2\n")
    machine = read_machine(tmp_path, host)
    assert machine.size.memory_bytes == 4030068 << 10
    if name == "etc/os-release":
        assert machine.os_image == "\ufffdOS\ufffd"


@pytest.mark.parametrize("text", ["\u00b2", "9" * 5000, "-1", "max"])
def test_a_limit_that_is_no_number_limits_nothing(tmp_path: Path, text: str) -> None:
    host = a_host(tmp_path, **{"proc/sys/kernel/pid_max": text})
    assert read_machine(tmp_path, host).max_pids == 31000


@pytest.mark.parametrize(
    ("kernel", "older"),
    [("5.8.18-generic", True), ("4.19", True), ("5.9.0", False), ("6.1.0-49", False), ("x", False)],
)
def test_kernels_are_compared_by_their_numbers(kernel: str, older: bool) -> None:
    assert is_kernel_older_than(a_machine(kernel_version=kernel), (5, 9)) is older


def cpu(host: Path, number: int, socket: str, core: str) -> None:
    folder = host / f"sys/devices/system/cpu/cpu{number}/topology"
    folder.mkdir(parents=True)
    (folder / "physical_package_id").write_text(f"{socket}\n")
    (folder / "core_cpus_list").write_text(f"{core}\n")


def test_threads_of_one_core_are_one_core_and_cores_of_two_sockets_are_not(tmp_path: Path) -> None:
    host = a_host(tmp_path)
    for number, (socket, core) in enumerate([("0", "0-1"), ("0", "0-1"), ("0", "2"), ("1", "3")]):
        cpu(host, number, socket, core)
    found = read_machine(tmp_path, host).topology
    assert (found.cores, found.sockets) == (3, 2)


def test_a_kernel_that_tells_no_topology_has_as_many_cores_as_cpus(tmp_path: Path) -> None:
    found = read_machine(tmp_path, a_host(tmp_path))
    assert found.topology.cpus == flat_topology(found.size.cpu_milli // 1000).cpus
