"""A control plane here, and machines as its nodes, as users have them.

Each machine is a guest of the lab with systemd, the packages of kubeadm's project, and the agent in
the place of the Go kubelet: what docs/joining.md says is typed there. kubeadm's checks before a
join are on, but for those that the machine's kernel cannot pass. Pods of one machine reach those of
the other.
"""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from lab import control_plane_programs
from lab.guest.guest import Guest
from lab.guest.image import GuestImage
from lab.processes import run
from tests.e2e.cluster import is_ready, is_usable
from tests.e2e.guest import ClusterOfGuests
from tests.e2e.kubeadm import KUBEADM, PRINTED, UNIT_FILES, blocks, leave_what_kubeadm_init_leaves

# By the name of the machine, the addresses of its pods.
PODS: Mapping[str, str] = {"worker-1": "10.97.1.0/24", "worker-2": "10.97.2.0/24"}
NAMES = tuple(PODS)
CNI = "/etc/cni/net.d/10-guest.conflist"
ROUTES = "/etc/systemd/system/guest-network.service.d/10-pods.conf"
# As `kubeadm init` has it: nodes sign their serving certificates themselves.
SERVER_FLAGS = ("--kubelet-certificate-authority=",)
# The packaged kernel of guests has no cpusets, which kubeadm requires.
IGNORED_CHECK = "SystemVerification"
FAILED_CHECK = re.compile(r"\[ERROR (.*)$", re.MULTILINE)
SETTINGS = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
DEADLINE_SECONDS = 600.0
INSTALL_DEADLINE_SECONDS = 600.0


class Machine:
    """A guest that is a node, or becomes one."""

    def __init__(self, guest: Guest, build_requirements: Path) -> None:
        self.guest = guest
        self.failed_checks: tuple[str, ...] = ()
        """What failed of kubeadm's checks before the join, none of them ignored."""
        self._build_requirements = build_requirements

    @property
    def name(self) -> str:
        return self.guest.name

    def prepare(self, kubeadm: Path, go_kubelet: Path) -> None:
        """Put what the packages of kubeadm's project bring there, and what pip builds with."""
        for path, text in UNIT_FILES.items():
            self.guest.write(path, text)
        for program in (kubeadm, go_kubelet):
            path = f"/opt/packages/{program.name}"
            self.guest.write(path, program.read_bytes(), mode=0o755)
        self.guest.write(
            "/usr/bin/kubeadm", KUBEADM.format(IGNORED_CHECK, "/opt/packages/kubeadm"), mode=0o755
        )
        self.guest.run("ln", "-s", "/opt/packages/kubelet", "/usr/bin/kubelet")
        shutil.copytree(self._build_requirements, self.guest.shared / "wheels")

    def type(self, commands: str, **variables: str) -> str:
        """Run commands of the guide there, from the top of the checkout."""
        return self.guest.run(
            "sh",
            *("-eu", "-c", commands),
            environment={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/shared/wheels", **variables},
            folder="/src",
            deadline_seconds=INSTALL_DEADLINE_SECONDS,
        )

    def install(self) -> None:
        """Install the agent from the checkout, as the guide says."""
        for block in blocks("Install"):
            self.type(block.commands)

    def file(self, path: str) -> str:
        """A file there; empty if there is none."""
        return self.guest.run(f"cat {shlex.quote(path)} 2>/dev/null || true")

    def check(self, join: str) -> None:
        """Ask kubeadm for its checks before `kubeadm join ...`, and keep what failed."""
        phase = join.replace("kubeadm join", "/opt/packages/kubeadm join phase preflight")
        asked = self.guest.call("sh", "-c", phase)
        self.failed_checks = tuple(FAILED_CHECK.findall((asked.stdout + asked.stderr).decode()))


class MachineCluster(ClusterOfGuests):
    """A control plane and its nodes, by name."""

    def __init__(self, folder: Path, image: GuestImage, version: str) -> None:
        super().__init__(folder, version, server_flags=SERVER_FLAGS)
        self._wheels = folder / "wheels"
        self.machines: Mapping[str, Machine] = {
            name: Machine(
                Guest(folder / name, image=image, name=name, network=self.network), self._wheels
            )
            for name in NAMES
        }

    @property
    def nodes(self) -> tuple[str, ...]:
        return NAMES

    def start_nodes(self, running: ExitStack) -> None:
        """Install the agent and join, on all machines at once. Takes minutes."""
        kubeadm = control_plane_programs.kubeadm(self._version)
        go_kubelet = control_plane_programs.go_kubelet(self._version)
        pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", self._wheels)
        run([*pip, "hatchling"], deadline_seconds=INSTALL_DEADLINE_SECONDS)
        leave_what_kubeadm_init_leaves(self.control_plane, kubeadm, SETTINGS, self._folder)

        def bring_up(machine: Machine) -> None:
            running.enter_context(machine.guest)
            machine.prepare(kubeadm, go_kubelet)
            self._connect(machine)
            machine.install()
            self.join(machine, kubeadm)

        with ThreadPoolExecutor() as threads:
            list(threads.map(bring_up, self.machines.values()))
        for name in NAMES:
            self.wait_node(name)

    def join(self, machine: Machine, kubeadm: Path) -> None:
        """Join a machine with kubeadm, as the guide says."""
        prepare, _, join = blocks("Join with kubeadm")
        machine.type(prepare.commands)
        administrators = f"--kubeconfig={self.control_plane.folder / 'admin.conf'}"
        printed = run([kubeadm, "token", "create", "--print-join-command", administrators])
        found = PRINTED.search(printed)
        assert found is not None, printed
        machine.check(printed)
        machine.type(join.commands, API_SERVER=self.control_plane.endpoint, **found.groupdict())

    def wait_node(self, name: str) -> None:
        """Wait until a node is Ready and nothing keeps pods away from it."""
        path = f"/api/v1/nodes/{name}"
        self.api.wait_for(path, is_usable, deadline_seconds=DEADLINE_SECONDS)

    def wait_node_away(self, name: str) -> None:
        """Wait until the controllers have noticed that a node is silent."""
        self.api.wait_for(
            f"/api/v1/nodes/{name}",
            lambda node: not is_ready(node),
            deadline_seconds=DEADLINE_SECONDS,
        )

    def containers(self, name: str) -> int:
        """How many containers run on a node, sandboxes too."""
        ctr = ("ctr", "--namespace", "k8s.io", "tasks", "ls")
        rows = self.machines[name].guest.run(*ctr).splitlines()[1:]
        return sum(row.split()[2] == "RUNNING" for row in rows)

    def last_words(self) -> str:
        consoles = (each.guest.last_words() for each in self.machines.values())
        return "\n".join((*consoles, self.control_plane.last_words()))

    def _connect(self, machine: Machine) -> None:
        """Give its pods addresses of their own, and lead to those of the other nodes."""
        network = json.loads(machine.guest.read(CNI))
        network["plugins"][0]["ipam"]["ranges"] = [[{"subnet": PODS[machine.name]}]]
        machine.guest.write(CNI, json.dumps(network))
        others = {
            pods: self.network.link(each) for each, pods in PODS.items() if each != machine.name
        }
        words = [
            f"ip route replace {pods} via {link.address.partition('/')[0]}"
            for pods, link in others.items()
        ]
        # Now, and after each boot.
        machine.guest.run("\n".join(words))
        settings = "\n".join(("[Service]", *(f"ExecStart={each}" for each in words)))
        machine.guest.write(ROUTES, settings)
        machine.guest.run("systemctl", "daemon-reload")
