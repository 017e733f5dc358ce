"""Many logs that are full at once: bounded work, and a share for each namespace."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from attrs import define, field
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.trio_clock import TrioClock
from trio_kubelet.logs.rotation import RotationPolicy
from trio_kubelet.logs.rotator import (
    PACKED_OF_POD,
    ROTATED_AT_ONCE,
    ROTATED_OF_NAMESPACE,
    LogRotator,
)
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.health import RuntimeHealth, RuntimeState
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState

FULL_BYTES = 3 << 20
PLENTY = 40


@define
class Runtime(RuntimeClient):
    """Makes the log of a container anew, of which none are answered until `answers` is set."""

    root: Path
    answers: trio.Event = field(factory=trio.Event)
    asked: list[str] = field(factory=list)

    async def reopen_container_log(self, container_id: str) -> None:
        self.asked.append(container_id)
        await self.answers.wait()
        (self.root / container_id / "0.log").touch()

    def pod(self, namespace: str, containers: int) -> ObservedPod:
        """A pod whose containers have a full log each, and two that were rotated before."""
        made = []
        for number in range(containers):
            folder = self.root / f"{namespace}_pod_u" / f"c{number}"
            folder.mkdir(parents=True)
            for name in ("0.log", "0.log.20260101-000001", "0.log.20260101-000002"):
                with (folder / name).open("wb") as file:
                    file.truncate(FULL_BYTES)
            made.append(
                ObservedContainer(
                    id=str(folder.relative_to(self.root)),
                    name=f"c{number}",
                    sandbox_id="s",
                    state=ObservedState.RUNNING,
                    log_path=str(folder / "0.log"),
                    started_at=TrioClock().now_ns(),
                )
            )
        return ObservedPod(
            uid=f"uid-{namespace}",
            name="pod",
            namespace=namespace,
            observed_at=0.0,
            containers=tuple(made),
        )


@asynccontextmanager
async def rotating(runtime: Runtime, *pods: ObservedPod) -> AsyncIterator[None]:
    health = RuntimeHealth()
    health.update(RuntimeState(up=True, network_ready=True))
    policy = RotationPolicy(max_bytes=FULL_BYTES, max_files=5, interval_seconds=10)
    rotator = LogRotator(runtime, health, str(runtime.root), policy, TrioClock(), 4)
    for pod in pods:
        nothing = ObservedPod(uid=pod.uid, name="pod", namespace=pod.namespace, observed_at=0.0)
        rotator.pod_changed(nothing, pod)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rotator.run)
        yield
        nursery.cancel_scope.cancel()


async def until_nothing_moves() -> None:
    for _ in range(30):
        await trio.sleep(0.1)
        await wait_all_tasks_blocked(0.01)


async def test_full_logs_of_one_namespace_hold_up_no_rotation_of_another(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    runtime = Runtime(root=tmp_path)
    noisy, good = runtime.pod("noisy", PLENTY), runtime.pod("good", 1)
    async with rotating(runtime, noisy, good):
        await until_nothing_moves()
        assert "good_pod_u/c0" in runtime.asked
        assert len(runtime.asked) == ROTATED_OF_NAMESPACE + 1 <= ROTATED_AT_ONCE
        runtime.answers.set()
        await until_nothing_moves()
        assert len(runtime.asked) == PLENTY + 1


async def test_a_pod_has_few_logs_that_are_being_packed_at_a_time(tmp_path: Path) -> None:
    """Each that is half packed has memory and open files."""
    runtime, seen, over = Runtime(root=tmp_path), [0], threading.Event()
    runtime.answers.set()

    def files(suffix: str) -> int:
        return sum(1 for _ in tmp_path.glob(f"*/*/*{suffix}"))

    def count() -> None:
        while not over.is_set():
            seen.append(files(".tmp"))

    async with rotating(runtime, runtime.pod("noisy", PLENTY)), trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, count)
        try:
            with trio.fail_after(60):
                while files(".gz") < PLENTY:  # noqa: ASYNC110
                    await trio.sleep(0.1)
        finally:
            over.set()
    # Folders are looked at one after another, and a log that is done may be counted with the next.
    assert 0 < max(seen) <= 2 * PACKED_OF_POD
