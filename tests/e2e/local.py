"""The provider `local`: control plane, containerd and agent are processes on this host.

TRIO_KUBELET_E2E_AGENT=go puts the Go kubelet in the agent's place: what the tests expect is what
it does, so a test that is new or in doubt is tried on it.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import trio

from lab.agent import LabAgent
from lab.cluster_api import ClusterApi, Json
from lab.containerd import Containerd
from lab.control_plane import ControlPlane
from lab.go_kubelet import GoKubelet
from lab.ports import free_port
from lab.processes import run, wait_until
from tests.e2e.cluster import Cluster
from tests.e2e.provider import GO
from trio_kubelet.rpc import Channel, open_rpc_loop
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.config.names import POD_NAMESPACE_LABEL, POD_UID_LABEL

USUAL_CONTAINERD = "2.1"
CONTAINERD = os.environ.get("TRIO_KUBELET_CONTAINERD", USUAL_CONTAINERD)
AGENT = GoKubelet if os.environ.get("TRIO_KUBELET_E2E_AGENT") == GO else LabAgent
NODE = "lab-node"
EMPTY_DEADLINE_SECONDS = 90


class LocalCluster(Cluster):
    """A node beside a control plane of ours, which is left alone by `stop`."""

    def __init__(
        self, folder: Path, control_plane: ControlPlane, kind: type[LabAgent] = AGENT
    ) -> None:
        self.node = NODE
        self.control_plane = control_plane
        self.containerd = Containerd(CONTAINERD, folder / "containerd")
        self._kind = kind
        self._agent: LabAgent | None = None
        self._port = free_port()

    @property
    def agent(self) -> LabAgent:
        """The agent's process; there once started."""
        assert self._agent is not None, "not started"
        return self._agent

    @property
    def api(self) -> ClusterApi:
        return self.control_plane.api

    @property
    def server_port(self) -> int:
        """The node's port for others."""
        return self._port

    def start(self) -> None:
        """Start containerd and the agent, and wait until the node takes pods."""
        self.containerd.start()
        try:
            self._agent = self.make_agent(self._kind)
            self._agent.start()
            self.wait_node_ready()
        except BaseException as error:
            error.add_note(self.last_words())
            self.stop()
            raise

    def stop(self) -> None:
        """End all pods, the agent and containerd."""
        try:
            if self._agent is not None:
                self.delete_all_pods()
                self._agent.end()
        finally:
            self.containerd.stop()

    def make_agent(
        self, kind: Callable[..., LabAgent], *flags: str, **settings: object
    ) -> LabAgent:
        """An agent for this node that was not started; `settings` are of its configuration."""
        kubeconfig = self.control_plane.node_kubeconfig(self.node)
        if kind is GoKubelet:
            kind = partial(GoKubelet, version=self.control_plane.wish)
        return kind(
            self.containerd.folder / "agent",
            endpoint=self.containerd.endpoint,
            settings={"syncFrequency": "10s", **self._server_settings(), **settings},
            flags=("--kubeconfig", str(kubeconfig), "--hostname-override", self.node, *flags),
            cgroup_root=self.containerd.cgroup_root,
        )

    def _server_settings(self) -> Mapping[str, object]:
        """What lets the API server in, and nobody whom it does not know."""
        folder = self.containerd.folder / "serving"
        folder.mkdir(exist_ok=True)
        authority = folder / "ca.crt"
        authority.write_bytes(self.control_plane.authority.certificate)
        hosts = (self.node, *run(["hostname", "-I"]).split())
        certificate, key = self.control_plane.authority.issue("node", hosts=hosts).write(
            folder, "serving"
        )
        return {
            "enableServer": True,
            "port": self._port,
            "tlsCertFile": str(certificate),
            "tlsPrivateKeyFile": str(key),
            "authentication": {"x509": {"clientCAFile": str(authority)}},
        }

    def hand_over(self, kind: type[LabAgent], **settings: object) -> None:
        """End who has the node, and give it, as it is, to an agent of another kind.

        The new one answers when this returns; its node may not be Ready yet.
        """
        self.agent.stop()
        self._agent = self.make_agent(kind, **settings)
        self._agent.start()

    def restart_agent(self, *flags: str, **settings: object) -> None:
        """Start the agent anew with these flags and settings of its configuration alone."""
        self.agent.stop()
        self._agent = self.make_agent(self._kind, *flags, **settings)
        self._agent.start()

    def kubectl(self, *words: str, stdin: str | Mapping[str, Any] = "") -> str:
        return self.control_plane.kubectl(*words, stdin=stdin)

    def kubectl_command(self, *words: str) -> list[str]:
        return self.control_plane.kubectl_command(*words)

    def start_agent(self) -> None:
        self.agent.launch()

    def stop_agent(self) -> None:
        self.agent.stop()

    def kill_agent(self) -> None:
        self.agent.kill()

    def stop_api_server(self) -> None:
        self.control_plane.stop_api_server()

    def start_api_server(self) -> None:
        self.control_plane.start_api_server()

    def add_static_pod(self, manifest: Json) -> None:
        self.agent.write(f"{manifest['metadata']['name']}.json", manifest)

    def remove_static_pod(self, name: str) -> None:
        self.agent.remove(f"{name}.json")

    def last_words(self) -> str:
        agent = self._agent.last_words() if self._agent is not None else "not started"
        return f"agent: {agent}\n{self.control_plane.last_words()}"

    def sandboxes(self, uid: str) -> list[str]:
        """The ids of what containerd has of a pod, sandbox and containers alike."""
        wanted = f"labels.io.kubernetes.pod.uid=={uid}"
        return self.containerd.ctr("containers", "list", "-q", wanted).split()

    def reopen_log(self, container_id: str) -> None:
        """Have containerd write a container's log to its path anew, after a rotation."""
        trio.run(_reopen_log, self.containerd.endpoint, container_id)

    def running_containers(self, namespace: str) -> dict[str, set[tuple[str, str, int]]]:
        """Name, id and restart count of what runs in containerd, by the UIDs of the pods."""
        found: dict[str, set[tuple[str, str, int]]] = {}
        for each in trio.run(_containers, self.containerd.endpoint):
            runs = each.state is cri.ContainerState.CONTAINER_RUNNING
            if runs and each.labels[POD_NAMESPACE_LABEL] == namespace:
                entry = each.metadata.name, each.id, each.metadata.attempt
                found.setdefault(each.labels[POD_UID_LABEL], set()).add(entry)
        return found

    def delete_all_pods(self) -> None:
        """Take away whatever creates pods here, then the pods, and wait for their end."""
        for namespace in self.api.get("/api/v1/namespaces")["items"]:
            name = namespace["metadata"]["name"]
            if name != "default" and not name.startswith("kube-"):
                self.delete_namespace(name)
        pods = "/api/v1/pods"
        wait_until(
            lambda: not self.api.get(pods, fieldSelector=f"spec.nodeName={self.node}")["items"],
            deadline_seconds=EMPTY_DEADLINE_SECONDS,
            else_say=lambda: f"pods are left: {self.last_words()}",
        )


async def _containers(endpoint: str) -> Sequence[cri.Container]:
    async with open_rpc_loop():
        return await RuntimeClient(Channel(endpoint)).list_containers()


async def _reopen_log(endpoint: str, container_id: str) -> None:
    async with open_rpc_loop():
        await RuntimeClient(Channel(endpoint)).reopen_container_log(container_id)
