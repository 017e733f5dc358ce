"""A relist of 1,000 containers in which nothing has changed.

The hollow runtime answers as Go does: entries and maps in random order. It keeps what it has
encoded, which the first relists are for. Once it is in this process: what is measured then is
the relist itself. And once it is a process of its own behind a socket: then it takes its own
time in Python, and gRPC takes some on both sides.
"""

import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL

import trio
from attrs import frozen

from benchmarks.figures import Figure, spread
from lab.processes import wait_until
from trio_kubelet.hollow import HollowOptions, open_hollow_runtime
from trio_kubelet.pleg import Pleg, PodChange
from trio_kubelet.rpc import Channel, InProcess, open_rpc_loop
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.cache import RuntimeCache
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.config.names import CONTAINER_NAME_LABEL, POD_UID_LABEL
from trio_kubelet.runtime.inspection import PodInspector
from trio_kubelet.tasks.clock import SystemClock
from trio_kubelet.telemetry import Journal

NAME = "relist"
CONTAINERS = 1000
IMAGE = "localhost/hollow:1"
WARM_UP = 8
RELISTS = 60
PAUSE_SECONDS = 0.05
GOAL_MILLISECONDS = 10.0
START_SECONDS = 30.0


async def measure(folder: Path, rounds: int) -> list[Figure]:
    """Sixty relists after some to warm up, in process and over a socket."""
    relists = rounds or RELISTS
    options = HollowOptions(images=(IMAGE,))
    async with open_hollow_runtime(SystemClock(), options) as runtime:
        here = await _relist(RuntimeClient(InProcess(runtime)), relists)
    async with open_rpc_loop(), _hollow_runtime(folder / "hollow.sock") as socket:
        there = await _relist(RuntimeClient(Channel(str(socket))), relists)
    return [
        Figure(
            benchmark=NAME,
            name=f"{CONTAINERS} containers, nothing changed",
            value=statistics.median(here.wall) * 1000,
            unit="ms",
            goal=GOAL_MILLISECONDS,
            how=spread(here.wall),
        ),
        Figure(
            benchmark=NAME,
            name="the same over a socket",
            value=statistics.median(there.wall) * 1000,
            unit="ms",
            how=f"{spread(there.wall)}; of that our CPU time {spread(there.own)}",
        ),
    ]


@frozen
class _Times:
    """Seconds by the clock, and of CPU time of this process."""

    wall: list[float]
    own: list[float]


async def _relist(client: RuntimeClient, relists: int) -> _Times:
    await _fill(client)
    pleg, changes = _generator(client)
    for _ in range(WARM_UP):
        await pleg.relist()
    changes_before = changes.statistics().current_buffer_used
    times = _Times([], [])
    for _ in range(relists):
        await trio.sleep(PAUSE_SECONDS)
        began_at, used = time.perf_counter(), time.process_time()
        await pleg.relist()
        times.wall.append(time.perf_counter() - began_at)
        times.own.append(time.process_time() - used)
    assert changes.statistics().current_buffer_used == changes_before, "nothing had changed"
    return times


def _generator(client: RuntimeClient) -> tuple[Pleg, trio.MemorySendChannel[PodChange]]:
    clock = SystemClock()
    changes, _told = trio.open_memory_channel[PodChange](2 * CONTAINERS)
    pleg = Pleg(
        inspector=PodInspector(client=client),
        cache=RuntimeCache(),
        changes=changes,
        journal=Journal(clock),
        clock=clock,
        events_enabled=False,
    )
    return pleg, changes


@asynccontextmanager
async def _hollow_runtime(socket: Path) -> AsyncIterator[Path]:
    command = [sys.executable, "-m", "trio_kubelet.hollow", "--socket", str(socket)]
    process = await trio.lowlevel.open_process([*command, "--image", IMAGE], stdout=DEVNULL)
    try:
        await trio.to_thread.run_sync(_wait_for, socket)
        yield socket
    finally:
        process.terminate()
        with trio.CancelScope(shield=True):
            await process.wait()


def _wait_for(socket: Path) -> None:
    wait_until(
        socket.exists,
        deadline_seconds=START_SECONDS,
        else_say=lambda: "the hollow runtime does not start",
    )


async def _fill(client: RuntimeClient) -> None:
    """Make pods of one container each, with as many labels and annotations as pods have."""
    limiter = trio.CapacityLimiter(16)

    async def start(number: int) -> None:
        uid = f"00000000-0000-4000-8000-{number:012}"
        labels = {POD_UID_LABEL: uid, "io.kubernetes.pod.name": f"pod-{number}", "app": "hollow"}
        sandbox = cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(name=f"pod-{number}", uid=uid, namespace="default"),
            labels={**labels, "io.kubernetes.pod.namespace": "default"},
            annotations={"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": uid},
        )
        container = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name="main"),
            image=cri.ImageSpec(image=IMAGE),
            labels={**sandbox.labels, CONTAINER_NAME_LABEL: "main"},
            annotations={f"io.kubernetes.container.{each}": each for each in "abcdef"},
        )
        async with limiter:
            sandbox_id = await client.run_pod_sandbox(sandbox)
            await client.start_container(
                await client.create_container(sandbox_id, container, sandbox)
            )

    async with trio.open_nursery() as nursery:
        for number in range(CONTAINERS):
            nursery.start_soon(start, number)
