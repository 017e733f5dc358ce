"""One pod: from its manifest to its container's start, beside the bare calls in a row.

Each round starts an agent anew, so the pod is the first that it sees; the image is there.
"""

import time

from benchmarks.figures import Figure, ratio_of_medians, spread
from benchmarks.real_node import RealNode

NAME = "pod-start"
ROUNDS = 5
GOAL_RATIO = 1.6


async def measure(node: RealNode) -> list[Figure]:
    """Some rounds of bare calls, the first pod, and a second one beside it."""
    bare: list[float] = []
    first: list[float] = []
    second: list[float] = []
    for _ in range(node.rounds_or(ROUNDS)):
        bare.append(await _bare_start(node))
        async with node.agent() as running:
            for seconds in (first, second):
                (uid,) = running.prepare(1)
                began_at = time.time_ns()
                running.release()
                seconds.append(((await node.started_at([uid]))[uid] - began_at) / 1e9)
            running.take_away()
    return [
        Figure(
            benchmark=NAME,
            name="first pod, of bare calls",
            value=ratio_of_medians(first, bare),
            unit="x",
            goal=GOAL_RATIO,
            how=f"{spread(first)}; bare {spread(bare)}",
        ),
        Figure(
            benchmark=NAME,
            name="second pod, of bare calls",
            value=ratio_of_medians(second, bare),
            unit="x",
            how=spread(second),
        ),
    ]


async def _bare_start(node: RealNode) -> float:
    (pod,) = await node.bare_pods(1)
    began_at = time.time_ns()
    started = await pod.start(node.client)
    seconds = (await node.container_started_at(started.container_id) - began_at) / 1e9
    await node.remove([started])
    return seconds
