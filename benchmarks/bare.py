"""A pod made by bare calls: what there is to do for any agent, and nothing more.

The configs are those that the agent sends, made by the agent's own functions, and the files that
they name are there before the clock starts.
"""

from pathlib import Path
from uuid import uuid4

from attrs import field, frozen

from benchmarks.manifests import manifest
from lab import host
from lab.images import SLEEPER
from trio_kubelet.config import KubeletConfiguration, Settings
from trio_kubelet.config.model import NodeOptions
from trio_kubelet.node.machine import node_capacity
from trio_kubelet.pod_source import Source
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.config.container_config import ContainerFacts, container_config
from trio_kubelet.runtime.config.dns import NodeDns, dns_config, parse_resolv_conf
from trio_kubelet.runtime.config.environment import EnvironmentFacts, environment
from trio_kubelet.runtime.config.field_refs import PodAddresses
from trio_kubelet.runtime.config.mounts import MountSources, container_mounts
from trio_kubelet.runtime.config.sandbox_config import sandbox_config
from trio_kubelet.runtime.node_facts import NodeFacts
from trio_kubelet.runtime.pod_files import make_container_files, make_pod_log_directory
from trio_kubelet.sources.static_pods import checked_pod, with_uid

_SOME_ADDRESS = "10.0.0.1"
"""Stands for the pod's own in its hosts file, which is written before there is one."""


@frozen(kw_only=True)
class BarePod:
    """One pod as two configs."""

    sandbox: cri.PodSandboxConfig
    container: cri.ContainerConfig

    async def start(self, client: RuntimeClient) -> "StartedPod":
        """The three calls in a row. Raises RpcError."""
        sandbox_id = await client.run_pod_sandbox(self.sandbox)
        container_id = await client.create_container(sandbox_id, self.container, self.sandbox)
        await client.start_container(container_id)
        return StartedPod(sandbox_id=sandbox_id, container_id=container_id)


@frozen(kw_only=True)
class StartedPod:
    """The ids of a pod that runs."""

    sandbox_id: str
    container_id: str

    async def stop(self, client: RuntimeClient, grace_seconds: int) -> None:
        """The two calls in a row. Raises RpcError."""
        await client.stop_container(self.container_id, grace_seconds)
        await client.stop_pod_sandbox(self.sandbox_id)

    async def remove(self, client: RuntimeClient) -> None:
        """Remove what has stopped, or stop and remove it. Raises RpcError."""
        await client.stop_pod_sandbox(self.sandbox_id)
        await client.remove_pod_sandbox(self.sandbox_id)


@frozen(kw_only=True)
class BareNode:
    """Makes bare pods, with their files in `folder` and their cgroups below `cgroup_root`."""

    folder: Path
    cgroup_root: str
    image: cri.Image
    dns: NodeDns = field(
        factory=lambda: NodeDns(
            cluster_dns=("10.96.0.10",),
            cluster_domain="cluster.local",
            resolv_conf=parse_resolv_conf(Path("/etc/resolv.conf").read_text()),
        )
    )

    def pod(self, name: str) -> BarePod:
        """Make a pod's configs, and write the files that they name. Blocks."""
        node = NodeFacts(
            settings=Settings(
                configuration=KubeletConfiguration(
                    pod_logs_dir=str(self.folder / "bare-logs"),
                    cluster_domain=self.dns.cluster_domain,
                    cgroup_root=self.cgroup_root,
                ),
                options=NodeOptions(root_dir=str(self.folder / "bare")),
            ),
            memory_capacity_bytes=node_capacity().memory_bytes,
            cgroup_v2=host.cgroup_version() != 1,
            host_ips=(_SOME_ADDRESS,),
        )
        pod = with_uid(checked_pod(manifest(name), Source.FILE, "node"), str(uuid4()))
        container = pod.spec.containers[0]
        make_pod_log_directory(pod, node)
        files = make_container_files(pod, container, node, "127.0.0.1 localhost\n")
        addresses = PodAddresses(pod_ips=(_SOME_ADDRESS,), host_ips=(_SOME_ADDRESS,))
        variables = environment(pod, container, EnvironmentFacts(addresses=addresses))
        facts = ContainerFacts(
            image_id=self.image.id,
            environment=variables,
            mounts=container_mounts(
                pod,
                container,
                node,
                MountSources(
                    volumes={},
                    sub_paths={},
                    pod_ips=(_SOME_ADDRESS,),
                    termination_message_file=files.termination_message_file,
                ),
            ),
        )
        return BarePod(
            sandbox=sandbox_config(pod, node, attempt=0, dns=dns_config(pod, self.dns)[0]),
            container=container_config(pod, container, node, facts, restart_count=0),
        )


async def image_of_pods(client: RuntimeClient) -> cri.Image:
    """The image of the measured pods. Raises RpcError; it must be there."""
    image = await client.image_status(cri.ImageSpec(image=SLEEPER))
    assert image is not None, f"{SLEEPER} is one of the lab's images, which the runtime was given"
    return image
