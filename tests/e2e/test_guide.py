"""docs/joining.md does what it says: its commands, on a machine that they may change.

The machine has what a node has when the guide begins: a runtime, and the packages of kubeadm's
project, with the Go kubelet. The cluster has what `kubeadm init` leaves in one. Everything is
real but systemd, which is not the first process here; `lab.systemctl` does what units say.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from attrs import frozen

from lab import LabError, UnavailableError, control_plane_programs, host
from lab.containerd import Containerd
from lab.control_plane import ControlPlane
from lab.go_kubelet import make_cgroups
from lab.images import PAUSE
from lab.machine import PATH, REPOSITORY, NamespacedMachine
from lab.ports import free_ports
from lab.processes import wait_until
from tests.e2e.cluster import is_ready
from tests.e2e.guide import Block, Shell
from tests.e2e.kubeadm import (
    GUIDE,
    KUBEADM,
    PRINTED,
    UNIT_FILES,
    blocks,
    leave_what_kubeadm_init_leaves,
)
from tests.missing import do_without

NODE = "guide-node"
POD = "/api/v1/namespaces/default/pods/{}"
# Those that a reader sets beforehand, or takes from what kubeadm prints.
READERS = frozenset({"NODE", "API_SERVER", "IMAGE", "TOKEN", "CA_HASH"})
INSTALL, KUBEADM_JOIN, TOKEN_JOIN = "Install", "Join with kubeadm", "Join with a bootstrap token"
AGENT, KUBELET = "/usr/bin/trio-kubelet run ", "/usr/bin/kubelet --bootstrap-kubeconfig"
DEADLINE_SECONDS = 120

NO_PACKAGE, RENEW = "Without the package kubelet", "Renew the certificate"
LOOK, LEAVE, TAKE_OVER = "Look whether it works", "Leave", "From the Go kubelet and back"
FOLLOWED = {INSTALL, KUBEADM_JOIN, NO_PACKAGE, TOKEN_JOIN, LOOK, RENEW, LEAVE, TAKE_OVER}
# What the reader has in /etc/default/trio-kubelet.
NODES_OWN = "--config-dir=/etc/trio-kubelet.conf.d --node-labels=disk=ssd --version=v1.35.7"


@frozen
class Site:
    """Where the guide is followed: the cluster, the machine, and who types."""

    plane: ControlPlane
    machine: NamespacedMachine
    node: Shell
    administrator: Shell

    def follow(self, *steps: Block) -> None:
        """Run blocks as the guide's reader, who copies what kubeadm prints."""
        for step in steps:
            person = self.node if step.who == "node" else self.administrator
            try:
                printed = PRINTED.search(person.run(step.commands))
            except LabError as error:
                error.add_note(self.logs())
                raise
            if printed is not None:
                self.node.environment = {**self.node.environment, **printed.groupdict()}

    def wait_node_ready(self) -> None:
        path = f"/api/v1/nodes/{NODE}"
        self.plane.api.wait_for(path, is_ready, deadline_seconds=DEADLINE_SECONDS)

    def run_pod(self, name: str) -> str:
        """Create a pod for the node, wait until it is Ready, and return its container's id."""
        spec = {"nodeName": NODE, "containers": [{"name": "c", "image": PAUSE}]}
        self.plane.api.create(POD.format(""), {"metadata": {"name": name}, "spec": spec})
        return self.container_id(name)

    def container_id(self, name: str) -> str:
        pod = self.plane.api.wait_for(POD.format(name), is_ready, deadline_seconds=DEADLINE_SECONDS)
        found: str = pod["status"]["containerStatuses"][0]["containerID"]
        return found

    def delete_pods(self, *names: str) -> None:
        for name in names:
            self.plane.api.delete(POD.format(name))
            self.plane.api.wait_gone(POD.format(name))

    def certificate(self) -> str:
        """Which file has the node's certificate."""
        return self.machine.run("readlink /var/lib/kubelet/pki/kubelet-client-current.pem")

    def wait_kubelet_is(self, command: str) -> None:
        """Wait until what kubelet.service runs has this in its command line, as it begins."""
        pid = self.machine.run("cat /run/lab-services/kubelet.pid").strip()
        # Empty for the moment in which the program is loaded.
        wait_until(
            lambda: command in Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "),
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: f"kubelet.service is not {command}: {self.logs()}",
        )

    def logs(self) -> str:
        """The ends of the services' logs."""
        return self.machine.run("tail -n 20 /run/lab-services/*.log || true")


@pytest.fixture(scope="module")
def site(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A machine on which the section Install was followed, beside a cluster as kubeadm makes it."""
    obstacles = host.obstacles()
    if obstacles:
        do_without("; ".join(obstacles))
    minor = control_plane.wish
    try:
        kubeadm = control_plane_programs.kubeadm(minor)
        go_kubelet = control_plane_programs.go_kubelet(minor)
    except UnavailableError as reason:
        do_without(str(reason))
    folder = tmp_path_factory.mktemp("guide")
    machine = NamespacedMachine(folder, NODE)
    with machine, Containerd("2.1", folder / "ctd", enter=machine.enter) as containerd:
        settings = settings_for(containerd.cgroup_root)
        leave_what_kubeadm_init_leaves(control_plane, kubeadm, settings, folder)
        install_packages(machine, kubeadm, go_kubelet, containerd.socket)
        machine.write("/etc/trio-kubelet.conf.d/10-lab.conf", yaml.safe_dump(settings))
        own = f'TRIO_KUBELET_EXTRA_ARGS="{NODES_OWN}"\n'
        machine.write("/etc/default/trio-kubelet", own)
        site = settle(control_plane, machine, kubeadm, folder)
        site.follow(*blocks(INSTALL))
        yield site
        machine.run("systemctl stop kubelet trio-kubelet || true")


def settings_for(cgroup_root: str) -> Mapping[str, object]:
    """The fields of KubeletConfiguration that a host of tests needs, whoever the kubelet is."""
    health, port = free_ports(2)
    make_cgroups(cgroup_root)
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup_root,
        "failCgroupV1": False,
        "failSwapOn": False,
        "healthzPort": health,
        "port": port,
        "oomScoreAdj": 0,
        "makeIPTablesUtilChains": False,
        "enforceNodeAllocatable": [],
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%"},
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
    }


def install_packages(
    machine: NamespacedMachine, kubeadm: Path, go_kubelet: Path, runtime: Path
) -> None:
    """What is on a machine before the guide begins."""
    for path, text in UNIT_FILES.items():
        machine.write(path, text)
    machine.write("/etc/default/kubelet", "KUBELET_EXTRA_ARGS=--node-labels=disk=hdd\n")
    machine.write("/usr/bin/kubeadm", KUBEADM.format("all", kubeadm), mode=0o755)
    machine.run(
        f"ln -sf {go_kubelet} /usr/bin/kubelet; mkdir -p /run/containerd\n"
        f"ln -sf {runtime} /run/containerd/containerd.sock"
    )


def settle(plane: ControlPlane, machine: NamespacedMachine, kubeadm: Path, folder: Path) -> Site:
    """Two people at their command lines. The node's begins in a checkout."""
    home, desk, programs = (folder / name for name in ("home", "desk", "bin"))
    for each in (home, desk, programs):
        each.mkdir()
    for program in (kubeadm, control_plane_programs.find(plane.wish)["kubectl"]):
        (programs / program.name).symlink_to(program)
    told = {"NODE": NODE, "API_SERVER": plane.endpoint, "IMAGE": PAUSE}
    inherited = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    node = Shell(
        folder=REPOSITORY,
        environment={**inherited, **told, "PATH": PATH, "HOME": str(home)},
        enter=machine.enter,
    )
    administrator = Shell(
        folder=desk,
        environment={
            **told,
            "PATH": f"{programs}:{PATH}",
            "HOME": str(desk),
            "KUBECONFIG": str(plane.folder / "admin.conf"),
        },
    )
    return Site(plane=plane, machine=machine, node=node, administrator=administrator)


def test_somebody_runs_each_command() -> None:
    assert {each.who for each in GUIDE} == {"node", "administrator", "example"}
    assigned = {name for each in GUIDE if each.who == "example" for name in each.assigned}
    assert assigned == READERS
    assert {each.section for each in GUIDE if each.who != "example"} == FOLLOWED
    assert [each.who for each in blocks(LEAVE)] == [
        "administrator",
        "node",
        "node",
        "administrator",
    ]
    assert [each.who for each in blocks(TAKE_OVER)] == ["node", "node"]


def test_a_machine_joins_with_a_bootstrap_token_and_leaves(site: Site) -> None:
    drain, _, forget, delete = blocks(LEAVE)
    steps = blocks(TOKEN_JOIN)
    copied = next(number for number, step in enumerate(steps) if step.who == "node")
    site.follow(*steps[:copied])
    shutil.copy(site.administrator.folder / "bootstrap-kubelet.conf", site.node.environment["HOME"])
    site.follow(*steps[copied:], *blocks(LOOK))
    node = site.plane.api.get(f"/api/v1/nodes/{NODE}")
    assert node["status"]["nodeInfo"]["kubeletVersion"] == "v1.35.7"
    assert node["metadata"]["labels"]["disk"] == "ssd"

    first = site.certificate()
    site.follow(*blocks(RENEW))
    site.run_pod("after-renewal")
    assert site.certificate() != first
    site.delete_pods("after-renewal")

    site.follow(drain, forget, delete)
    assert not is_known(site)


def test_kubeadm_joins_a_machine_and_resets_it(site: Site) -> None:
    drain, reset, _, delete = blocks(LEAVE)
    site.follow(*blocks(KUBEADM_JOIN))
    site.wait_kubelet_is(AGENT)
    site.follow(*blocks(LOOK))
    node = site.plane.api.get(f"/api/v1/nodes/{NODE}")
    assert node["metadata"]["labels"]["disk"] == "hdd"
    site.follow(drain, reset, delete)
    assert not is_known(site)


def test_kubeadm_joins_a_machine_that_knows_no_other_kubelet(site: Site) -> None:
    drain, reset, _, delete = blocks(LEAVE)
    _, ask, join = blocks(KUBEADM_JOIN)
    package = site.machine.run("readlink /usr/bin/kubelet").strip()
    site.follow(*blocks(NO_PACKAGE), ask, join)
    try:
        site.wait_kubelet_is(KUBELET)
        site.follow(*blocks(LOOK), drain)
        site.node.run(reset.commands.splitlines()[0])
    finally:
        site.machine.run(f"ln -sf {package} /usr/bin/kubelet")
    site.follow(delete)


def test_a_node_goes_from_the_go_kubelet_to_the_agent_and_back(site: Site) -> None:
    take_over, give_back = blocks(TAKE_OVER)
    drain, reset, _, delete = blocks(LEAVE)
    _, ask, join = blocks(KUBEADM_JOIN)
    site.follow(ask, join)
    site.wait_kubelet_is(KUBELET)
    site.wait_node_ready()
    steady = site.run_pod("steady")

    site.follow(take_over)
    site.wait_kubelet_is(AGENT)
    of_the_agent = site.run_pod("of-the-agent")
    assert site.container_id("steady") == steady

    site.follow(give_back)
    site.wait_kubelet_is(KUBELET)
    site.run_pod("after-all")
    assert site.container_id("steady") == steady
    assert site.container_id("of-the-agent") == of_the_agent

    site.delete_pods("steady", "of-the-agent", "after-all")
    # It is the Go kubelet's again: there is no drop-in to remove.
    site.follow(drain)
    site.node.run(reset.commands.splitlines()[0])
    site.follow(delete)


def is_known(site: Site) -> bool:
    """Whether the cluster has the node."""
    names = site.plane.kubectl("get", "nodes", "--output", "name")
    return f"node/{NODE}" in names.split()
