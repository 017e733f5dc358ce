"""The provider `kind`: a cluster in Docker, with the agent in the place of a worker's kubelet.

`lab/kind` makes it, in the Docker of this host or in one of its own.
"""

import base64
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from lab import LabError
from lab.cluster_api import ClusterApi, Json
from lab.kind.cluster import CONTROL_PLANE, WORKER, KindCluster
from lab.pki import KeyPair
from lab.processes import wait_until
from lab.started import Started
from tests.e2e.cluster import Cluster

MANIFESTS = "/etc/kubernetes/manifests"
API_SERVER = "kube-apiserver.yaml"
API_DEADLINE_SECONDS = 120
READY_DEADLINE_SECONDS = 240


class ClusterOfKind(Cluster, Started):
    """A cluster of two nodes, `kind`; pods are scheduled to the worker, which is the agent."""

    def __init__(self, kind: KindCluster) -> None:
        self.node = WORKER
        self.kind = kind
        self._api: ClusterApi | None = None

    @property
    def api(self) -> ClusterApi:
        assert self._api is not None, "not started"
        return self._api

    def start(self) -> None:
        """Create the cluster and put the agent in; takes minutes."""
        self.kind.start()
        try:
            self._api = _administrator(self.kind.kubeconfig)
            self.wait_node_ready(deadline_seconds=READY_DEADLINE_SECONDS)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Delete the cluster."""
        if self._api is not None:
            self._api.close()
        self.kind.stop()

    def kubectl(self, *words: str, stdin: str | Mapping[str, Any] = "") -> str:
        given = stdin if isinstance(stdin, str) else json.dumps(stdin)
        return self.kind.kubectl(*words, stdin=given)

    def kubectl_command(self, *words: str) -> list[str]:
        return self.kind.kubectl_command(*words)

    def start_agent(self) -> None:
        self.kind.on(WORKER, "systemctl start kubelet")

    def stop_agent(self) -> None:
        self.kind.on(WORKER, "systemctl stop kubelet")

    def kill_agent(self) -> None:
        # Its unit would start it again by itself; `start_agent` is to do that.
        self.kind.on(WORKER, "systemctl kill --signal KILL kubelet; systemctl stop kubelet")

    def stop_api_server(self) -> None:
        self.kind.on(CONTROL_PLANE, f"mv {MANIFESTS}/{API_SERVER} /etc/kubernetes/")
        self._wait_for_api(healthy=False)

    def start_api_server(self) -> None:
        self.kind.on(CONTROL_PLANE, f"mv /etc/kubernetes/{API_SERVER} {MANIFESTS}/")
        self._wait_for_api(healthy=True)

    def add_static_pod(self, manifest: Json) -> None:
        name = shlex.quote(f"{manifest['metadata']['name']}.json")
        # Whole at once, as a careful user does it; the agent passes dotfiles over.
        write = f"cat >{MANIFESTS}/.{name} && mv {MANIFESTS}/.{name} {MANIFESTS}/{name}"
        self.kind.on(WORKER, write, json.dumps(manifest))

    def remove_static_pod(self, name: str) -> None:
        self.kind.on(WORKER, f"rm {MANIFESTS}/{shlex.quote(name)}.json")

    def last_words(self) -> str:
        try:
            return self.kind.on(WORKER, "journalctl --unit kubelet --lines 20 --no-pager")
        except LabError as error:  # A report of a failure must not fail.
            return str(error)

    def _wait_for_api(self, *, healthy: bool) -> None:
        wait_until(
            lambda: self.api.healthy() == healthy,
            deadline_seconds=API_DEADLINE_SECONDS,
            else_say=lambda: f"the API server did not {'come back' if healthy else 'go away'}",
        )


def _administrator(kubeconfig: Path) -> ClusterApi:
    """A client with what kind wrote into its kubeconfig."""
    content = yaml.safe_load(kubeconfig.read_text())
    cluster, user = content["clusters"][0]["cluster"], content["users"][0]["user"]
    identity = KeyPair(
        key=base64.b64decode(user["client-key-data"]),
        certificate=base64.b64decode(user["client-certificate-data"]),
    )
    trusted = base64.b64decode(cluster["certificate-authority-data"])
    return ClusterApi(cluster["server"], trusted, identity=identity)
