"""What 250 pods with a device each cost an agent while nothing happens, beside 250 without.

The runtime is the hollow one, in the agent's process; the device plugin is a process of its own. It
watches, too, that nothing is done for the devices meanwhile: the plugin is not called, and the
checkpoint is not written.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import trio
from attrs import define

from benchmarks.figures import Figure
from benchmarks.idle import cpu_percent, resident_mib
from lab import LabError
from lab.agent import LabAgent, is_running, pod_manifest
from lab.device_plugin import RESOURCE, LabDevicePlugin
from lab.host import detach_mounts_below
from lab.orphans import marked
from lab.processes import wait_until
from trio_kubelet.devices.records import CHECKPOINT

NAME = "idle-devices"
PODS = 250
SETTINGS = {"maxPods": PODS, "registryPullQPS": 0}
"""All pods pull their image at once; most would be in back-off for minutes at the default rate."""
WATCHED_SECONDS = 60.0
QUIET_SECONDS = 20.0
"""Until the burst of starts has faded."""
DEADLINE_SECONDS = 300.0

GOAL_MORE_CPU_PERCENT = 0.1
"""Of one core, beside what the same pods cost without devices: nothing that can be measured."""


@define
class IdleNode:
    """An agent with its pods, and what it takes at rest: percent of a core, and MiB."""

    agent: LabAgent
    plugin: LabDevicePlugin
    percent: float = 0.0
    mebibytes: float = 0.0

    async def watch(self) -> None:
        """Watch it for a while."""
        self.percent = await cpu_percent(self.agent.pid, WATCHED_SECONDS)
        self.mebibytes = resident_mib(self.agent.pid)

    def work(self) -> tuple[int, int]:
        """The number of calls of the plugin, and the time at which the checkpoint was written."""
        path = self.agent.root / "device-plugins" / CHECKPOINT
        return len(self.plugin.calls()), path.stat().st_mtime_ns


async def measure(folder: Path, _rounds: int) -> list[Figure]:
    """Run the pods without devices and with them, and watch both in the same minute.

    What else the machine does changes what the same work costs, and so it is the same for both.
    """
    with ExitStack() as stack:
        nodes = []
        for kind in ("without", "with"):
            node = stack.enter_context(_node(folder / kind))
            await trio.to_thread.run_sync(_start_pods, node.agent, kind == "with")
            nodes.append(node)
        await trio.sleep(QUIET_SECONDS)
        before = [node.work() for node in nodes]
        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(node.watch)
        if [node.work() for node in nodes] != before:
            raise LabError("something was done for devices while nothing happened")
    without, with_devices = nodes
    watched = f"{PODS} pods, {WATCHED_SECONDS:.0f} s; without devices"
    return [
        Figure(
            benchmark=NAME,
            name="CPU more than without devices",
            value=max(0.0, with_devices.percent - without.percent),
            unit="%",
            goal=GOAL_MORE_CPU_PERCENT,
            how=f"{with_devices.percent:.2f} %; {watched} {without.percent:.2f} %",
        ),
        Figure(
            benchmark=NAME,
            name="memory more than without devices",
            value=with_devices.mebibytes - without.mebibytes,
            unit="MiB",
            how=f"{with_devices.mebibytes:.0f} MiB; {watched} {without.mebibytes:.0f} MiB",
        ),
    ]


@contextmanager
def _node(folder: Path) -> Iterator[IdleNode]:
    """An agent and a device plugin, until the end of the block."""
    agent = LabAgent(folder, settings=SETTINGS)
    try:
        agent.start()
        with _device_plugin(agent) as plugin:
            yield IdleNode(agent, plugin)
    finally:
        agent.kill()  # The pods of the hollow runtime end with it.
        detach_mounts_below(agent.folder)


@contextmanager
def _device_plugin(agent: LabAgent) -> Iterator[LabDevicePlugin]:
    """A device for each pod, until the end of the block."""
    plugin = LabDevicePlugin(agent.folder, agent.root / "device-plugins")
    plugin.set_devices({f"device-{number}": "Healthy" for number in range(PODS)})
    command = [sys.executable, "-m", "lab.device_plugin"]
    command += ["--folder", str(plugin.folder), "--plugins", str(plugin.agent)]
    with subprocess.Popen(command, env=marked(os.environ)) as process:
        try:
            wait_until(
                lambda: any(not call["error"] for call in plugin.calls("Register")),
                deadline_seconds=DEADLINE_SECONDS,
                else_say=lambda: "the device plugin does not register",
            )
            yield plugin
        finally:
            process.kill()


def _start_pods(agent: LabAgent, has_devices: bool) -> None:
    resources = {"limits": {RESOURCE: "1"}} if has_devices else {}
    container = {"name": "c", "image": "bench", "resources": resources}
    for number in range(PODS):
        agent.write(f"{number}.json", pod_manifest(f"p{number}", container))
    wait_until(
        lambda: sum(map(is_running, agent.pods().values())) == PODS,
        deadline_seconds=DEADLINE_SECONDS,
        else_say=lambda: f"not all pods run: {agent.last_words()}",
    )
