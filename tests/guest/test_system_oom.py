"""A machine that runs out of memory says whom its kernel killed, before and after a restart."""

from lab.agent import pod_manifest
from lab.images import SLEEPER
from tests.guest.node import UNIT, Node

NAME = "victim"
KILL_SOMEBODY = "echo f >/proc/sysrq-trigger"
"""What the kernel takes for a machine without memory: it kills whom it would kill then."""


def system_ooms(node: Node) -> list[str]:
    """The messages of such events since the machine was started."""
    lines = node.log().splitlines()
    return [line.partition("message=")[2] for line in lines if "reason=SystemOOM" in line]


def kills(node: Node) -> int:
    """The number of such processes since the machine was started, by the kernel's own log."""
    log = node.guest.run("journalctl --dmesg --boot --output cat")
    return log.count("Out of memory: Killed process")


def test_a_process_that_the_kernel_kills_for_the_machine_is_told_once(node: Node) -> None:
    containers = ({"name": name, "image": SLEEPER} for name in ("first", "second"))
    node.add(pod_manifest(NAME, *containers, restartPolicy="Never"))
    node.wait_for_pod(NAME)
    before = len(system_ooms(node))
    node.guest.run(KILL_SOMEBODY)
    node.wait_for(lambda: len(system_ooms(node)) == before + 1, node.status)
    assert "System OOM encountered, victim process: " in system_ooms(node)[-1]
    node.systemctl("stop", UNIT)
    killed = kills(node)
    node.guest.run(KILL_SOMEBODY)
    node.wait_for(lambda: kills(node) > killed, node.status)
    node.systemctl("start", UNIT)
    node.wait_for(lambda: len(system_ooms(node)) == before + 2, node.status)
    node.systemctl("restart", UNIT)
    node.remove(NAME)
    assert len(system_ooms(node)) == before + 2
