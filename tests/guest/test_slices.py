"""Pods whose slices systemd is asked for while it is busy, executes itself anew, or has no bus."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from lab.agent import pod_manifest
from lab.images import SLEEPER
from tests.guest.node import Node

NAMES = tuple(f"slice-{number}" for number in range(3))
MAIN = {"name": "main", "image": SLEEPER, "resources": {"limits": {"memory": "64Mi"}}}

# systemd waits for its generators, and does nothing else meanwhile.
GENERATOR = "/run/systemd/system-generators/keeps-busy"
KEEP_BUSY = "#!/bin/sh\nwhile test -e /run/busy; do sleep 0.1; done\n"
TIMES = 2
# Does not end when it is asked to, and writes down that it was.
STAYS = "trap 'touch /run/asked' TERM; while true; do sleep 0.1; done"


@contextmanager
def busy_systemd(node: Node) -> Iterator[None]:
    """systemd answers nobody within the block."""
    node.guest.run("touch", "/run/busy")
    node.guest.write(GENERATOR, KEEP_BUSY, mode=0o755)
    try:
        node.guest.run("systemctl daemon-reload </dev/null >/dev/null 2>&1 &")
        node.wait_for(
            lambda: node.guest.call("pgrep", "keeps-busy").status == 0, lambda: "it is not busy"
        )
        yield
    finally:
        node.guest.run("rm", "-f", "/run/busy", GENERATOR)


@contextmanager
def without_bus(node: Node) -> Iterator[None]:
    """There is no D-Bus within the block."""
    units = ("dbus.socket", "dbus.service")
    node.systemctl("stop", *units)
    try:
        yield
    finally:
        node.systemctl("start", *units)


def wait_until_it_asks(node: Node) -> None:
    """Wait until the agent has a connection to the bus: it has one while it asks systemd."""
    node.wait_for(
        lambda: f" {node_pid(node)} " in node.guest.run("busctl", "list", "--unique"),
        lambda: "the agent does not ask systemd",
    )


def execute_anew(node: Node) -> None:
    """Let systemd execute itself anew some times."""
    for _ in range(TIMES):
        node.systemctl("daemon-reexec")


def node_pid(node: Node) -> str:
    """The agent's process, which systemd cannot be asked for while it is busy."""
    return node.guest.run("pgrep", "-of", "/usr/bin/trio-kubelet run").strip()


def test_a_pod_waits_for_a_systemd_that_is_busy_and_what_is_left_in_its_slice_is_killed(
    node: Node,
) -> None:
    since = node.now()
    with busy_systemd(node):
        node.add(pod_manifest("patient", MAIN))
        wait_until_it_asks(node)
    uid = node.wait_for_pod("patient")["metadata"]["uid"]
    slice_of_it = f"--slice=kubepods-burstable-pod{uid.replace('-', '_')}.slice"
    node.guest.run("systemd-run", "--unit=stays", "--collect", slice_of_it, "sh", "-c", STAYS)
    node.remove("patient")
    assert node.guest.call("systemctl", "is-active", "stays").stdout == b"inactive\n"
    assert node.guest.call("test", "-e", "/run/asked").status == 1
    assert "type=Warning reason=Failed" not in node.log(since)


def test_a_pod_starts_and_goes_while_there_is_no_bus(node: Node) -> None:
    with without_bus(node):
        node.add(pod_manifest("busless", MAIN))
        node.wait_for_pod("busless")
        node.remove("busless")


def test_pods_start_and_go_while_systemd_executes_itself_anew(node: Node) -> None:
    since = node.now()
    for name in NAMES:
        node.add(pod_manifest(name, MAIN))
    execute_anew(node)
    for name in NAMES:
        node.wait_for_pod(name)
    with ThreadPoolExecutor() as threads:
        again = threads.submit(execute_anew, node)
        node.remove(*NAMES)
        again.result()
    assert node.guest.run("find /sys/fs/cgroup -name '*-pod*.slice'") == ""
    assert "reason=FailedCreatePodContainer" not in node.log(since)
