"""The host name of a pod, short and with its domain, and its hosts file.

The short name is the pod's, or `spec.hostname`; with a subdomain the pod has a domain in the
cluster, and `setHostnameAsFQDN` (KEP-1797) puts both into the kernel. `hostnameOverride`
(KEP-4762) replaces all of it. The hosts file is made of the pod's addresses; on the host's network
it is the host's. `spec.hostAliases` follow.
"""

import re

from attrs import frozen

from trio_kubelet.errors import ConfigError
from trio_kubelet.k8s import HostAlias, Pod

_MAX_HOSTNAME_LENGTH = 63
_MAX_KERNEL_NAME_LENGTH = 64
_MAX_SUBDOMAIN_LENGTH = 253
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


@frozen
class PodHostname:
    """`name` is the short host name, `domain` what follows it, empty without a subdomain."""

    name: str
    domain: str = ""


def pod_hostname(pod: Pod, cluster_domain: str) -> PodHostname:
    """The pod's name from the inside. Raises ConfigError for names that DNS forbids."""
    spec = pod.spec
    if spec.hostname_override:
        if not _is_subdomain(spec.hostname_override):
            raise _invalid("HostnameOverride", spec.hostname_override, "subdomain")
        return PodHostname(_cut(pod, spec.hostname_override))
    if spec.hostname and not _is_label(spec.hostname):
        raise _invalid("Hostname", spec.hostname, "label")
    name = _cut(pod, spec.hostname or pod.metadata.name)
    if not spec.subdomain:
        return PodHostname(name)
    if not _is_label(spec.subdomain):
        raise _invalid("Subdomain", spec.subdomain, "label")
    return PodHostname(name, f"{spec.subdomain}.{pod.metadata.namespace}.svc.{cluster_domain}")


def kernel_hostname(pod: Pod, hostname: PodHostname) -> str:
    """The host name of the sandbox; empty on the host's network.

    Raises ConfigError when the full name does not fit into the kernel's 64 characters.
    """
    if pod.spec.host_network:
        return ""
    if not hostname.domain or not pod.spec.set_hostname_as_fqdn:
        return hostname.name
    fqdn = f"{hostname.name}.{hostname.domain}"
    if len(fqdn) > _MAX_KERNEL_NAME_LENGTH:
        raise ConfigError(
            "failed to construct FQDN from pod hostname and cluster domain,"
            f" FQDN {fqdn} is too long ({_MAX_KERNEL_NAME_LENGTH} characters is the max,"
            f" {len(fqdn)} characters requested)"
        )
    return fqdn


def _cut(pod: Pod, hostname: str) -> str:
    cut = hostname[:_MAX_HOSTNAME_LENGTH]
    if len(hostname) > _MAX_HOSTNAME_LENGTH:
        cut = cut.rstrip("-.")
    if not cut:
        raise ConfigError(f'hostname for pod "{pod.metadata.name}" was invalid: "{hostname}"')
    return cut


def _is_label(name: str) -> bool:
    return len(name) <= _MAX_HOSTNAME_LENGTH and _LABEL.fullmatch(name) is not None


def _is_subdomain(name: str) -> bool:
    parts = name.split(".")
    return len(name) <= _MAX_SUBDOMAIN_LENGTH and all(_LABEL.fullmatch(part) for part in parts)


def _invalid(field: str, value: str, what: str) -> ConfigError:
    return ConfigError(f'pod {field} "{value}" is not a valid DNS {what}')


_HEADER = "# Kubernetes-managed hosts file.\n"
_HOST_NETWORK_HEADER = "# Kubernetes-managed hosts file (host network).\n"
_LOCALHOST = (
    "127.0.0.1\tlocalhost\n"
    "::1\tlocalhost ip6-localhost ip6-loopback\n"
    "fe00::0\tip6-localnet\n"
    "fe00::0\tip6-mcastprefix\n"
    "fe00::1\tip6-allnodes\n"
    "fe00::2\tip6-allrouters\n"
)


def etc_hosts(
    pod: Pod, pod_ips: tuple[str, ...], hostname: PodHostname, host_file: str = ""
) -> str:
    """The text of the pod's hosts file; `host_file` is the node's own, for the host network."""
    if pod.spec.host_network:
        return _HOST_NETWORK_HEADER + host_file + _aliases(pod.spec.host_aliases)
    own = hostname.name
    if hostname.domain:
        own = f"{hostname.name}.{hostname.domain}\t{hostname.name}"
    entries = "".join(f"{ip}\t{own}\n" for ip in pod_ips)
    return _HEADER + _LOCALHOST + entries + _aliases(pod.spec.host_aliases)


def _aliases(aliases: tuple[HostAlias, ...]) -> str:
    if not aliases:
        return ""
    entries = ("\t".join((alias.ip, *alias.hostnames)) for alias in aliases)
    return "\n# Entries added by HostAliases.\n" + "".join(f"{entry}\n" for entry in entries)
