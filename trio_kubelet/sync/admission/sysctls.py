"""Sysctls: only those of the pod's own namespaces, and of these only the safe or allowed ones."""

from collections.abc import Sequence

from trio_kubelet.k8s import Pod
from trio_kubelet.sync.admission.admission_result import Rejection

SAFE_SYSCTLS = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ping_group_range",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.tcp_wmem",
    }
)
"""Sysctls that disturb nobody outside the pod."""

_NAMESPACES = {
    "net.": "Net",
    "fs.mqueue.": "IPC",
    "kernel.sem": "IPC",
    "kernel.shm": "IPC",
    "kernel.msg": "IPC",
}
"""The namespace that a sysctl belongs to, by the beginning of its name."""

_SWAPPED = str.maketrans("./", "/.")


def forbidden_sysctl(pod: Pod, allowed: Sequence[str]) -> Rejection | None:
    """Reject what is neither safe nor allowed, or would change the host's own namespace.

    `allowed` are names and patterns (`kernel.msg*`) of allowedUnsafeSysctls.
    """
    context = pod.spec.security_context
    shared = {
        namespace
        for namespace, is_shared in (("Net", pod.spec.host_network), ("IPC", pod.spec.host_ipc))
        if is_shared
    }
    for sysctl in context.sysctls if context else ():
        name = normal_name(sysctl.name)
        if name not in SAFE_SYSCTLS and not any(_covers(pattern, name) for pattern in allowed):
            return _forbidden(f'"{name}" not allowlisted')
        if (namespace := _namespace(name)) in shared:
            return _forbidden(f'"{name}" not allowed with host {namespace} enabled')
    return None


def normal_name(name: str) -> str:
    """Write a sysctl with dots; one with slashes may have dots in its parts (`eth0.100`)."""
    separator = next((letter for letter in name if letter in "./"), ".")
    return name if separator == "." else name.translate(_SWAPPED)


def _covers(pattern: str, name: str) -> bool:
    pattern = normal_name(pattern)
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _namespace(name: str) -> str:
    return next((ns for prefix, ns in _NAMESPACES.items() if name.startswith(prefix)), "")


def _forbidden(what: str) -> Rejection:
    return Rejection(reason="SysctlForbidden", message=f"forbidden sysctl: {what}")
