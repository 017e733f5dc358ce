"""Settings of the kernel on a machine of its own: demanded of it, or given to it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import yaml

from tests.guest.node import CONFIGURATION, UNIT, Node

REFUSAL = "kernel.panic is 0 and must be 10"
PANIC = "/proc/sys/kernel/panic"


@contextmanager
def protected_kernel(node: Node) -> Iterator[None]:
    """A configuration that has the agent demand them; nothing is restarted."""
    before = node.guest.read(CONFIGURATION)
    changed = yaml.safe_load(before) | {"protectKernelDefaults": True}
    node.guest.write(CONFIGURATION, json.dumps(changed))
    try:
        yield
    finally:
        node.guest.write(CONFIGURATION, before)


def reboot_seconds(node: Node) -> str:
    return node.guest.read(PANIC).decode().strip()


def set_reboot_seconds(node: Node, seconds: int) -> None:
    node.guest.run(f"echo {seconds} >{PANIC}")


def test_settings_that_differ_keep_the_agent_from_starting_until_someone_puts_them_right(
    node: Node,
) -> None:
    with protected_kernel(node):
        set_reboot_seconds(node, 0)
        since, before = node.now(), node.pid
        node.systemctl("restart", "--no-block", UNIT)
        node.wait_for(lambda: REFUSAL in node.log(since), node.status)
        assert reboot_seconds(node) == "0", "demanded, not set"
        set_reboot_seconds(node, 10)
        node.wait_for_another(before)


def test_without_the_setting_the_agent_sets_them(node: Node) -> None:
    set_reboot_seconds(node, 0)
    node.systemctl("restart", UNIT)
    assert reboot_seconds(node) == "10"
