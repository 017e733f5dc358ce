"""What a cgroup's files come to, on each version."""

from typing import Protocol

import pytest

from trio_kubelet.stats.cgroup_values import Files, usage_v1, usage_v2
from trio_kubelet.stats.values import CpuUsage, MemoryUsage, SwapUsage, Usage

V1 = {
    "cpuacct.usage": b"5000000000\n",
    "cpuacct.stat": b"user 300\nsystem 200\n",
    "cpu.stat": b"nr_periods 10\nnr_throttled 2\nthrottled_time 30\n",
    "cpu.shares": b"102\n",
    "cpu.cfs_period_us": b"100000\n",
    "cpu.cfs_quota_us": b"20000\n",
    "memory.usage_in_bytes": b"1000\n",
    "memory.stat": (
        b"rss 1\ntotal_rss 600\ntotal_inactive_file 100\ntotal_pgfault 7\ntotal_pgmajfault 1\n"
        b"total_swap 50\ntotal_cache 300\npgfault 5\n"
    ),
    "memory.limit_in_bytes": b"4000\n",
    "memory.memsw.limit_in_bytes": b"6000\n",
    "memory.failcnt": b"3\n",
    "pids.current": b"4\n",
    "pids.max": b"max\n",
}
V2 = {
    "cpu.stat": b"usage_usec 5000000\nuser_usec 3000000\nsystem_usec 2000000\nnr_periods 10\n",
    "cpu.weight": b"100\n",
    "cpu.max": b"20000 100000\n",
    "memory.current": b"1000\n",
    "memory.stat": b"anon 600\nfile 300\ninactive_file 100\npgfault 7\npgmajfault 1\n",
    "memory.max": b"4000\n",
    "memory.swap.current": b"50\n",
    "memory.swap.max": b"2000\n",
    "memory.events": b"low 0\nhigh 0\nmax 3\noom 0\noom_kill 1\n",
    "cpu.pressure": b"some avg10=1.00 avg60=0.00 avg300=0.00 total=9\n",
    "pids.current": b"4\n",
    "pids.max": b"100\n",
}


class Read(Protocol):
    """One of the two readers."""

    def __call__(self, files: Files, now_ns: int, *, detailed: bool) -> Usage | None: ...


def files(content: dict[str, bytes]) -> Files:
    return lambda _controller, name: content.get(name)


@pytest.mark.parametrize(("read", "content"), [(usage_v1, V1), (usage_v2, V2)], ids=["v1", "v2"])
def test_both_versions_say_the_same_of_the_same_use(read: Read, content: dict[str, bytes]) -> None:
    usage = read(files(content), 77, detailed=True)
    assert usage is not None
    assert usage.time_ns == 77
    assert usage.cpu == CpuUsage(
        total_ns=5_000_000_000, user_ns=3_000_000_000, system_ns=2_000_000_000
    )
    assert usage.memory == MemoryUsage(
        usage=1000, working_set=900, rss=600, page_faults=7, major_page_faults=1, limit=4000
    )
    assert usage.swap == SwapUsage(usage=50, limit=2000)
    assert usage.tasks == 4
    assert (usage.details.cache, usage.details.limit_hits) == (300, 3)
    assert usage.details.periods == 10


def test_limits_that_are_none_are_left_out() -> None:
    usage = usage_v1(
        files(V1 | {"memory.limit_in_bytes": b"9223372036854771712", "cpu.cfs_quota_us": b"-1"}),
        0,
        detailed=True,
    )
    assert usage is not None
    assert usage.memory is not None
    assert usage.swap is not None
    assert (usage.memory.limit, usage.swap.limit) == (None, None)
    assert (usage.details.cpu_quota_us, usage.details.tasks_limit) == (None, None)


def test_a_cgroup_without_files_is_gone() -> None:
    assert usage_v1(files({}), 0, detailed=False) is None
    assert usage_v2(files({}), 0, detailed=False) is None


def test_details_are_read_for_who_wants_them() -> None:
    read: list[str] = []

    def reading(_controller: str, name: str) -> bytes | None:
        read.append(name)
        return V1.get(name)

    usage_v1(reading, 0, detailed=False)
    few = len(read)
    usage_v1(reading, 0, detailed=True)
    assert len(read) > 3 * few


def test_weights_become_the_shares_that_cadvisor_shows() -> None:
    usage = usage_v2(files(V2), 0, detailed=True)
    assert usage is not None
    assert usage.details.cpu_shares == 2597


def test_pressure_is_of_version_2() -> None:
    usage = usage_v2(files(V2), 0, detailed=False)
    assert usage is not None
    assert usage.pressures.cpu is not None
    assert usage.pressures.io is None
