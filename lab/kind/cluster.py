"""A cluster of kind with the agent in the place of the worker's kubelet.

The worker keeps everything of kubeadm's and kind's: unit, drop-ins, flags, configuration file,
credentials. Only the program that `/usr/bin/kubelet` names is another one. docs/e2e.md has the
same steps by hand. Docker is the one of this host, or a private one with a node image of the lab.
"""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lab import LabError, control_plane_programs, images, tools
from lab.control_plane_programs import NEWEST
from lab.kind import in_guest, node_image, node_images, programs
from lab.kind.docker import DockerDaemon
from lab.kind.in_guest import DockerInGuest
from lab.packages import Packages
from lab.processes import run
from lab.root_folder import VIRTUAL_ENVIRONMENT
from lab.started import Started

NAME = "trio-kubelet-e2e"
CONTROL_PLANE, WORKER = f"{NAME}-control-plane", f"{NAME}-worker"
REPOSITORY = Path(__file__).parents[2]
# A node image of kind, such as `kindest/node:v1.34.0`; kind's own choice by default.
IMAGE = os.environ.get("TRIO_KUBELET_KIND_IMAGE", "")
WHEEL = f"{VIRTUAL_ENVIRONMENT}-wheel"
GO_KUBELET = "/usr/bin/kubelet.go"
# On a fresh node: Python where there is none, the agent, and the exchange of the program.
INSTALL = f"""
if [ ! -x {VIRTUAL_ENVIRONMENT}/bin/pip ]; then
    apt-get update -q
    apt-get install -q -y --no-install-recommends python3-venv
    python3 -m venv {VIRTUAL_ENVIRONMENT}
fi
{VIRTUAL_ENVIRONMENT}/bin/pip install -q --disable-pip-version-check {WHEEL}/*.whl
mv /usr/bin/kubelet {GO_KUBELET}
ln -s {VIRTUAL_ENVIRONMENT}/bin/trio-kubelet /usr/bin/kubelet
systemctl restart kubelet
"""
GIVE_BACK = f"""
mv {GO_KUBELET} /usr/bin/kubelet
systemctl restart kubelet
"""
COMMAND_DEADLINE_SECONDS = 900


@dataclass(frozen=True, slots=True)
class Docker:
    """A Docker for kind: the environment of its client, and what clusters there need.

    `options` are fields of kind's configuration, `node` of each node there.
    """

    environment: Mapping[str, str]
    kubectl: Path = Path("kubectl")
    image: str = ""
    options: Mapping[str, object] = field(default_factory=dict)
    node: Mapping[str, object] = field(default_factory=dict)


def is_installed() -> bool:
    """Whether this host has kind and kubectl, and a Docker daemon that answers."""
    if not all(map(shutil.which, ("docker", "kind", "kubectl"))):
        return False
    try:
        run(["docker", "info"], deadline_seconds=20)
    except LabError:
        return False
    return True


def installed() -> Docker:
    """The Docker and kind of this host."""
    return Docker(os.environ, image=IMAGE)


@contextmanager
def private(folder: Path, version: str = NEWEST, *, guest: bool = False) -> Iterator[Docker]:
    """A Docker of the lab's, with a node image and kind, for as long as the block.

    It runs on this host, or in a `guest` with cgroup v2. Blocks for many minutes where something
    has to be built first. UnavailableError where it cannot be had.
    """
    packages = Packages()
    image = node_images.find(version, packages)
    kind = programs.find(packages.cache)
    kind_of_daemon: type[DockerDaemon | DockerInGuest] = DockerInGuest if guest else DockerDaemon
    with kind_of_daemon(folder / "docker", packages) as daemon:
        changes = [f"--change={change}" for change in node_image.CHANGES]
        run(
            ["docker", "import", *changes, image.archive, image.name],
            env=daemon.environment,
            called="docker import",
            deadline_seconds=COMMAND_DEADLINE_SECONDS,
        )
        path = f"{kind.program.parent}:{daemon.environment['PATH']}"
        yield Docker(
            {**daemon.environment, "PATH": path},
            kubectl=control_plane_programs.find(version)["kubectl"],
            image=image.name,
            options=options_of_private(daemon.address),
            node=in_guest.NODE if guest else {},
        )


def options_of_private(address: str) -> Mapping[str, object]:
    """What a cluster needs without kind's own images, reached at `address` from outside."""
    return {
        "networking": {
            "apiServerAddress": address,
            "apiServerPort": 6443,
            "disableDefaultCNI": True,
            "kubeProxyMode": "none",
        },
        "kubeadmConfigPatches": [
            "kind: InitConfiguration\nskipPhases: [preflight, addon/coredns, addon/kube-proxy]",
            "kind: KubeletConfiguration\nfailCgroupV1: false",
        ],
    }


class KindCluster(Started):
    """A cluster of two nodes with the lab's images; pods are scheduled to the worker, the agent."""

    def __init__(self, folder: Path, docker: Docker) -> None:
        self.folder = folder
        self.kubeconfig = folder / "admin.conf"
        self._wheel = folder / "wheel"
        self._docker = docker

    def start(self) -> None:
        """Create the cluster and put the agent in; takes minutes.

        LabError, and nothing is changed, if that Docker has a cluster of this name: it may be
        somebody's.
        """
        if NAME in self._run(["kind", "get", "clusters"]).split():
            raise LabError(f"there is a cluster {NAME}: `kind delete cluster --name {NAME}`")
        try:
            self._create()
            self._load_images()
            self._build_wheel()
            self.install_agent(WORKER)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Delete the cluster."""
        self._run(["kind", "delete", "cluster", "--name", NAME])

    def on(self, node: str, script: str, stdin: str = "") -> str:
        """Run a script as root on a node and return what it says; LabError if it fails."""
        return self._run(["docker", "exec", "-i", node, "sh", "-c", script], stdin)

    def install_agent(self, node: str) -> None:
        """Put the agent in the place of a node's Go kubelet."""
        self._run(["docker", "cp", str(self._wheel), f"{node}:{WHEEL}"])
        self.on(node, f"set -e\n{INSTALL}")

    def give_back(self, node: str) -> None:
        """Put a node's Go kubelet back in its place."""
        self.on(node, f"set -e\n{GIVE_BACK}")

    def kubectl(self, *words: str, stdin: str = "") -> str:
        """Run kubectl as administrator and return what it says; LabError if it fails."""
        return self._run(self.kubectl_command(*words), stdin)

    def kubectl_command(self, *words: str) -> list[str]:
        """The command line of kubectl as administrator."""
        return [str(self._docker.kubectl), "--kubeconfig", str(self.kubeconfig), *words]

    def _create(self) -> None:
        configuration = self.folder / "kind.json"
        configuration.write_text(json.dumps(configured(self._docker)))
        self._run(
            [
                *("kind", "create", "cluster", "--name", NAME, "--wait", "180s"),
                *("--config", str(configuration), "--kubeconfig", str(self.kubeconfig)),
            ]
        )

    def _load_images(self) -> None:
        found = tools.find(tools.DEFAULT, Packages())
        for image in images.all_images(found.busybox, found.catatonit):
            archive = image.write(self.folder / "image.tar")
            self._run(["kind", "load", "image-archive", str(archive), "--name", NAME])

    def _build_wheel(self) -> None:
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
        self._run([*build, "--wheel-dir", str(self._wheel), str(REPOSITORY)])

    def _run(self, argv: list[str], stdin: str = "") -> str:
        return run(
            argv,
            env=self._docker.environment,
            stdin=stdin,
            called=shlex.join(argv),
            deadline_seconds=COMMAND_DEADLINE_SECONDS,
        )


def configured(docker: Docker) -> Mapping[str, object]:
    """Return kind's configuration of the cluster."""
    image = {"image": docker.image} if docker.image else {}
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "nodes": [{"role": role, **image, **docker.node} for role in ("control-plane", "worker")],
        **docker.options,
    }
