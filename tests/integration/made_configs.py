"""The configs of a pod as our functions make them, for whatever node and with whatever image."""

from tests.integration.config_cases import Surroundings
from trio_kubelet.k8s import Container, Pod
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.config.container_config import ContainerFacts, container_config
from trio_kubelet.runtime.config.dns import NodeDns, dns_config, parse_resolv_conf
from trio_kubelet.runtime.config.environment import EnvironmentFacts, environment
from trio_kubelet.runtime.config.field_refs import PodAddresses
from trio_kubelet.runtime.config.mounts import (
    MountSources,
    PreparedVolume,
    container_mounts,
    mounted_sub_paths,
)
from trio_kubelet.runtime.config.sandbox_config import sandbox_config
from trio_kubelet.runtime.config.security import IdMapping, ImageUser, SecurityFacts

RESOLV_CONF = (
    "nameserver 192.0.2.53\nnameserver 192.0.2.54\nsearch example.org\noptions timeout:2\n"
)
DNS = NodeDns(
    cluster_dns=("10.96.0.10",),
    cluster_domain="cluster.local",
    resolv_conf=parse_resolv_conf(RESOLV_CONF),
)
USER_NAMESPACE = IdMapping(host_id=131072, length=65536)


def made_sandbox(pod: Pod, around: Surroundings) -> cri.PodSandboxConfig:
    dns, _ = dns_config(pod, DNS)
    return sandbox_config(pod, around.node, attempt=0, dns=dns, security=_security(pod))


def made_container(
    pod: Pod,
    container: Container,
    around: Surroundings,
    *,
    image_id: str,
    image_user: ImageUser,
    termination_message_file: str,
) -> cri.ContainerConfig:
    node = around.node
    own_ips = () if pod.spec.host_network else (around.pod_ip,)
    addresses = PodAddresses(pod_ips=own_ips or node.host_ips, host_ips=node.host_ips)
    variables = environment(pod, container, EnvironmentFacts(addresses=addresses))
    sub_paths = mounted_sub_paths(container, variables)
    facts = ContainerFacts(
        image_id=image_id,
        image_user=image_user,
        environment=variables,
        mounts=container_mounts(
            pod,
            container,
            node,
            MountSources(
                volumes=_mounted(pod, around),
                sub_paths={
                    position: around.sub_paths[container.volume_mounts[position].name, sub_path]
                    for position, sub_path in sub_paths.items()
                },
                pod_ips=own_ips,
                termination_message_file=termination_message_file,
            ),
        ),
        security=_security(pod),
    )
    return container_config(pod, container, node, facts, restart_count=0)


def _mounted(pod: Pod, around: Surroundings) -> dict[str, PreparedVolume]:
    places = {
        volume.name: volume.host_path.path if volume.host_path else around.volumes[volume.name]
        for volume in pod.spec.volumes
    }
    return {name: PreparedVolume(host_path=place) for name, place in places.items()}


def _security(pod: Pod) -> SecurityFacts:
    return SecurityFacts(user_namespace=USER_NAMESPACE if pod.spec.host_users is False else None)
