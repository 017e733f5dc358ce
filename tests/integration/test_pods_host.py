"""Pods that share something with their host: its network, ports, processes, shared memory."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.agent import Json, pod_manifest
from lab.images import PAGE, WEB
from lab.ports import free_port
from tests.integration.pods import (
    Node,
    fetch,
    host_folder,
    is_over,
    mount,
    one_shot,
    phase,
    shell,
    status_of,
    waiting_reason,
)
from tests.missing import do_without
from trio_kubelet.volumes.mount import mount as mount_on_host
from trio_kubelet.volumes.mount import unmount as unmount_on_host

NOT_TRIED_YET = ("", "ContainerCreating")

NAMESPACES = "for each in net pid ipc; do readlink /proc/self/ns/$each; done"


def makes_recursive_read_only(node: Node) -> bool:
    """Whether the runtime has them, which containerd tells of since 2.0."""
    return node.containerd.tools.major_minor >= (2, 0)


def of_this_host(*kinds: str) -> list[str]:
    return [str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in kinds]


def test_a_pod_on_the_host_network_has_the_hosts_address_name_and_ports(node: Node) -> None:
    port = free_port()
    server = {
        "name": "web",
        "image": WEB,
        "args": ["httpd", "-f", "-p", str(port), "-h", "/www"],
        "ports": [{"containerPort": port}],
    }
    pod = node.run(pod_manifest("host-network", server, hostNetwork=True))
    assert pod["status"]["podIP"] == pod["status"]["hostIP"]
    assert pod["spec"]["containers"][0]["ports"][0]["hostPort"] == port
    assert fetch(f"http://127.0.0.1:{port}/") == PAGE
    node.remove("host-network")


def test_host_name_and_network_namespace_are_the_hosts(node: Node) -> None:
    pod = node.finish(
        one_shot("host-names", shell("c", f"hostname; {NAMESPACES}"), hostNetwork=True)
    )
    name, net, pid, ipc = node.output(pod, "c")
    assert name == os.uname().nodename
    assert [net] == of_this_host("net")
    assert pid not in of_this_host("pid")
    assert ipc not in of_this_host("ipc")
    node.remove("host-names")


def test_processes_and_shared_memory_can_be_the_hosts(node: Node) -> None:
    pod = node.finish(
        one_shot("host-processes", shell("c", NAMESPACES), hostPID=True, hostIPC=True)
    )
    net, *others = node.output(pod, "c")
    assert [net] != of_this_host("net")
    assert others == of_this_host("pid", "ipc")
    node.remove("host-processes")


def test_a_host_port_leads_to_its_pod_and_goes_with_it(node: Node) -> None:
    if node.containerd.tools.iptables is None:
        do_without("host ports need iptables")
    port = free_port()
    web = {"name": "web", "image": WEB, "ports": [{"containerPort": 80, "hostPort": port}]}
    pod = node.run(pod_manifest("host-port", web))
    assert pod["status"]["podIP"] != pod["status"]["hostIP"]
    assert fetch(f"http://{pod['status']['hostIP']}:{port}/") == PAGE
    node.remove("host-port")
    node.wait_gone("host-port")
    with pytest.raises(OSError, match=r"refused|timed out"):
        socket.create_connection((pod["status"]["hostIP"], port), timeout=2).close()


@pytest.fixture
def a_mount_below(tmp_path: Path) -> Iterator[Path]:
    """A folder of the host in which another file system is mounted, as `below`."""
    below = tmp_path / "outer/below"
    below.mkdir(parents=True)
    mount_on_host("tmpfs", below, "tmpfs")
    try:
        yield below.parent
    finally:
        unmount_on_host(below)


@pytest.mark.parametrize("mode", ["Disabled", "IfPossible"])
def test_what_is_mounted_below_a_read_only_mount_is_as_writable_as_its_status_says(
    mode: str, node: Node, a_mount_below: Path
) -> None:
    recursive = mode == "IfPossible" and makes_recursive_read_only(node)
    name = f"below-{mode.lower()}"
    where = mount("/outer", readOnly=True, recursiveReadOnly=mode)
    script = "touch /outer/x || echo outer; touch /outer/below/x || echo below"
    pod = node.finish(
        one_shot(name, shell("c", script, volumeMounts=[where]), **host_folder(a_mount_below))
    )
    (shown,) = (
        each for each in status_of(pod, "c")["volumeMounts"] if each["mountPath"] == "/outer"
    )
    assert shown["recursiveReadOnly"] == ("Enabled" if recursive else "Disabled")
    unwritable = [line for line in node.output(pod, "c") if "touch" not in line]
    assert unwritable == (["outer", "below"] if recursive else ["outer"])
    assert (a_mount_below / "below/x").exists() is not recursive
    node.remove(name)


def test_a_recursive_read_only_mount_that_the_runtime_cannot_make_keeps_its_container_from_starting(
    node: Node, a_mount_below: Path
) -> None:
    where = mount("/outer", readOnly=True, recursiveReadOnly="Enabled")
    script = "touch /outer/below/x || echo below"
    node.add(
        one_shot("below", shell("c", script, volumeMounts=[where]), **host_folder(a_mount_below))
    )
    if makes_recursive_read_only(node):
        pod = node.wait("below", is_over)
        assert "below" in node.output(pod, "c")
    else:
        pod = node.wait("below", lambda pod: waiting_reason(pod, "c") not in NOT_TRIED_YET)
        waiting = status_of(pod, "c")["state"]["waiting"]
        assert waiting["reason"] == "CreateContainerConfigError"
        assert waiting["message"] == (
            'failed to resolve recursive read-only mode: volume "shared" requested recursive '
            "read-only mode, but it is not supported by the runtime"
        )
    assert not (a_mount_below / "below/x").exists()
    node.remove("below")


def test_a_folder_of_the_host_is_made_if_asked_for_and_missed_if_not(
    node: Node, tmp_path: Path
) -> None:
    note = shell("c", "touch /folder/file", volumeMounts=[mount("/folder")])

    def volumes(name: str, kind: str) -> list[Json]:
        return [{"name": "shared", "hostPath": {"path": str(tmp_path / name), "type": kind}}]

    node.finish(one_shot("made", note, volumes=volumes("made", "DirectoryOrCreate")))
    assert (tmp_path / "made/file").exists()
    node.add(one_shot("missed", note, volumes=volumes("missed", "Directory")))
    pod = node.wait(
        "missed", lambda _: [m for reason, m in node.events("missed") if reason == "FailedMount"]
    )
    assert phase(pod) == "Pending"
    assert waiting_reason(pod, "c") == "ContainerCreating"
    (tmp_path / "missed").mkdir()
    node.wait("missed", lambda pod: phase(pod) == "Succeeded")
    node.remove("made", "missed")
