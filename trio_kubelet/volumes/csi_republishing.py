"""Volumes whose drivers want to be asked again while pods use them (`requiresRepublish`).

Each has a task that has the driver publish it once more, as often as the Go kubelet does, once in
`syncFrequency`, with the tokens and secrets of that time. That goes on beside the syncs of the pod:
a driver that hangs holds up neither the pod nor other volumes. The mount stays, however it goes; an
event tells of a try that failed.
"""

from collections.abc import Awaitable, Callable
from functools import partial

import structlog
import trio
from attrs import define, field

from trio_kubelet.k8s import Pod
from trio_kubelet.tasks.concurrency import BackgroundTasks
from trio_kubelet.telemetry import EventRecorder, EventType
from trio_kubelet.volumes.back_offs import Key
from trio_kubelet.volumes.plugin import VolumeError

log = structlog.get_logger("volumes")

Republish = Callable[[], Awaitable[None]]
"""Has a driver publish a volume once more. Raises VolumeError."""


@define(eq=False)
class _Followed:
    """A volume of a pod that is published again and again, until `scope` is cancelled."""

    pod: Pod
    republish: Republish
    scope: trio.CancelScope = field(factory=trio.CancelScope)


@define(eq=False)
class Republications:
    """The volumes that are published again every `period_seconds`."""

    _recorder: EventRecorder
    _period_seconds: float
    _followed: dict[Key, _Followed] = field(init=False, factory=dict)
    _tasks: BackgroundTasks = field(init=False, factory=BackgroundTasks)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Publish volumes again until cancelled."""
        await self._tasks.run(task_status=task_status)

    def follow(self, key: Key, pod: Pod, republish: Republish, *, at_once: bool) -> None:
        """Publish a volume again from now on, as `republish` does from the next time on.

        `at_once`: a volume that is new here is not to wait for the first time.
        """
        followed = self._followed.get(key)
        if followed is not None:
            followed.pod, followed.republish = pod, republish
            return
        followed = self._followed[key] = _Followed(pod, republish)
        self._tasks.start(partial(self._repeat, followed, at_once=at_once))

    def end(self, key: Key) -> None:
        """Do not publish a volume again; a call under way is given up. Others are fine."""
        followed = self._followed.pop(key, None)
        if followed is not None:
            followed.scope.cancel()

    def forget(self, pod_uid: str) -> None:
        """A pod has no volumes any more."""
        for key in [key for key in self._followed if key[0] == pod_uid]:
            self.end(key)

    async def _repeat(self, followed: _Followed, *, at_once: bool) -> None:
        with followed.scope:
            if not at_once:
                await trio.sleep(self._period_seconds)
            while True:
                try:
                    await followed.republish()
                except VolumeError as error:
                    self._recorder.pod(followed.pod, EventType.WARNING, error.reason, str(error))
                except Exception:
                    key = followed.pod.metadata.key
                    log.exception("volume republishing failed", pod=key)
                await trio.sleep(self._period_seconds)
