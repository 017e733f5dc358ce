"""Which sysctls a pod may set."""

from typing import Any

import pytest

from tests.unit.sync.admission.pods_and_nodes import make_pod
from trio_kubelet.sync.admission import Rejection
from trio_kubelet.sync.admission.sysctls import forbidden_sysctl, normal_name

ALLOWED = ("kernel.msg*", "net.core.somaxconn", "net/ipv4/conf/eth0.100/*")


@pytest.mark.parametrize(
    ("sysctl", "shared", "why"),
    [
        ("net.ipv4.tcp_syncookies", "", ""),
        ("net/ipv4/tcp_syncookies", "", ""),
        ("kernel.msgmax", "", ""),
        ("net.core.somaxconn", "", ""),
        ("net.ipv4.conf.eth0/100.rp_filter", "", ""),
        ("kernel.sem", "", '"kernel.sem" not allowlisted'),
        ("net.core.rmem_max", "hostNetwork", '"net.core.rmem_max" not allowlisted'),
        (
            "net.ipv4.tcp_syncookies",
            "hostNetwork",
            '"net.ipv4.tcp_syncookies" not allowed with host Net enabled',
        ),
        ("net.ipv4.tcp_syncookies", "hostIPC", ""),
        (
            "kernel.shm_rmid_forced",
            "hostIPC",
            '"kernel.shm_rmid_forced" not allowed with host IPC enabled',
        ),
        ("kernel.msgmax", "hostIPC", '"kernel.msgmax" not allowed with host IPC enabled'),
        ("kernel.msgmax", "hostNetwork", ""),
    ],
)
def test_sysctls(sysctl: str, shared: str, why: str) -> None:
    spec: dict[str, Any] = {shared: True} if shared else {}
    context = {"sysctls": [{"name": sysctl, "value": "1"}]}
    pod = make_pod(securityContext=context, **spec)
    expected = Rejection(reason="SysctlForbidden", message=f"forbidden sysctl: {why}")
    assert forbidden_sysctl(pod, ALLOWED) == (expected if why else None)


@pytest.mark.parametrize(
    ("name", "normal"),
    [
        ("kernel.sem", "kernel.sem"),
        ("kernel/sem", "kernel.sem"),
        ("net/ipv4/conf/eth0.100/rp_filter", "net.ipv4.conf.eth0/100.rp_filter"),
        ("net.ipv4.conf.eth0/100.rp_filter", "net.ipv4.conf.eth0/100.rp_filter"),
    ],
)
def test_names_are_written_with_dots(name: str, normal: str) -> None:
    assert normal_name(name) == normal
