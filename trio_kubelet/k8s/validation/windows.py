"""The rules for pods of Windows.

A Linux node rejects such pods at admission; here it is only checked that they are consistent,
and that a pod for Linux has no settings for Windows.
"""

import re
from collections.abc import Iterator

from trio_kubelet.k8s.base import ApiType, wire_name_of
from trio_kubelet.k8s.container import Container
from trio_kubelet.k8s.errors import (
    FieldError,
    all_invalid,
    forbidden,
    invalid,
    required,
    unsupported,
)
from trio_kubelet.k8s.pod import OSName, PodSpec
from trio_kubelet.k8s.security import WindowsSecurityContextOptions
from trio_kubelet.k8s.validation import formats

LARGEST_CREDENTIAL_SPEC_KIB = 64
LONGEST_DOMAIN = 255
LONGEST_USER = 104

_NETBIOS_DOMAIN = re.compile(r'[^\\/:*?"<>|.][^\\/:*?"<>|]{0,14}')
_DNS_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_DNS_DOMAIN = re.compile(rf"{_DNS_LABEL}(?:\.{_DNS_LABEL})*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NOT_IN_USER = re.compile(r'["/\\:;|=,+*?<>@\[\]]')
_ONLY_DOTS_OR_SPACES = re.compile(r"[. ]+")

_LINUX_OF_SPEC = ("host_users", "host_pid", "host_ipc", "share_process_namespace")
_LINUX_OF_POD = (
    "app_armor_profile",
    "se_linux_options",
    "seccomp_profile",
    "fs_group",
    "fs_group_change_policy",
    "sysctls",
    "run_as_user",
    "run_as_group",
    "supplemental_groups",
    "supplemental_groups_policy",
    "se_linux_change_policy",
)
_LINUX_OF_CONTAINER = (
    "app_armor_profile",
    "se_linux_options",
    "seccomp_profile",
    "capabilities",
    "read_only_root_filesystem",
    "privileged",
    "allow_privilege_escalation",
    "proc_mount",
    "run_as_user",
    "run_as_group",
)

PathsAndContainers = list[tuple[str, Container]]


def check_os(spec: PodSpec, containers: PathsAndContainers) -> Iterator[FieldError]:
    """Check `spec.os` and that nothing of another system is set."""
    yield from _check_host_process(spec, containers)
    if spec.os is None:
        return
    if not spec.os.name:
        yield required("spec.os.name", "cannot be empty")
    elif spec.os.name not in list(OSName):
        yield unsupported("spec.os.name", spec.os.name, OSName)
    contexts: list[tuple[str, ApiType]] = [
        (f"{path}.securityContext", container.security_context)
        for path, container in containers
        if container.security_context is not None
    ]
    pod_context = spec.security_context
    if spec.os.name == OSName.LINUX:
        if pod_context is not None:
            contexts.append(("spec.securityContext", pod_context))
        for path, context in contexts:
            yield from _check_unset(
                context, ("windows_options",), path, "windows options cannot be set for a linux pod"
            )
    if spec.os.name == OSName.WINDOWS:
        detail = "cannot be set for a windows pod"
        yield from _check_unset(spec, _LINUX_OF_SPEC, "spec", detail)
        if pod_context is not None:
            yield from _check_unset(pod_context, _LINUX_OF_POD, "spec.securityContext", detail)
        for path, context in contexts:
            yield from _check_unset(context, _LINUX_OF_CONTAINER, path, detail)


def _check_unset(
    value: ApiType, names: tuple[str, ...], path: str, detail: str
) -> Iterator[FieldError]:
    for name in names:
        if getattr(value, name) not in (None, "", ()):
            yield forbidden(f"{path}.{wire_name_of(type(value), name)}", detail)


def check_windows_options(
    options: WindowsSecurityContextOptions | None, path: str
) -> Iterator[FieldError]:
    """Check the settings for Windows."""
    if options is None:
        return
    if options.gmsa_credential_spec_name is not None:
        name = options.gmsa_credential_spec_name
        yield from all_invalid(f"{path}.gmsaCredentialSpecName", name, formats.dns_subdomain(name))
    if options.gmsa_credential_spec is not None:
        where, size = f"{path}.gmsaCredentialSpec", len(options.gmsa_credential_spec.encode())
        if not size:
            yield invalid(where, "", "gmsaCredentialSpec cannot be an empty string")
        elif size > LARGEST_CREDENTIAL_SPEC_KIB * 1024:
            detail = f"gmsaCredentialSpec size must be under {LARGEST_CREDENTIAL_SPEC_KIB} KiB"
            yield invalid(where, options.gmsa_credential_spec, detail)
    if options.run_as_user_name is not None:
        name = options.run_as_user_name
        problems = (f"runAsUserName{problem}" for problem in _user_name_problems(name))
        yield from all_invalid(f"{path}.runAsUserName", name, problems)


def _user_name_problems(name: str) -> Iterator[str]:
    if not name:
        yield " cannot be an empty string"
    elif _CONTROL.search(name):
        yield " cannot contain control characters"
    elif name.count("\\") > 1:
        yield " cannot contain more than one backslash"
    else:
        domain, has_domain, user = name.rpartition("\\")
        if len(domain) > LONGEST_DOMAIN:
            yield f"'s Domain length must be under {LONGEST_DOMAIN + 1} characters"
        known = _NETBIOS_DOMAIN.fullmatch(domain) or _DNS_DOMAIN.fullmatch(domain)
        if has_domain and not known:
            yield "'s Domain doesn't match the NetBios nor the DNS format"
        if not user:
            yield "'s User cannot be empty"
        if len(user) > LONGEST_USER:
            yield f"'s User length must not be longer than {LONGEST_USER} characters"
        if _ONLY_DOTS_OR_SPACES.fullmatch(user):
            yield "'s User cannot contain only periods or spaces"
        if _NOT_IN_USER.search(user):
            yield "'s User cannot contain the following characters: \"/\\:;|=,+*?<>@[]"


def _check_host_process(spec: PodSpec, containers: PathsAndContainers) -> Iterator[FieldError]:
    context = spec.security_context
    of_pod = _host_process(context.windows_options if context is not None else None)
    is_host_process = []
    for path, container in containers:
        security = container.security_context
        own = _host_process(security.windows_options if security is not None else None)
        if own is not None and of_pod is not None and own != of_pod:
            shown = str(of_pod).lower()
            detail = f"pod hostProcess value must be identical if both are specified, was {shown}"
            yield invalid(f"{path}.securityContext.windowsOptions.hostProcess", own, detail)
        is_host_process.append(of_pod if own is None else own)
    if not any(is_host_process):
        return
    if not all(is_host_process):
        detail = (
            "If pod contains any hostProcess containers then all containers must be"
            " HostProcess containers"
        )
        yield invalid("spec", "", detail)
    if not spec.host_network:
        detail = "hostNetwork must be true if pod contains any hostProcess containers"
        yield invalid("spec.hostNetwork", False, detail)


def _host_process(options: WindowsSecurityContextOptions | None) -> bool | None:
    return options.host_process if options is not None else None
