"""Volumes that failed: when each may be tried again, and whether an event has told of it.

Between two tries of a volume are the Go kubelet's times. Meanwhile its error stands: pods that ask
get it again, without an event, and with the time at which it is worth asking once more.
"""

from collections.abc import Iterable

import trio
from attrs import define, field

from state_machines.backoff import BackoffPolicy
from trio_kubelet.tasks.retries import Retries
from trio_kubelet.volumes.plugin import VolumeBackOff, VolumeError
from trio_kubelet.volumes.resolved import UnresolvedVolumeError

RETRY = BackoffPolicy(initial_seconds=0.5, cap_seconds=122.0)
"""As the Go kubelet waits between two operations on a volume."""

Key = tuple[str, str]
"""A pod's UID and the name of a volume of it."""


@define(eq=False)
class _Failure:
    error: VolumeError | UnresolvedVolumeError
    retries: Retries
    retry_at: float


@define(eq=False)
class BackOffs:
    """The volumes of pods that failed at their last try."""

    _failures: dict[Key, _Failure] = field(init=False, factory=dict)

    def check(self, key: Key) -> None:
        """Raise VolumeBackOff if a volume is not to be tried yet."""
        failure = self._failures.get(key)
        if failure is not None and trio.current_time() < failure.retry_at:
            raise VolumeBackOff(failure.error, failure.retry_at, is_new=False)

    def failed(self, key: Key, error: VolumeError | UnresolvedVolumeError) -> VolumeBackOff:
        """Count a failure; returns what to raise."""
        known = self._failures.get(key)
        retries = Retries(RETRY) if known is None else known.retries
        retry_at = trio.current_time() + retries.next_seconds()
        self._failures[key] = _Failure(error, retries, retry_at)
        return VolumeBackOff(error, retry_at, is_new=True)

    def succeeded(self, key: Key) -> None:
        """Count no failures of a volume any more; one without any is fine."""
        self._failures.pop(key, None)

    def forget(self, pod_uid: str) -> None:
        """A pod has no volumes any more."""
        for key in [key for key in self._failures if key[0] == pod_uid]:
            del self._failures[key]

    def hurry(self) -> Iterable[str]:
        """Let all volumes be tried at once; returns the UIDs of their pods."""
        for failure in self._failures.values():
            failure.retry_at = trio.current_time()
        return frozenset(uid for uid, _ in self._failures)
