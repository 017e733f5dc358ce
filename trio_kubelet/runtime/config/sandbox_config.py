"""The config of a pod's sandbox: its name, host name, resolver, ports, cgroup and confinement.

Pure: everything that must be read or decided elsewhere comes in as a value. A node taken over
from the Go kubelet, or given back to it, must find the same here.
"""

from collections.abc import Iterable, Mapping

from trio_kubelet.k8s import Container, ContainerPort, Pod, PodSecurityContext, Protocol
from trio_kubelet.resources import cgroup_parent
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.config.hostname import kernel_hostname, pod_hostname
from trio_kubelet.runtime.config.labels import sandbox_annotations, sandbox_labels
from trio_kubelet.runtime.config.names import pod_log_directory
from trio_kubelet.runtime.config.resources import sandbox_overhead, sandbox_resources
from trio_kubelet.runtime.config.security import (
    NO_SECURITY_FACTS,
    SecurityFacts,
    sandbox_security_context,
)
from trio_kubelet.runtime.node_facts import NodeFacts

_PROTOCOLS: Mapping[str, cri.Protocol] = {
    protocol: cri.Protocol.from_string(protocol) for protocol in Protocol
}
_TCP = _PROTOCOLS[Protocol.TCP]


def sandbox_config(
    pod: Pod,
    node: NodeFacts,
    *,
    attempt: int,
    dns: cri.DnsConfig,
    security: SecurityFacts = NO_SECURITY_FACTS,
) -> cri.PodSandboxConfig:
    """The config for the pod's sandbox number `attempt` (0 is its first).

    `dns` is what `dns_config` made for the pod. Raises ConfigError for a host name that cannot
    be, and as `namespace_options`; the sandbox is then not made.
    """
    hostname = pod_hostname(pod, node.configuration.cluster_domain)
    return cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(
            name=pod.metadata.name,
            uid=pod.metadata.uid,
            namespace=pod.metadata.namespace,
            attempt=attempt,
        ),
        hostname=kernel_hostname(pod, hostname),
        log_directory=pod_log_directory(pod, node.configuration.pod_logs_dir),
        dns_config=dns,
        port_mappings=_port_mappings(pod.spec.containers),
        labels=sandbox_labels(pod),
        annotations=sandbox_annotations(pod),
        linux=_linux_config(pod, node, security),
    )


def _linux_config(pod: Pod, node: NodeFacts, security: SecurityFacts) -> cri.LinuxPodSandboxConfig:
    context = pod.spec.security_context or PodSecurityContext()
    return cri.LinuxPodSandboxConfig(
        cgroup_parent=cgroup_parent(
            pod,
            node.cgroup_driver,
            node.configuration.cgroup_root,
            node.configuration.cgroups_per_qos,
        ),
        sysctls={sysctl.name: sysctl.value for sysctl in context.sysctls},
        resources=sandbox_resources(pod, node),
        overhead=sandbox_overhead(pod, node),
        security_context=sandbox_security_context(pod, security),
    )


def _port_mappings(containers: Iterable[Container]) -> list[cri.PortMapping]:
    return [
        cri.PortMapping(
            protocol=_PROTOCOLS.get(port.protocol, _TCP),
            container_port=port.container_port,
            host_port=port.host_port or 0,
            host_ip=port.host_ip,
        )
        for container in containers
        for port in _distinct_ports(container.ports)
    ]


def _distinct_ports(ports: Iterable[ContainerPort]) -> Iterable[ContainerPort]:
    """The ports of a container without those that repeat one before them.

    Two are the same by their name or, without one, if all else of them is.
    """
    distinct: dict[object, ContainerPort] = {}
    for port in ports:
        distinct.setdefault(port.name or port, port)
    return distinct.values()
