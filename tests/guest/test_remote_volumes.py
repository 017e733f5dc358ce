"""Volumes of servers: NFS of a user-space server, and a disk of an iSCSI target.

Static pods of the service mount them; the servers run on the same machine.
"""

from collections.abc import Iterator

import pytest

from lab.agent import Json, is_running, pod_manifest
from lab.images import SLEEPER
from tests.guest.node import MANIFESTS, ROOT, Node

EXPORT, SERVER = "/srv/export", "lab-nfs.service"
CONFIGURATION = f"""
NFS_CORE_PARAM {{ Protocols = 4; Enable_NLM = false; Enable_RQUOTA = false; }}
NFSV4 {{ Graceless = true; RecoveryBackend = fs; }}
EXPORT {{
    Export_Id = 1; Path = {EXPORT}; Pseudo = /export; Access_Type = RW;
    Squash = No_Root_Squash; SecType = sys; FSAL {{ Name = VFS; }}
}}
"""
# The file is closed when its page is changed, so no process is left that waits for the writing.
FREEZE_AND_CHANGE = f"""
import mmap, subprocess, sys
with open(sys.argv[1], "r+b") as file:
    page = mmap.mmap(file.fileno(), 0, trackfd=False)
before = page[:]
subprocess.run(("systemctl", "kill", "--signal=STOP", "{SERVER}"), check=True)
page[:] = before.upper()
"""
PYTHON = "/opt/trio-kubelet/bin/python"
TARGET, TARGET_PORTAL = "iqn.2026-11.lab:guest", "127.0.0.1:3260"


class NFSServer:
    """The server nfs-ganesha, as a unit of the machine."""

    def __init__(self, node: Node) -> None:
        self._guest = node.guest

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._guest.run(f"mkdir -p {EXPORT} /run/ganesha; chmod 0777 {EXPORT}")
        self._guest.write("/etc/ganesha/lab.conf", CONFIGURATION)
        program = "/usr/bin/ganesha.nfsd -F -L /var/log/ganesha.log -f /etc/ganesha/lab.conf"
        self._guest.run(
            f"systemd-run --quiet --collect --unit={SERVER} --property=LimitNOFILE=65536 {program} "
            "-p /run/ganesha/lab.pid; "
            "until nc -z 127.0.0.1 2049; do sleep 0.2; done"
        )

    def freeze(self) -> None:
        """Let it answer nothing."""
        self._guest.run("systemctl", "kill", "--signal=STOP", SERVER)

    def thaw(self) -> None:
        """Let it answer again."""
        self._guest.run("systemctl", "kill", "--signal=CONT", SERVER)

    def stop(self) -> None:
        """End it."""
        self._guest.call("systemctl", "kill", "--signal=KILL", SERVER)
        self._guest.call("systemctl", "stop", SERVER)


@pytest.fixture
def server(node: Node) -> Iterator[NFSServer]:
    server = NFSServer(node)
    server.start()
    yield server
    server.thaw()
    server.stop()


@pytest.fixture
def target(node: Node) -> Iterator[None]:
    script = (
        "import sys; from pathlib import Path; from lab.iscsi_target import ISCSITarget; "
        f"getattr(ISCSITarget(Path('/var/lib/lab-disks'), {TARGET!r}, "
        f"portals=({TARGET_PORTAL!r},)), sys.argv[1])()"
    )
    node.guest.run(PYTHON, "-c", script, "start", folder="/src")
    yield
    node.guest.run(PYTHON, "-c", script, "stop", folder="/src")


def mounting(name: str, source: Json) -> Json:
    """A pod that mounts a volume, and does nothing."""
    container = {
        "name": "c",
        "image": SLEEPER,
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    }
    volume = {"name": "v", **source}
    return pod_manifest(name, container, volumes=[volume], terminationGracePeriodSeconds=1)


NFS = {"nfs": {"server": "127.0.0.1", "path": "/export"}}
ISCSI = {"iscsi": {"targetPortal": TARGET_PORTAL, "iqn": TARGET, "lun": 0}}


def volume_folder(pod: Json) -> str:
    """Where the NFS volume of a pod is on the machine."""
    return f"{ROOT}/pods/{pod['metadata']['uid']}/volumes/kubernetes.io~nfs/v"


def nfs_mounts(node: Node) -> list[str]:
    """The lines of the mount table about NFS."""
    table = node.guest.read("/proc/mounts").decode()
    return [line for line in table.splitlines() if " nfs4 " in line]


def run(node: Node, name: str, script: str) -> str:
    """Run a command in a pod's container."""
    pod = node.pods()[node.full_name(name)]
    container = pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
    words = ("tasks", "exec", "--exec-id", "x", container, "sh", "-c", script)
    return node.ctr(*words)


@pytest.mark.usefixtures("server")
def test_pods_share_an_export_over_a_restart_of_the_agent(node: Node) -> None:
    for name in ("one", "two"):
        node.add(mounting(name, NFS))
    for name in ("one", "two"):
        node.wait_for_pod(name)
    run(node, "one", "echo from-one >/v/a")
    run(node, "two", "echo from-two >>/v/a")
    before, mounts = node.containers(), nfs_mounts(node)
    pid = node.pid
    node.systemctl("kill", "--signal=KILL", "trio-kubelet.service")
    node.wait_for_another(pid)
    node.wait_for_pod("one")
    assert node.containers() == before
    assert nfs_mounts(node) == mounts
    assert len(mounts) == 2
    run(node, "two", "echo after >>/v/a")
    node.remove("one", "two")
    assert node.guest.run("cat", f"{EXPORT}/a") == "from-one\nfrom-two\nafter\n"
    assert not nfs_mounts(node)


def test_a_pod_whose_server_does_not_answer_ends_without_a_thread_of_the_agent(
    node: Node, server: NFSServer
) -> None:
    node.add(mounting("stuck", NFS))
    node.wait_for_pod("stuck")
    server.freeze()
    node.add(mounting("other", {"emptyDir": {}}))
    node.wait_for_pod("other")
    node.guest.run("rm", f"{MANIFESTS}/stuck.json")
    node.wait_for(lambda: not nfs_mounts(node), lambda: "the volume stays mounted")
    # The kernel waits now for the end of the session.
    stacks = node.guest.run(f"cat /proc/{node.pid}/task/*/stack")
    assert "nfs" not in stacks, stacks
    node.remove("stuck", "other")


def test_what_was_written_reaches_a_server_that_answers_again_after_the_end_of_the_pod(
    node: Node, server: NFSServer
) -> None:
    node.add(mounting("writes", NFS))
    pod = node.wait_for_pod("writes")
    run(node, "writes", "echo first >/v/b; sync")
    node.guest.run(PYTHON, "-c", FREEZE_AND_CHANGE, f"{volume_folder(pod)}/b")
    node.add(mounting("waits", NFS))
    node.wait_for_pod("waits", lambda pod: not is_running(pod))
    node.remove("writes")
    server.thaw()
    node.wait_for_pod("waits")
    node.wait_for(
        lambda: node.guest.read(f"{EXPORT}/b") == b"FIRST\n",
        lambda: "what was left to write is lost",
    )
    node.remove("waits")


@pytest.mark.usefixtures("target")
def test_pods_share_a_disk_over_a_restart_of_the_agent(node: Node) -> None:
    for name in ("one", "two"):
        node.add(mounting(name, ISCSI))
    for name in ("one", "two"):
        node.wait_for_pod(name)
    run(node, "one", "echo from-one >/v/a")
    run(node, "two", "echo from-two >>/v/a")
    before, pid = node.containers(), node.pid
    node.systemctl("kill", "--signal=KILL", "trio-kubelet.service")
    node.wait_for_another(pid)
    node.wait_for_pod("one")
    assert node.containers() == before
    node.remove("one")
    run(node, "two", "grep -q from-two /v/a")
    node.remove("two")
    node.wait_for(lambda: not sessions(node), lambda: "the session with the target stays")
    node.add(mounting("three", ISCSI))
    node.wait_for_pod("three")
    run(node, "three", "grep -q from-one /v/a")
    node.remove("three")
    node.wait_for(lambda: not sessions(node), lambda: "the session with the target stays")
    assert node.guest.run(f"ls {ROOT}/disks") == ""


def sessions(node: Node) -> list[str]:
    """The sessions with iSCSI targets."""
    return node.guest.run("ls /sys/class/iscsi_session").split()
