"""The day of a seed: a node, its world and what watches them, from begin to report."""

import random
import tempfile
from collections.abc import Mapping
from pathlib import Path

import trio
import trio.testing
from attrs import frozen

from tests.simulation.determinism import deterministic
from tests.simulation.disk import Disk
from tests.simulation.invariants import Invariants
from tests.simulation.mounts import MountTable
from tests.simulation.power import Power
from tests.simulation.record import Record
from tests.simulation.world import ROUNDS, Machine, World
from tests.turns import making_test_data
from trio_kubelet.rpc import open_rpc_loop


@frozen(kw_only=True)
class Report:
    """How a day went. `story` has a line for whatever happened, with trio's time.

    `steps` counts what agents did, by machine, event and target.
    """

    seed: int
    digest: str
    violations: tuple[str, ...]
    story: tuple[str, ...]
    steps: Mapping[tuple[str, str, str], int]
    seconds: float


def simulate(seed: int, *, rounds: int = ROUNDS) -> Report:
    """Live through the day of that seed."""
    with tempfile.TemporaryDirectory(prefix="day-") as folder, deterministic(seed):
        clock = trio.testing.MockClock(autojump_threshold=0)
        return trio.run(_live, seed, rounds, Path(folder), clock=clock)


async def _live(seed: int, rounds: int, root: Path) -> Report:
    record = Record(root)
    invariants = Invariants(record)
    began = trio.current_time()
    disk = Disk(root / "kubelet", root / "logs")
    power = Power(root / "kubelet", random.Random(seed + 4))
    mounts = MountTable()
    with disk.mounted(), power.watched(), mounts.mounted():
        async with open_rpc_loop(), trio.open_nursery() as nursery:
            with making_test_data():
                world = World(seed, Machine(root, disk, power, mounts), invariants, nursery)
            await world.live(rounds)
            nursery.cancel_scope.cancel()
    return Report(
        seed=seed,
        digest=record.digest,
        violations=tuple(invariants.violations),
        story=tuple(record.lines),
        steps=dict(record.steps),
        seconds=trio.current_time() - began,
    )
