"""The kernel's files, and anything else in their place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.stats.cgroup_values import cpu_usage, machine_usage, usage_v1, usage_v2
from trio_kubelet.stats.kernel_text import (
    all_tasks,
    boot_time_ns,
    cgroups_of_process,
    default_interface,
    interfaces,
    key_values,
    limit_bytes,
    meminfo,
    number,
    pressure,
)

NET_DEV = b"""Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 1 2 0 0 0 0 0 0 1 2 0 0 0 0 0 0
  eth0: 5215 30 1 2 0 0 0 0 1054 10 3 4 0 0 0 0
veth12: 9 9 9 9 0 0 0 0 9 9 9 9 0 0 0 0
  eth1:5 6 7 8 0 0 0 0 1 2 3 4 0 0 0 0
"""  # noqa: E501
ROUTE = b"""Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth1\t00000000\t0100A8C0\t0003\t0\t0\t200\t00000000\t0\t0\t0
eth0\t00000000\t0100A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
eth0\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""
PSI = b"""some avg10=1.50 avg60=0.25 avg300=100.00 total=123
full avg10=0.00 avg60=0.00 avg300=0.00 total=7
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"12\n", 12),
        (b"0", 0),
        (b"max\n", None),
        (b"-1\n", None),
        (b"", None),
        (None, None),
        (b"1 2", None),
        ("٣".encode(), None),
        (b"9" * 30, None),
    ],
)
def test_a_number(text: bytes | None, expected: int | None) -> None:
    assert number(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [(b"1024", 1024), (b"9223372036854771712\n", None), (b"max\n", None), (b"0", 0)],
)
def test_a_limit_that_is_none(text: bytes, expected: int | None) -> None:
    assert limit_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"cache 1\nrss 22\n", {b"cache": 1, b"rss": 22}),
        (b"low 0\nmax 3\noom_kill 1\n", {b"low": 0, b"max": 3, b"oom_kill": 1}),
        (b"cache 1\nbroken\nrss -2\nx y\nswap 3\n", {b"cache": 1, b"swap": 3}),
        (b"cache 1\nrss 2 3\n", {b"cache": 1}),
        (b"", {}),
        (None, {}),
    ],
)
def test_keys_and_numbers(text: bytes | None, expected: dict[bytes, int]) -> None:
    assert key_values(text) == expected


def test_pressure_has_averages_and_a_sum() -> None:
    found = pressure(PSI)
    assert found is not None
    assert (found.some.avg10, found.some.avg60, found.some.avg300) == (1.5, 0.25, 100.0)
    assert (found.some.total_us, found.full.total_us) == (123, 7)


def test_the_cpu_of_an_old_kernel_has_no_full_pressure() -> None:
    found = pressure(PSI.splitlines()[0])
    assert found is not None
    assert found.full.total_us == 0


def test_interfaces_that_lead_to_pods_are_left_out() -> None:
    found = {each.name: each for each in interfaces(NET_DEV)}
    assert list(found) == ["eth0", "eth1"]
    eth0 = found["eth0"]
    assert (eth0.rx_bytes, eth0.rx_packets, eth0.rx_errors, eth0.rx_dropped) == (5215, 30, 1, 2)
    assert (eth0.tx_bytes, eth0.tx_packets, eth0.tx_errors, eth0.tx_dropped) == (1054, 10, 3, 4)


def test_the_default_route_with_the_least_metric_counts() -> None:
    assert default_interface(ROUTE) == "eth0"
    assert default_interface(ROUTE.splitlines()[0]) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"0::/system.slice/agent.service\n", {"": "/system.slice/agent.service"}),
        (
            b"4:memory:/a\n2:cpu,cpuacct:/b:c\n1:name=systemd:/\n",
            {"memory": "/a", "cpu": "/b:c", "cpuacct": "/b:c", "name=systemd": "/"},
        ),
        (b"4:memory\nnonsense\n4:memory:relative\n", {}),
        (None, {}),
    ],
)
def test_the_cgroups_of_a_process(text: bytes | None, expected: dict[str, str]) -> None:
    assert cgroups_of_process(text) == expected


def test_words_about_the_machine() -> None:
    memory = meminfo(b"MemTotal:       2 kB\nInactive(file):  1 kB\nHugePages_Total:  0\n")
    assert memory["MemTotal"] == 2048
    assert memory["Inactive(file)"] == 1024
    assert boot_time_ns(b"cpu 1\nbtime 1700000000\n") == 1_700_000_000_000_000_000
    assert all_tasks(b"8.31 3.71 3.78 5/447 1234\n") == 447
    cpu = cpu_usage(b"cpu  10 1 5 1000 50 2 3 4 0 0\ncpu0 1\n")
    assert cpu is not None
    assert (cpu.total_ns, cpu.user_ns, cpu.system_ns) == (250_000_000, 110_000_000, 100_000_000)


@given(st.one_of(st.none(), st.binary(max_size=400)))
def test_any_bytes_may_stand_in_a_file(text: bytes | None) -> None:
    for read in (
        number,
        limit_bytes,
        key_values,
        pressure,
        meminfo,
        boot_time_ns,
        all_tasks,
        interfaces,
        default_interface,
        cgroups_of_process,
        cpu_usage,
    ):
        read(text)
    for usage in (usage_v1, usage_v2):
        usage(lambda _controller, _name: text, 0, detailed=True)
    machine_usage(None, 0, lambda _name: text)


NEARLY = st.lists(
    st.sampled_from(
        [
            *(b"max", b"some", b"full", b"avg10=1.00", b"total=3", b"-1", b"9" * 25, b"\xff", b":"),
            *(b" ", b"\n", b"\t", b"btime", b"cpu", b"eth0:", b"rss", b"0", b"12", b"1/2", b"kB"),
        ]
    ),
    max_size=60,
).map(b"".join)


@given(NEARLY)
def test_what_is_nearly_right_is_no_error_either(text: bytes) -> None:
    test_any_bytes_may_stand_in_a_file.hypothesis.inner_test(text)  # type: ignore[attr-defined]
