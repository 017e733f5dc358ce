import pytest

from trio_kubelet.resources import CgroupConfig
from trio_kubelet.resources.cgroup_files import files_v1, files_v2, page_size

MI = 1 << 20
FULL = CgroupConfig(
    cpu_shares=1024,
    cpu_quota_us=20_000,
    cpu_period_us=100_000,
    memory_limit_bytes=64 * MI,
    pids_limit=10,
    hugepage_limits={2 * MI: 4 * MI, 1024 * MI: 0},
)


def test_files_of_cgroup_v1_in_the_order_the_kernel_takes() -> None:
    assert [(each.name, each.text) for each in files_v1(FULL)] == [
        ("cpu.shares", "1024"),
        ("cpu.cfs_period_us", "100000"),
        ("cpu.cfs_quota_us", "20000"),
        ("memory.limit_in_bytes", str(64 * MI)),
        ("pids.max", "10"),
        ("hugetlb.2MB.limit_in_bytes", str(4 * MI)),
        ("hugetlb.2MB.rsvd.limit_in_bytes", str(4 * MI)),
        ("hugetlb.1GB.limit_in_bytes", "0"),
        ("hugetlb.1GB.rsvd.limit_in_bytes", "0"),
    ]


def test_files_of_cgroup_v2() -> None:
    assert [(each.name, each.text) for each in files_v2(FULL)] == [
        ("cpu.weight", "100"),
        ("cpu.max", "20000 100000"),
        ("memory.max", str(64 * MI)),
        ("pids.max", "10"),
        ("hugetlb.2MB.max", str(4 * MI)),
        ("hugetlb.2MB.rsvd.max", str(4 * MI)),
        ("hugetlb.1GB.max", "0"),
        ("hugetlb.1GB.rsvd.max", "0"),
    ]


def test_what_is_not_set_is_not_written() -> None:
    assert not list(files_v1(CgroupConfig()))
    assert not list(files_v2(CgroupConfig()))


def test_a_lifted_quota() -> None:
    lifted = CgroupConfig(cpu_quota_us=-1, cpu_period_us=100_000)
    assert [each.text for each in files_v1(lifted)] == ["100000", "-1"]
    assert [each.text for each in files_v2(lifted)] == ["max 100000"]


@pytest.mark.parametrize(
    ("size", "name"),
    [(64 << 10, "64KB"), (2 * MI, "2MB"), (32 * MI, "32MB"), (1 << 30, "1GB"), (16 << 30, "16GB")],
)
def test_page_sizes_are_named_as_the_kernel_does(size: int, name: str) -> None:
    assert page_size(size) == name


def test_memory_that_is_not_taken_back_is_known_to_v2_alone() -> None:
    protected = CgroupConfig(memory_min_bytes=1, memory_low_bytes=2)
    assert list(files_v1(protected)) == []
    found = [(each.name, each.text) for each in files_v2(protected)]
    assert found == [("memory.min", "1"), ("memory.low", "2")]
