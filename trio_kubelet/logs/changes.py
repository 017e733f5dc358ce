"""Tells those who follow a log when there may be more of it, or when it has ended.

One queue of the kernel is enough for all followers: there are few of them in a system. A folder
that is followed by many is watched once.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from trio_kubelet.kernel.inotify import Inotify, InotifyEvent, InotifyMask
from trio_kubelet.logs.files import rotated_names
from trio_kubelet.runtime.observed import ObservedPod

_APPEARED = InotifyMask.CREATE | InotifyMask.MOVED_TO
_WATCHED = _APPEARED | InotifyMask.MODIFY | InotifyMask.CLOSE_WRITE | InotifyMask.DELETE_SELF
PAUSE_SECONDS = 0.1
"""Between two looks at a log that changes all the time: each takes two trips to a thread."""


class Follower:
    """Somebody who waits for more of a log.

    `closed` has the names of files that somebody who wrote to them has closed, which a runtime does
    with a file that was rotated once it writes to the next one.
    """

    def __init__(self, pod_uid: str, name: str) -> None:
        self.pod_uid = pod_uid
        self.closed: set[str] = set()
        self._name = name
        self._woken = trio.Event()
        self._waited_at = -math.inf

    def notice(self, event: InotifyEvent) -> None:
        """Something has happened in the folder of the log."""
        if event.mask & InotifyMask.CLOSE_WRITE and rotated_names((event.name,), self._name):
            self.closed.add(event.name)
        self.wake()

    def wake(self) -> None:
        """There may be more, or it may have ended."""
        self._woken.set()

    async def wait(self) -> None:
        """Wait until somebody has called `wake` since the last `wait`, and for a pause after that.

        Cancelled, it is still woken.
        """
        await self._woken.wait()
        await trio.sleep_until(self._waited_at + PAUSE_SECONDS)
        self._woken = trio.Event()
        self._waited_at = trio.current_time()


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
                # Two logs that are written in turns give the same events again and again.
                for event in dict.fromkeys(await inotify.events()):
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
