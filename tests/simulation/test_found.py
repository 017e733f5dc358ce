"""What the simulation has found, each as a small scene of its own."""

from pathlib import Path

import trio

from tests.simulation.scenes import Scene, play
from trio_kubelet.hollow import Fault, HollowOptions, ScriptedFaults
from trio_kubelet.rpc import Code, RpcError

LOST = RpcError(Code.UNAVAILABLE, "a fault")


def test_housekeeping_waits_for_the_parts_that_it_asks(tmp_path: Path) -> None:
    faults = ScriptedFaults([("Version", Fault(delay_seconds=30))])

    async def scene(scene: Scene) -> None:
        await trio.sleep(60)

    play(tmp_path, scene, HollowOptions(faults=faults))
