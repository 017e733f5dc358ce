from pathlib import Path

import pytest

from trio_kubelet.node.machine import MachineSize, node_capacity

KI, MI, GI = 1 << 10, 1 << 20, 1 << 30


def test_the_machines_size_is_read(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       24668392 kB\nMemFree: 1 kB\n")
    for size, count in (("2048kB", 8), ("1048576kB", 0)):
        folder = tmp_path / f"hugepages-{size}"
        folder.mkdir()
        (folder / "nr_hugepages").write_text(f"{count}\n")
    assert node_capacity(meminfo, tmp_path, cpus=2) == MachineSize(
        cpu_milli=2000, memory_bytes=24668392 * KI, hugepages={2 * MI: 16 * MI, GI: 0}
    )


def test_this_machine_can_be_read() -> None:
    assert node_capacity().memory_bytes > 0


def test_a_kernel_that_does_not_tell(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("")
    with pytest.raises(ValueError, match="MemTotal"):
        node_capacity(tmp_path / "meminfo", tmp_path)
