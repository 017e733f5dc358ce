"""A control plane here, and machines as its nodes, as users have them.

What docs/joining.md says is typed on each machine (`tests/e2e/machines.py`): it is a node with the
agent in the place of the Go kubelet. Pods of one machine reach those of the other.
"""

import json
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
from tests.e2e.kubeadm import PRINTED, SERVER_FLAGS, blocks, leave_what_kubeadm_init_leaves
from tests.e2e.machines import Machine, gather_build_requirements

# By the name of the machine, the addresses of its pods.
PODS: Mapping[str, str] = {"worker-1": "10.97.1.0/24", "worker-2": "10.97.2.0/24"}
NAMES = tuple(PODS)
CNI = "/etc/cni/net.d/10-guest.conflist"
ROUTES = "/etc/systemd/system/guest-network.service.d/10-pods.conf"
# A slow machine is no reason to fail: everything is waited for that long.
DEADLINE_SECONDS = 600.0


class MachineCluster(ClusterOfGuests):
    """A control plane and its nodes, by name."""

    def __init__(self, folder: Path, image: GuestImage, version: str) -> None:
        super().__init__(folder, version, server_flags=SERVER_FLAGS)
        self.machines: Mapping[str, Machine] = {
            name: Machine(
                Guest(folder / name, image=image, name=name, network=self.network), image.kernel
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
        wheels = self._folder / "wheels"
        gather_build_requirements(wheels)
        leave_what_kubeadm_init_leaves(self.control_plane, kubeadm, self._folder)

        def bring_up(machine: Machine) -> None:
            running.enter_context(machine.guest)
            machine.prepare(kubeadm, go_kubelet, wheels)
            self._connect(machine)
            machine.follow(*blocks("Install"))
            self.join(machine, kubeadm)

        with ThreadPoolExecutor() as threads:
            list(threads.map(bring_up, self.machines.values()))
        for name in NAMES:
            self.wait_node(name)

    def join(self, machine: Machine, kubeadm: Path) -> None:
        """Join a machine with kubeadm, as the guide says."""
        prepare, _, join = blocks("Join with kubeadm")
        machine.follow(prepare)
        administrators = f"--kubeconfig={self.control_plane.folder / 'admin.conf'}"
        printed = run([kubeadm, "token", "create", "--print-join-command", administrators])
        found = PRINTED.search(printed)
        assert found is not None, printed
        machine.check(printed)
        machine.root.learn(API_SERVER=self.control_plane.endpoint, **found.groupdict())
        machine.follow(join)

    def wait_node(self, name: str) -> None:
        """Wait until a node is Ready and nothing keeps pods away from it."""
        path = f"/api/v1/nodes/{name}"
        self.api.wait_for(path, is_usable, deadline_seconds=DEADLINE_SECONDS)

    def wait_heartbeat(self, name: str) -> None:
        """Wait until a node says that it lives, from now on."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}"
        last = self.api.get(path)["spec"]["renewTime"]
        self.api.wait_for(
            path,
            lambda lease: lease["spec"]["renewTime"] != last,
            deadline_seconds=DEADLINE_SECONDS,
        )

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
