"""What is said about a host at the start, by table, and that the agent says it."""

import os
from pathlib import Path

import pytest

from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.node.host import (
    CGROUP_V1,
    MEMORY_ON_DISK,
    HostWarning,
    host_problem,
    host_warnings,
    read_swap_areas,
    resolv_conf_warnings,
    swap_areas,
)
from trio_kubelet.volumes.mount import keeps_out_of_swap, memory_options

HEADER = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
ALL_IDS = "         0          0 4294967295\n"


@pytest.mark.parametrize(
    ("cgroup_version", "areas", "noswap", "told"),
    [
        (2, (), True, ()),
        (2, (), False, ()),
        (1, (), True, (CGROUP_V1,)),
        (2, ("/dev/sda2",), True, ()),
        (2, ("/dev/sda2",), False, (MEMORY_ON_DISK,)),
        (1, ("/swapfile",), False, (CGROUP_V1, MEMORY_ON_DISK)),
    ],
)
def test_a_host_is_warned_of(
    cgroup_version: int, areas: tuple[str, ...], noswap: bool, told: tuple[HostWarning, ...]
) -> None:
    assert host_warnings(cgroup_version, areas, noswap=noswap) == told


V1_ALLOWED = KubeletConfiguration(fail_cgroup_v1=False)
SWAP_ALLOWED = KubeletConfiguration(fail_swap_on=False)
WHOLE = KubeletConfiguration(fail_cgroup_v1=False, single_process_oom_kill=False)
SINGLE = KubeletConfiguration(fail_cgroup_v1=False, single_process_oom_kill=True)


@pytest.mark.parametrize(
    ("configuration", "cgroup_version", "areas", "words"),
    [
        (KubeletConfiguration(), 2, (), ""),
        (KubeletConfiguration(), 1, (), "set failCgroupV1: false"),
        (V1_ALLOWED, 1, (), ""),
        (WHOLE, 1, (), "singleProcessOOMKill must not be explicitly set to false"),
        (WHOLE, 2, (), ""),
        (SINGLE, 1, (), ""),
        (V1_ALLOWED, 1, ("/dev/sda2",), "/proc/swaps contained: /dev/sda2"),
        (KubeletConfiguration(), 2, ("/dev/sda2", "/swap"), "contained: /dev/sda2, /swap"),
        (SWAP_ALLOWED, 2, ("/dev/sda2",), ""),
        (SWAP_ALLOWED, 1, ("/dev/sda2",), "set failCgroupV1: false"),
    ],
)
def test_a_host_is_refused_unless_the_configuration_allows_it(
    configuration: KubeletConfiguration, cgroup_version: int, areas: tuple[str, ...], words: str
) -> None:
    problem = host_problem(configuration, cgroup_version, areas)
    assert words in problem
    assert bool(problem) is bool(words)


@pytest.mark.parametrize(
    ("lines", "areas"),
    [
        ("", ()),
        ("/dev/sda2 partition 1 0 -2\n", ("/dev/sda2",)),
        ("/dev/zram0 partition 1 0 100\n", ()),
        ("/dev/zram0 partition 1 0 100\n/swapfile file 1 0 -2\n\n", ("/swapfile",)),
    ],
)
def test_swap_is_what_the_kernel_lists_but_for_memory(lines: str, areas: tuple[str, ...]) -> None:
    assert swap_areas(HEADER + lines) == areas


def test_a_kernel_without_swap_uses_none(tmp_path: Path) -> None:
    assert read_swap_areas(tmp_path / "swaps") == ()
    assert read_swap_areas(tmp_path) == (), "what cannot be read ends no start"


@pytest.mark.parametrize(
    ("release", "ids", "noswap"),
    [
        ("6.3.9-1", ALL_IDS, False),
        ("6.4.0", ALL_IDS, True),
        ("6.9+", ALL_IDS, True),
        ("7", ALL_IDS, True),
        ("custom-1", ALL_IDS, False),
        ("6.4.0", None, True),
        ("6.4.0", "         0       1000          1\n", False),
        ("6.4.0", "0 0 1000\n1000 1000 4294966295\n", False),
    ],
)
def test_the_warning_is_of_what_volumes_in_memory_are_mounted_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, release: str, ids: str | None, noswap: bool
) -> None:
    uid_map = tmp_path / "uid_map"
    if ids is not None:
        uid_map.write_text(ids)
    monkeypatch.setattr("trio_kubelet.volumes.mount._UID_MAP", uid_map)
    uname = os.uname()
    faked = os.uname_result((uname.sysname, uname.nodename, release, uname.version, "x86_64"))
    monkeypatch.setattr("os.uname", lambda: faked)
    assert keeps_out_of_swap() is noswap
    assert memory_options(1).endswith("noswap") is noswap


@pytest.mark.parametrize(
    ("content", "domain", "complaints"),
    [
        (b"nameserver 10.0.0.1\nsearch a b\n", "cluster.local", []),
        (b"# caf\xe9\nnameserver 10.0.0.1\n", "", []),
        (b"search " + b"a " * 32, "", []),
        (
            b"search " + b"a " * 33,
            "",
            ["Resolv.conf file '{0}' contains search line consisting of more than 32 domains!"],
        ),
        (
            b"search " + b"a " * 30,
            "cluster.local",
            ["Resolv.conf file '{0}' contains search line consisting of more than 29 domains!"],
        ),
        (b"nameserver\n", "", ["nameserver list is empty"]),
        (None, "", ["open {0}: no such file or directory"]),
    ],
)
def test_a_resolv_conf_is_warned_of(
    tmp_path: Path, content: bytes | None, domain: str, complaints: list[str]
) -> None:
    file = tmp_path / "resolv.conf"
    if content is not None:
        file.write_bytes(content)
    warnings = resolv_conf_warnings(
        KubeletConfiguration(resolv_conf=str(file), cluster_domain=domain)
    )
    assert warnings == tuple(
        HostWarning("CheckLimitsForResolvConf", complaint.format(file)) for complaint in complaints
    )


def test_a_node_that_gives_pods_no_resolv_conf_is_not_warned_of_one() -> None:
    assert resolv_conf_warnings(KubeletConfiguration(resolv_conf="")) == ()
