"""The limits of a cgroup as the kernel writes them, and which of them a resize raises or lowers."""

from collections.abc import Mapping

import pytest

from trio_kubelet.resources.cgroup_config import CgroupConfig
from trio_kubelet.resources.cgroup_limits import (
    CgroupLimits,
    ReadFile,
    lowered_memory_limit,
    raised_limits,
    read_limits_v1,
    read_limits_v2,
)

MIB = 1 << 20


def reading(files: Mapping[str, str]) -> ReadFile:
    def read(controller: str, name: str) -> str:
        assert name.startswith(f"{controller}.")
        return files[name]

    return read


def test_the_limits_of_v1_are_read_from_its_files() -> None:
    files = {
        "memory.limit_in_bytes": f"{64 * MIB}\n",
        "memory.usage_in_bytes": "4096\n",
        "cpu.cfs_quota_us": "50000\n",
        "cpu.cfs_period_us": "100000\n",
    }
    assert read_limits_v1(reading(files)) == CgroupLimits(
        memory_usage_bytes=4096, memory_limit_bytes=64 * MIB, cpu_quota_us=50_000
    )
    none = {**files, "memory.limit_in_bytes": "9223372036854771712\n", "cpu.cfs_quota_us": "-1\n"}
    assert read_limits_v1(reading(none)) == CgroupLimits(memory_usage_bytes=4096)


def test_the_limits_of_v2_are_read_from_its_files() -> None:
    files = {
        "memory.max": f"{64 * MIB}\n",
        "memory.current": "4096\n",
        "cpu.max": "50000 200000\n",
    }
    assert read_limits_v2(reading(files)) == CgroupLimits(
        memory_usage_bytes=4096,
        memory_limit_bytes=64 * MIB,
        cpu_quota_us=50_000,
        cpu_period_us=200_000,
    )
    none = {**files, "memory.max": "max\n", "cpu.max": "max 100000\n"}
    assert read_limits_v2(reading(none)) == CgroupLimits(memory_usage_bytes=4096)


def config(
    quota: int | None = None, memory: int | None = None, period: int = 100_000
) -> CgroupConfig:
    return CgroupConfig(
        cpu_shares=512,
        cpu_quota_us=quota,
        cpu_period_us=period if quota is not None else None,
        memory_limit_bytes=memory,
    )


def present(quota: int | None = None, memory: int | None = None) -> CgroupLimits:
    return CgroupLimits(memory_usage_bytes=0, cpu_quota_us=quota, memory_limit_bytes=memory)


@pytest.mark.parametrize(
    ("wanted", "now", "raised"),
    [
        (config(60_000, 64), present(50_000, 32), (60_000, 64)),
        (config(60_000, 16), present(50_000, 32), (60_000, None)),
        (config(40_000, 64), present(50_000, 32), (None, 64)),
        (config(40_000, 16), present(50_000, 32), (None, None)),
        (config(50_000, 32), present(50_000, 32), (None, None)),
        # The same number in half the time is more.
        (config(50_000, None, 50_000), present(50_000, 32), (50_000, None)),
        # No limit at all is the most there is.
        (config(-1), present(50_000), (-1, None)),
        (config(0), present(50_000), (0, None)),
        (config(60_000, 64), present(), (None, None)),
        (config(), present(50_000, 32), (None, None)),
    ],
)
def test_what_grows_is_raised_first_and_shares_are_left_alone(
    wanted: CgroupConfig, now: CgroupLimits, raised: tuple[int | None, int | None]
) -> None:
    found = raised_limits(wanted, now)
    assert (found.cpu_quota_us, found.memory_limit_bytes) == raised
    assert found.cpu_shares is None


@pytest.mark.parametrize(
    ("wanted", "now", "lowered"),
    [(64, 32, None), (32, 32, None), (16, 32, 16), (16, None, 16), (None, 32, None)],
)
def test_a_memory_limit_is_lowered_that_is_less_than_there_is(
    wanted: int | None, now: int | None, lowered: int | None
) -> None:
    assert lowered_memory_limit(config(memory=wanted), present(memory=now)) == lowered
