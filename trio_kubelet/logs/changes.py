"""Tells those who follow a log when there may be more of it, or when it has ended.

One queue of the kernel is enough for all followers: there are few of them in a system. A folder
that is followed by many is watched once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from trio_kubelet.kernel.inotify import Inotify, InotifyEvent, InotifyMask
from trio_kubelet.runtime.observed import ObservedPod

_APPEARED = InotifyMask.CREATE | InotifyMask.MOVED_TO
_WATCHED = _APPEARED | InotifyMask.MODIFY | InotifyMask.CLOSE_WRITE | InotifyMask.DELETE_SELF
_OF_PACKING = (".gz", ".tmp")


class Follower:
    """Somebody who waits for more of a log.

    `closed` becomes true when who has written to the log closes it, which a runtime does once it
    writes to the next one; by then it may have been renamed.
    """

    def __init__(self, pod_uid: str, name: str) -> None:
        self.pod_uid = pod_uid
        self.closed = False
        self._name = name
        self._woken = trio.Event()

    def notice(self, event: InotifyEvent) -> None:
        """Something has happened in the folder of the log."""
        if event.mask & InotifyMask.CLOSE_WRITE and event.name.startswith(self._name):
            self.closed |= not event.name.endswith(_OF_PACKING)
        self.wake()

    def wake(self) -> None:
        """There may be more, or it may have ended."""
        self._woken.set()

    async def wait(self) -> None:
        """Wait until somebody has called `wake` since the last `wait`."""
        await self._woken.wait()
        self._woken = trio.Event()


class LogChanges:
    """The followers of folders, by a queue that the first of them opens; `run` has to run."""

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
                        follower.notice(event)

    @contextmanager
    def following(self, folder: int, name: str, pod_uid: str) -> Iterator[Follower]:
        """Follow the log of a container, in an open folder.

        Raises OSError, also where the kernel has no queue left: the next one tries again.
        """
        follower = Follower(pod_uid, name)
        inotify = self._inotify = self._inotify or Inotify()
        self._opened.set()
        number = inotify.watch(Path(f"/proc/self/fd/{folder}"), _WATCHED)
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
