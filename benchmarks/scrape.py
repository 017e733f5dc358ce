"""What it costs an agent with a hundred pods that it is asked for statistics and metrics.

All paths every 15 s, each at a time of its own, as Prometheus and metrics-server do it.
"""

from pathlib import Path

import httpx
import trio

from benchmarks.figures import Figure
from benchmarks.idle import PODS, QUIET_SECONDS, cpu_seconds
from benchmarks.real_node import RealNode

NAME = "scrape"
PATHS = (
    "/metrics",
    "/metrics/cadvisor",
    "/metrics/probes",
    "/metrics/resource",
    "/stats/summary",
)
INTERVAL_SECONDS = 15.0
ROUNDS = 4
GOAL_CPU_PERCENT = 1.5


async def measure(node: RealNode) -> list[Figure]:
    """Start the pods, watch for a while without scrapes, then with them."""
    seconds = INTERVAL_SECONDS * node.rounds_or(ROUNDS)
    async with node.agent() as running:
        uids = running.prepare(PODS)
        running.release()
        await node.started_at(uids, 0.5)
        await trio.sleep(QUIET_SECONDS)
        pid, socket = running.agent.pid, running.agent.root / "agent.sock"
        before = cpu_seconds(pid)
        await trio.sleep(seconds)
        idle = cpu_seconds(pid) - before
        await scrape(socket, 1)  # What is made once (classes, machine facts) is not what counts.
        before = cpu_seconds(pid)
        sizes = await scrape(socket, node.rounds_or(ROUNDS))
        scraped = cpu_seconds(pid) - before
        running.take_away()
    kilobytes = ", ".join(f"{path} {size >> 10} KiB" for path, size in sizes.items())
    return [
        Figure(
            benchmark=NAME,
            name="CPU of scrapes",
            value=100 * (scraped - idle) / seconds,
            unit="%",
            goal=GOAL_CPU_PERCENT,
            how=f"{PODS} pods, {seconds:.0f} s; {kilobytes}",
        )
    ]


async def scrape(socket: Path, rounds: int) -> dict[str, int]:
    """Ask for all paths so many times, one after the other; how long the answers were."""
    sizes: dict[str, int] = {}
    transport = httpx.AsyncHTTPTransport(uds=str(socket))
    async with httpx.AsyncClient(transport=transport, base_url="http://agent") as client:
        for _ in range(rounds):
            for path in PATHS:
                due = trio.current_time() + INTERVAL_SECONDS / len(PATHS)
                answer = await client.get(path, timeout=INTERVAL_SECONDS)
                answer.raise_for_status()
                sizes[path] = len(answer.content)
                await trio.sleep_until(due)
    return sizes
