"""The hosts file that the node keeps for a pod and mounts into its containers.

Pods on the network of their own get one made from their addresses; pods on the host's network
get the host's, with their aliases behind it. (API: PodSpec.hostAliases)
"""

from trio_kubelet.k8s import HostAlias, Pod
from trio_kubelet.runtime.config.hostname import PodHostname

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
