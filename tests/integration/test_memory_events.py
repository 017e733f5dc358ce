"""The kernel's words about memory, in a cgroup of this machine that fills up."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio

from trio_kubelet.config.eviction import Signal, ThresholdValue
from trio_kubelet.eviction.memory_events import MemoryEvents
from trio_kubelet.eviction.observations import Observations, Observed
from trio_kubelet.eviction.pressure import Assessment
from trio_kubelet.eviction.thresholds import Threshold
from trio_kubelet.kernel.mountinfo import mount_points
from trio_kubelet.resources import CgroupTree

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="making cgroups needs root"),
]

MI = 1 << 20
TREE = CgroupTree.find(mount_points())
NAME = "/trio-kubelet-memory-events"
EAT = """
import os, sys, time
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
held = [bytearray(MI) for _ in range(int(sys.argv[2])) for MI in (1 << 20,)]
print(len(held), flush=True)
time.sleep(60)
"""


@pytest.fixture
def cgroup() -> Iterator[Path]:
    folder = TREE.hierarchies["memory"] / NAME.lstrip("/")
    folder.mkdir(exist_ok=True)
    yield folder
    with suppress(OSError):
        folder.rmdir()


@pytest.mark.skipif(TREE.version != 1, reason="cgroup v2 has no thresholds")
async def test_a_crossed_threshold_is_told_at_once_on_v1(cgroup: Path) -> None:
    looked = trio.Event()
    threshold = Threshold(signal=Signal.ALLOCATABLE_MEMORY, value=ThresholdValue.parse("10Mi"))
    events = MemoryEvents(
        TREE, {Signal.ALLOCATABLE_MEMORY: ("/no-such", NAME)}, lambda: (threshold,), looked.set
    )
    amounts = Observed(available=40 * MI, capacity=50 * MI)
    observed = Observations(at=0, signals={Signal.ALLOCATABLE_MEMORY: amounts})
    for _ in range(3):  # what was set before goes
        events.observed(Assessment(observed=observed))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(events.run)
        command = [sys.executable, "-c", EAT, str(cgroup), "60"]
        nursery.start_soon(partial(trio.run_process, command, capture_stdout=True))
        with trio.fail_after(30):
            await looked.wait()
        nursery.cancel_scope.cancel()
