"""One pod whose process obeys SIGTERM at once: from its manifest's end to its sandbox's.

Beside StopContainer with the same grace and StopPodSandbox. Both times end when a watcher sees
that the sandbox is not ready.
"""

import trio

from benchmarks.figures import Figure, ratio_of_medians, spread
from benchmarks.manifests import GRACE_SECONDS
from benchmarks.real_node import SETTLE_SECONDS, RealNode

NAME = "pod-stop"
ROUNDS = 5
GOAL_RATIO = 1.6


async def measure(node: RealNode) -> list[Figure]:
    """Some rounds of bare calls and agent."""
    bare: list[float] = []
    ours: list[float] = []
    for _ in range(node.rounds_or(ROUNDS)):
        bare.append(await _bare_stop(node))
        ours.append(await _stop(node))
    return [
        Figure(
            benchmark=NAME,
            name="stop, of bare calls",
            value=ratio_of_medians(ours, bare),
            unit="x",
            goal=GOAL_RATIO,
            how=f"{spread(ours)}; bare {spread(bare)}",
        )
    ]


async def _bare_stop(node: RealNode) -> float:
    (pod,) = await node.bare_pods(1)
    started = await pod.start(node.client)
    await trio.sleep(SETTLE_SECONDS)
    async with trio.open_nursery() as nursery:
        began_at = trio.current_time()
        nursery.start_soon(started.stop, node.client, GRACE_SECONDS)
        ended_at = await node.wait_not_ready(started.sandbox_id)
    await node.remove([started])
    return ended_at - began_at


async def _stop(node: RealNode) -> float:
    async with node.agent() as running:
        (uid,) = running.prepare(1)
        running.release()
        await node.started_at([uid])
        await trio.sleep(SETTLE_SECONDS)
        sandbox_id = await node.sandbox_of(uid)
        began_at = trio.current_time()
        running.take_away()
        return await node.wait_not_ready(sandbox_id) - began_at
