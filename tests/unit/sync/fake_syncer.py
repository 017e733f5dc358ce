"""The steps of a pod that do as a test says, for tests of those who call them."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext

import trio

from state_machines.pod import StopEvidence
from state_machines.pod_ending import Ending
from trio_kubelet.k8s import Pod
from trio_kubelet.sync.pod_task import SyncResult


async def nothing_to_do(_pod: Pod) -> SyncResult:
    return SyncResult()


async def stopped(_ending: Ending) -> StopEvidence:
    now = trio.current_time()
    return StopEvidence(listed_at=now, last_call_ended_at=now)


class FakeSyncer:
    """Each step is a function that a test may replace; `asked` has all calls in their order.

    Beside the step stands when it was asked for, and for a stop the grace period.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, float | None]] = []
        self.on_sync: Callable[[Pod], Awaitable[SyncResult]] = nothing_to_do
        self.on_terminate: Callable[[Ending], Awaitable[StopEvidence]] = stopped
        self.on_release: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        self.on_notice: Callable[[], None] = lambda: None
        self.on_report: Callable[[], None] = lambda: None
        self.on_let_go: Callable[[], None] = lambda: None
        self.on_clean: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        self.on_leave_remains: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint

    @property
    def steps(self) -> list[str]:
        return [step for step, _ in self.asked]

    def running(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def notice(self, pod: Pod) -> None:
        del pod
        self.on_notice()

    async def sync(self, pod: Pod) -> SyncResult:
        self.asked.append(("sync", trio.current_time()))
        return await self.on_sync(pod)

    async def terminate(self, pod: Pod, ending: Ending) -> StopEvidence:
        del pod
        self.asked.append(("terminate", ending.grace_seconds))
        return await self.on_terminate(ending)

    async def release(self, pod: Pod) -> None:
        del pod
        self.asked.append(("release", None))
        await self.on_release()

    def report(self, pod: Pod) -> None:
        del pod
        self.asked.append(("report", trio.current_time()))
        self.on_report()

    def let_go(self) -> None:
        self.asked.append(("let go", None))
        self.on_let_go()

    async def leave_remains(self, pod: Pod) -> None:
        del pod
        self.asked.append(("leave remains", trio.current_time()))
        await self.on_leave_remains()

    async def clean(self, pod: Pod) -> None:
        del pod
        self.asked.append(("clean", trio.current_time()))
        await self.on_clean()
