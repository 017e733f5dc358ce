"""What an agent with a hundred pods costs while nothing happens: CPU time and memory.

Once as it comes, and once without the runtime's events, so that it relists each second as it must
on containerd 1.6.
"""

import os
from pathlib import Path

import trio

from benchmarks.figures import Figure
from benchmarks.real_node import RealNode

NAME = "idle"
PODS = 100
WATCHED_SECONDS = 20.0
QUIET_SECONDS = 8.0
"""Until the burst of starts has faded."""

GOAL_CPU_PERCENT = 3.0
GOAL_MEMORY_MIB = 110.0

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


async def measure(node: RealNode) -> list[Figure]:
    """Start the pods, watch, start the agent anew without events, watch again."""
    async with node.agent() as running:
        uids = running.prepare(PODS)
        running.release()
        await node.started_at(uids, 0.5)
        await trio.sleep(QUIET_SECONDS)
        percent = await cpu_percent(running.agent.pid, WATCHED_SECONDS)
        memory = resident_mib(running.agent.pid)
        await running.start(featureGates={"EventedPLEG": False})
        await trio.sleep(QUIET_SECONDS)
        relisting_percent = await cpu_percent(running.agent.pid, WATCHED_SECONDS)
        relisting_memory = resident_mib(running.agent.pid)
        running.take_away()
    watched = f"{PODS} pods, {WATCHED_SECONDS:.0f} s"
    return [
        _cpu("CPU", percent, watched),
        _memory("memory", memory, f"after starting {PODS} pods"),
        _cpu("CPU, relist each second", relisting_percent, watched),
        _memory("memory, relist each second", relisting_memory, f"restarted over {PODS} pods"),
    ]


def _cpu(name: str, percent: float, how: str) -> Figure:
    return Figure(
        benchmark=NAME, name=name, value=percent, unit="%", goal=GOAL_CPU_PERCENT, how=how
    )


def _memory(name: str, mib: float, how: str) -> Figure:
    return Figure(benchmark=NAME, name=name, value=mib, unit="MiB", goal=GOAL_MEMORY_MIB, how=how)


async def cpu_percent(pid: int, seconds: float) -> float:
    """How much of one core a process takes, watched for a while."""
    began_at, before = trio.current_time(), cpu_seconds(pid)
    await trio.sleep(seconds)
    return 100 * (cpu_seconds(pid) - before) / (trio.current_time() - began_at)


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used, its own and the kernel's for it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def resident_mib(pid: int) -> float:
    """A process's resident set (VmRSS), in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"process {pid} has no VmRSS")
