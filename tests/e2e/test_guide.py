"""docs/joining.md does what it says: its commands, on a machine that they may change.

The machine has what a node has when the guide begins: systemd, a runtime, and the packages of
kubeadm's project, with the Go kubelet. The cluster has what `kubeadm init` leaves in one.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from attrs import frozen

from lab import LabError, UnavailableError, control_plane_programs
from lab.control_plane import ControlPlane
from lab.control_plane_programs import NEWEST
from lab.go_programs import Programs
from lab.guest import images
from lab.guest.guest import Guest
from lab.guest.image import GuestImage
from lab.images import PAUSE
from tests.e2e.cluster import is_ready
from tests.e2e.guest import ClusterOfGuests
from tests.e2e.guide import Administrator, Block
from tests.e2e.kubeadm import GUIDE, PRINTED, SERVER_FLAGS, blocks, leave_what_kubeadm_init_leaves
from tests.e2e.machines import (
    AGENT,
    GO_KUBELET,
    KERNEL,
    KUBELET,
    Machine,
    gather_build_requirements,
)
from tests.missing import do_without

NODE = "guide-node"
POD = "/api/v1/namespaces/default/pods/{}"
# Those that a reader sets beforehand, or takes from what kubeadm prints.
READERS = frozenset({"NODE", "API_SERVER", "IMAGE", "TOKEN", "CA_HASH"})
INSTALL, KUBEADM_JOIN, TOKEN_JOIN = "Install", "Join with kubeadm", "Join with a bootstrap token"
DEADLINE_SECONDS = 600

NO_PACKAGE, RENEW = "Without the package kubelet", "Renew the certificate"
LOOK, UPGRADE, LEAVE = "Look whether it works", "Upgrade the agent", "Leave"
TAKE_OVER = "From the Go kubelet and back"
JOINS = {KUBEADM_JOIN, NO_PACKAGE, TOKEN_JOIN}
FOLLOWED = {INSTALL, *JOINS, LOOK, RENEW, UPGRADE, LEAVE, TAKE_OVER}
# What the reader has in files of the node's own.
DEFAULTS = {
    "/etc/default/kubelet": "KUBELET_EXTRA_ARGS=--node-labels=disk=hdd\n",
    "/etc/default/trio-kubelet": (
        'TRIO_KUBELET_EXTRA_ARGS="--node-labels=disk=ssd --version=v1.35.7"\n'
    ),
}
PROGRAMS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class GuideCluster(ClusterOfGuests):
    """A cluster as kubeadm makes it, and a machine that may join it."""

    def __init__(self, folder: Path, image: GuestImage, version: str) -> None:
        super().__init__(folder, version, server_flags=SERVER_FLAGS)
        guest = Guest(folder / NODE, image=image, name=NODE, network=self.network)
        self.machine = Machine(guest, image.kernel)

    @property
    def nodes(self) -> tuple[str, ...]:
        return (NODE,)

    def start_nodes(self, running: ExitStack) -> None:
        """Boot the machine, and put there what is there when the guide begins."""
        kubeadm = control_plane_programs.kubeadm(self._version)
        leave_what_kubeadm_init_leaves(self.control_plane, kubeadm, self._folder)
        wheels = self._folder / "wheels"
        gather_build_requirements(wheels)
        running.enter_context(self.machine.guest)
        go_kubelet = control_plane_programs.go_kubelet(self._version)
        self.machine.prepare(kubeadm, go_kubelet, wheels)
        for path, text in DEFAULTS.items():
            self.machine.guest.write(path, text)

    def last_words(self) -> str:
        return f"{self.machine.guest.last_words()}\n{self.control_plane.last_words()}"


@frozen
class Site:
    """Where the guide is followed: the cluster, the machine, and who types."""

    plane: ControlPlane
    machine: Machine
    administrator: Administrator

    def follow(self, *steps: Block) -> None:
        """Run blocks as the guide's reader, who copies what kubeadm prints."""
        for step in steps:
            person = self.machine.root if step.who == "node" else self.administrator
            try:
                printed = PRINTED.search(person.run(step.commands))
            except LabError as error:
                error.add_note(self.machine.guest.last_words())
                raise
            if printed is not None:
                self.machine.root.learn(**printed.groupdict())

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
            self.plane.api.wait_gone(POD.format(name), deadline_seconds=DEADLINE_SECONDS)

    def certificate(self) -> str:
        """Which file has the node's certificate."""
        current = "/var/lib/kubelet/pki/kubelet-client-current.pem"
        return self.machine.guest.run("readlink", current)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A machine on which the section Install was followed, beside a cluster as kubeadm makes it."""
    version = os.environ.get("TRIO_KUBELET_KUBERNETES") or NEWEST
    try:
        image = images.find(KERNEL)
        programs = control_plane_programs.find(version)
        control_plane_programs.kubeadm(version)
        control_plane_programs.go_kubelet(version)
    except UnavailableError as reason:
        do_without(str(reason))
    folder = tmp_path_factory.mktemp("guide")
    with GuideCluster(folder, image, version) as cluster:
        plane = cluster.control_plane
        told = {"NODE": NODE, "API_SERVER": plane.endpoint, "IMAGE": PAUSE}
        cluster.machine.root.learn(**told)
        desk = folder / "desk"
        desk.mkdir()
        site = Site(plane, cluster.machine, an_administrator(plane, desk, programs, told))
        site.follow(*blocks(INSTALL))
        yield site


def an_administrator(
    plane: ControlPlane, desk: Path, programs: Programs, told: Mapping[str, str]
) -> Administrator:
    """Somebody who has kubectl and kubeadm, and may do everything."""
    for program in (control_plane_programs.kubeadm(plane.wish), programs["kubectl"]):
        (desk / program.name).symlink_to(program)
    return Administrator(
        environment={
            **told,
            "PATH": f"{desk}:{PROGRAMS}",
            "HOME": str(desk),
            "KUBECONFIG": str(plane.folder / "admin.conf"),
        },
        folder=desk,
    )


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
    bootstrap = site.administrator.folder / "bootstrap-kubelet.conf"
    site.machine.guest.write(f"/root/{bootstrap.name}", bootstrap.read_bytes(), mode=0o600)
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


def test_kubeadm_joins_a_machine_that_is_upgraded_and_resets_it(site: Site) -> None:
    drain, reset, _, delete = blocks(LEAVE)
    site.follow(*blocks(KUBEADM_JOIN))
    site.machine.wait_kubelet_is(AGENT)
    site.follow(*blocks(LOOK))
    node = site.plane.api.get(f"/api/v1/nodes/{NODE}")
    assert node["metadata"]["labels"]["disk"] == "hdd"

    steady, agent = site.run_pod("steady"), site.machine.kubelet_pid()
    site.follow(*blocks(UPGRADE))
    assert site.machine.kubelet_pid() != agent
    site.run_pod("after-upgrade")
    assert site.container_id("steady") == steady
    site.delete_pods("steady", "after-upgrade")

    site.follow(drain, reset, delete)
    assert not is_known(site)


def test_kubeadm_joins_a_machine_that_knows_no_other_kubelet(site: Site) -> None:
    drain, reset, _, delete = blocks(LEAVE)
    _, ask, join = blocks(KUBEADM_JOIN)
    site.follow(*blocks(NO_PACKAGE), ask, join)
    try:
        site.machine.wait_kubelet_is(KUBELET)
        site.follow(*blocks(LOOK), drain)
        site.machine.root.run(reset.commands.splitlines()[0])
    finally:
        site.machine.root.run(f"ln -sf {GO_KUBELET} /usr/bin/kubelet")
    site.follow(delete)


def test_a_node_goes_from_the_go_kubelet_to_the_agent_and_back(site: Site) -> None:
    take_over, give_back = blocks(TAKE_OVER)
    drain, reset, _, delete = blocks(LEAVE)
    _, ask, join = blocks(KUBEADM_JOIN)
    site.follow(ask, join)
    site.machine.wait_kubelet_is(KUBELET)
    site.wait_node_ready()
    steady = site.run_pod("steady")

    site.follow(take_over)
    site.machine.wait_kubelet_is(AGENT)
    of_the_agent = site.run_pod("of-the-agent")
    assert site.container_id("steady") == steady

    site.follow(give_back)
    site.machine.wait_kubelet_is(KUBELET)
    site.run_pod("after-all")
    assert site.container_id("steady") == steady
    assert site.container_id("of-the-agent") == of_the_agent

    site.delete_pods("steady", "of-the-agent", "after-all")
    # It is the Go kubelet's again: there is no drop-in to remove.
    site.follow(drain)
    site.machine.root.run(reset.commands.splitlines()[0])
    site.follow(delete)


def is_known(site: Site) -> bool:
    """Whether the cluster has the node."""
    names = site.plane.kubectl("get", "nodes", "--output", "name")
    return f"node/{NODE}" in names.split()
