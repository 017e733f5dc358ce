"""What 250 pods with a device each cost an agent while nothing happens, beside 250 without.

The runtime is the hollow one, in the agent's process; the device plugin is a process of its own. It
watches, too, that nothing is done for the devices meanwhile: the plugin is not called, and the
checkpoint is not written.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

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
WATCHED_SECONDS = 60.0
QUIET_SECONDS = 20.0
"""Until the burst of starts has faded."""
DEADLINE_SECONDS = 300.0

GOAL_MORE_CPU_PERCENT = 0.1
"""Of one core, beside what the same pods cost without devices: nothing that can be measured."""


async def measure(folder: Path, _rounds: int) -> list[Figure]:
    """Run the pods without devices and with them, and watch both."""
    found = {}
    for kind in ("without", "with"):
        agent = LabAgent(folder / kind, settings={"maxPods": PODS})
        try:
            await trio.to_thread.run_sync(agent.start)
            found[kind] = await _measure(agent, has_devices=kind == "with")
        finally:
            agent.kill()  # The pods of the hollow runtime end with it.
            detach_mounts_below(agent.folder)
    (percent, mebibytes), (percent_without, mebibytes_without) = found["with"], found["without"]
    watched = f"{PODS} pods, {WATCHED_SECONDS:.0f} s; without devices"
    return [
        Figure(
            benchmark=NAME,
            name="CPU more than without devices",
            value=max(0.0, percent - percent_without),
            unit="%",
            goal=GOAL_MORE_CPU_PERCENT,
            how=f"{percent:.2f} %; {watched} {percent_without:.2f} %",
        ),
        Figure(
            benchmark=NAME,
            name="memory more than without devices",
            value=mebibytes - mebibytes_without,
            unit="MiB",
            how=f"{mebibytes:.0f} MiB; {watched} {mebibytes_without:.0f} MiB",
        ),
    ]


async def _measure(agent: LabAgent, *, has_devices: bool) -> tuple[float, float]:
    """Start the pods; the CPU time at rest, in percent, and the memory in MiB."""
    with _device_plugin(agent) as plugin:
        await trio.to_thread.run_sync(_start_pods, agent, has_devices)
        await trio.sleep(QUIET_SECONDS)
        before = _work(agent, plugin)
        percent = await cpu_percent(agent.pid, WATCHED_SECONDS)
        if _work(agent, plugin) != before:
            raise LabError("something was done for devices while nothing happened")
        return percent, resident_mib(agent.pid)


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


def _work(agent: LabAgent, plugin: LabDevicePlugin) -> tuple[int, int]:
    """The calls of the plugin, and the time at which the checkpoint was written."""
    path = agent.root / "device-plugins" / CHECKPOINT
    return len(plugin.calls()), path.stat().st_mtime_ns
