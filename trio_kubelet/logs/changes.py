"""Tells those who follow a log when there may be more of it, or when it has ended.

One queue of the kernel is enough for all followers: there are few of them in a system. A folder
that is followed by many is watched once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from trio_kubelet.inotify import Inotify, InotifyMask
from trio_kubelet.runtime.observed import ObservedPod

_WRITTEN = InotifyMask.MODIFY | InotifyMask.CREATE | InotifyMask.MOVED_TO | InotifyMask.DELETE_SELF


class Follower:
    """Somebody who waits for more of a log."""

    def __init__(self, pod_uid: str) -> None:
        self.pod_uid = pod_uid
        self._woken = trio.Event()

    def wake(self) -> None:
        """There may be more, or it may have ended."""
        self._woken.set()

    async def wait(self) -> None:
        """Wait until somebody has called `wake` since the last `wait`."""
        await self._woken.wait()
        self._woken = trio.Event()


class LogChanges:
    """Who follows which folder, by a queue that the first of them opens; `run` has to run."""

    def __init__(self) -> None:
        self._inotify: Inotify | None = None
        self._opened = trio.Event()
        self._followers: dict[int, set[Follower]] = {}

    async def run(self) -> None:
        """Tell followers of changes, until cancelled; closes the queue then. Raises OSError."""
        await self._opened.wait()
        assert self._inotify is not None
        with self._inotify as inotify:
            while True:
                for event in await inotify.events():
                    if event.mask & InotifyMask.Q_OVERFLOW:
                        self._wake_all()
                    for follower in self._followers.get(event.watch, ()):
                        follower.wake()

    @contextmanager
    def following(self, folder: int, pod_uid: str) -> Iterator[Follower]:
        """Follow the logs of a container, in an open folder.

        Raises OSError, also where the kernel has no queue left: the next one tries again.
        """
        follower = Follower(pod_uid)
        inotify = self._inotify = self._inotify or Inotify()
        self._opened.set()
        number = inotify.watch(Path(f"/proc/self/fd/{folder}"), _WRITTEN)
        self._followers.setdefault(number, set()).add(follower)
        try:
            yield follower
        finally:
            self._followers[number].discard(follower)
            if not self._followers[number]:
                del self._followers[number]
                inotify.unwatch(number)

    def pod_changed(self, _before: ObservedPod, after: ObservedPod) -> None:
        """A pod was looked at: a container of it may have ended."""
        for followers in self._followers.values():
            for follower in followers:
                if follower.pod_uid == after.uid:
                    follower.wake()

    def _wake_all(self) -> None:
        for followers in self._followers.values():
            for follower in followers:
                follower.wake()
