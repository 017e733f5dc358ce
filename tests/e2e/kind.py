"""The provider `kind`: a cluster in Docker, with the agent in the place of a worker's kubelet.

The worker keeps everything of kubeadm's and kind's: unit, drop-ins, flags, configuration file,
credentials. Only the program that `/usr/bin/kubelet` names is another one. docs/e2e.md has the
same steps by hand.
"""

import base64
import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from lab import images, tools
from lab.cluster_api import ClusterApi, Json
from lab.packages import Packages
from lab.pki import KeyPair
from lab.processes import run, wait_until
from tests.e2e.cluster import Cluster

NAME = "trio-kubelet-e2e"
CONTROL_PLANE, WORKER = f"{NAME}-control-plane", f"{NAME}-worker"
# A node image of kind, such as `kindest/node:v1.34.0`; kind's own choice by default.
IMAGE = os.environ.get("TRIO_KUBELET_KIND_IMAGE", "")
NODES: Mapping[str, object] = {
    "kind": "Cluster",
    "apiVersion": "kind.x-k8s.io/v1alpha4",
    "nodes": [{"role": "control-plane"}, {"role": "worker"}],
}
REPOSITORY = Path(__file__).parents[2]
PROGRAM = "/opt/trio-kubelet"
MANIFESTS = "/etc/kubernetes/manifests"
API_SERVER = "kube-apiserver.yaml"
# On a fresh node: Python, the agent, and the exchange of the program.
INSTALL = f"""
apt-get update -q && apt-get install -q -y --no-install-recommends python3-venv
python3 -m venv {PROGRAM}
{PROGRAM}/bin/pip install -q {PROGRAM}-wheel/*.whl
mv /usr/bin/kubelet /usr/bin/kubelet.go
ln -s {PROGRAM}/bin/trio-kubelet /usr/bin/kubelet
systemctl restart kubelet
"""
CREATE_DEADLINE_SECONDS = 600
API_DEADLINE_SECONDS = 120


class KindCluster(Cluster):
    """A cluster of two nodes; pods are scheduled to the worker, which is the agent."""

    def __init__(self, folder: Path) -> None:
        self.node = WORKER
        self._folder = folder
        self._kubeconfig = folder / "admin.conf"
        self._api: ClusterApi | None = None

    @property
    def api(self) -> ClusterApi:
        assert self._api is not None, "not started"
        return self._api

    def start(self) -> None:
        """Create the cluster and put the agent in; takes minutes, and needs the network."""
        try:
            self._create()
            self._api = _administrator(self._kubeconfig)
            self._load_images()
            self._install_agent()
            self.wait_node_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Delete the cluster."""
        if self._api is not None:
            self._api.close()
        run(["kind", "delete", "cluster", "--name", NAME], deadline_seconds=120)

    def kubectl(self, *words: str, stdin: str | Mapping[str, Any] = "") -> str:
        given = stdin if isinstance(stdin, str) else json.dumps(stdin)
        return _run(self.kubectl_command(*words), given)

    def kubectl_command(self, *words: str) -> list[str]:
        return ["kubectl", "--kubeconfig", str(self._kubeconfig), *words]

    def start_agent(self) -> None:
        self._on(WORKER, "systemctl start kubelet")

    def stop_agent(self) -> None:
        self._on(WORKER, "systemctl stop kubelet")

    def kill_agent(self) -> None:
        # Its unit would start it again by itself; `start_agent` is to do that.
        self._on(WORKER, "systemctl kill --signal KILL kubelet; systemctl stop kubelet")

    def stop_api_server(self) -> None:
        self._on(CONTROL_PLANE, f"mv {MANIFESTS}/{API_SERVER} /etc/kubernetes/")
        self._wait_for_api(healthy=False)

    def start_api_server(self) -> None:
        self._on(CONTROL_PLANE, f"mv /etc/kubernetes/{API_SERVER} {MANIFESTS}/")
        self._wait_for_api(healthy=True)

    def add_static_pod(self, manifest: Json) -> None:
        name = shlex.quote(f"{manifest['metadata']['name']}.json")
        # Whole at once, as a careful user does it; the agent passes dotfiles over.
        write = f"cat >{MANIFESTS}/.{name} && mv {MANIFESTS}/.{name} {MANIFESTS}/{name}"
        self._on(WORKER, write, json.dumps(manifest))

    def remove_static_pod(self, name: str) -> None:
        self._on(WORKER, f"rm {MANIFESTS}/{shlex.quote(name)}.json")

    def last_words(self) -> str:
        return self._on(WORKER, "journalctl --unit kubelet --lines 20 --no-pager")

    def _create(self) -> None:
        configuration = self._folder / "kind.json"
        configuration.write_text(json.dumps(NODES))
        image = ("--image", IMAGE) if IMAGE else ()
        run(
            [
                *("kind", "create", "cluster", "--name", NAME, "--wait", "180s", *image),
                *("--config", str(configuration), "--kubeconfig", str(self._kubeconfig)),
            ],
            deadline_seconds=CREATE_DEADLINE_SECONDS,
        )

    def _load_images(self) -> None:
        found = tools.find(tools.DEFAULT, Packages())
        for image in images.all_images(found.busybox, found.catatonit):
            archive = image.write(self._folder / "image.tar")
            run(
                ["kind", "load", "image-archive", archive, "--name", NAME],
                deadline_seconds=CREATE_DEADLINE_SECONDS,
            )

    def _install_agent(self) -> None:
        wheel = self._folder / "wheel"
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
        run([*build, "--wheel-dir", wheel, REPOSITORY], deadline_seconds=CREATE_DEADLINE_SECONDS)
        run(["docker", "cp", wheel, f"{WORKER}:{PROGRAM}-wheel"])
        self._on(WORKER, f"set -e\n{INSTALL}")

    def _wait_for_api(self, *, healthy: bool) -> None:
        wait_until(
            lambda: self.api.healthy() == healthy,
            deadline_seconds=API_DEADLINE_SECONDS,
            else_say=lambda: f"the API server did not {'come back' if healthy else 'go away'}",
        )

    def _on(self, node: str, script: str, stdin: str = "") -> str:
        return _run(["docker", "exec", "-i", node, "sh", "-c", script], stdin)


def _run(argv: list[str], stdin: str) -> str:
    return run(argv, stdin=stdin, called=shlex.join(argv), deadline_seconds=CREATE_DEADLINE_SECONDS)


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
