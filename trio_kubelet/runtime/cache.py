"""The last observation of each pod in the runtime, and its time.

The relist and the pods' own tasks write, everybody reads. Two times say how fresh an answer is:
that of the pod's own observation, and a global one, the start of the last complete listing.
A pod that a listing does not show is as well known as one that it shows: it has nothing in the
runtime. Times are trio's clock, taken before the runtime was asked.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import trio
from attrs import evolve

from trio_kubelet.runtime.observed import ObservedPod, ObservedState
from trio_kubelet.tasks.callbacks import Callbacks

States = frozenset[tuple[str, str]]
"""The ids and states of all sandboxes and containers of a pod."""


class RuntimeCache:
    """One owner (the agent), plain methods, and one that waits.

    `on_observation` is called with what was known of a pod before, and what is stored now; of a
    pod that is forgotten nothing is left.
    """

    def __init__(self) -> None:
        self._pods: dict[str, ObservedPod] = {}
        self._states: dict[str, States] = {}
        self._empty: set[str] = set()
        self._listed_at = -math.inf
        self.unseen: frozenset[str] = frozenset()
        self._newer: dict[str, trio.Event] = {}
        self._listed = trio.Event()
        self._suspended: dict[str, trio.Event] = {}
        self.on_observation: Callbacks[[ObservedPod, ObservedPod]] = Callbacks()

    @property
    def listed_at(self) -> float:
        """The time at which the last complete listing began; minus infinity before the first."""
        return self._listed_at

    def get(self, uid: str) -> ObservedPod:
        """The newest observation of a pod; an empty one if nothing was ever seen of it."""
        known = self._pods.get(uid)
        if known is not None:
            return known
        return ObservedPod(uid=uid, name="", namespace="", observed_at=self._covered_at(uid))

    def may_run(self, uid: str) -> bool:
        """True if something of a pod runs; what could not be looked at yet may run."""
        return uid in self.unseen or self.get(uid).is_running

    def pods(self) -> tuple[ObservedPod, ...]:
        """All pods that have something in the runtime."""
        return tuple(p for p in self._pods.values() if not p.is_empty)

    def put(self, observed: ObservedPod) -> ObservedPod:
        """Store an observation unless a newer one is there; returns what is stored.

        The pod's IPs outlive its sandbox, so that its last status still has them. Inspections
        may overlap: a container once seen exited stays exited.
        """
        known = self._pods.get(observed.uid)
        if known is not None and known.observed_at > observed.observed_at:
            return known
        if known is not None and observed.observed_at <= known.answered_at:
            observed = _with_known_ends(observed, known)
        if known is not None and not observed.ips:
            observed = evolve(observed, ips=known.ips)
        before = self.get(observed.uid)
        self._pods[observed.uid] = observed
        self._remember_states(observed)
        self.on_observation.call(before, observed)
        event = self._newer.pop(observed.uid, None)
        if event is not None:
            event.set()
        return observed

    def listing_completed(self, began_at: float, unseen: Iterable[str] = ()) -> None:
        """Everything that a listing showed has been put; it began at `began_at`.

        `unseen` are the pods that it showed and that could not be looked at: for them it counts
        as if it had not been made.
        """
        self._listed_at = max(self._listed_at, began_at)
        self.unseen = frozenset(unseen)
        for uid in sorted(self._empty - self.unseen):
            # An event of a pod's removal may be followed when its task has forgotten it already.
            pod = self._pods[uid]
            if not pod.ips and pod.observed_at < began_at:
                self.forget(uid)
        self._listed.set()
        self._listed = trio.Event()

    def forget(self, uid: str) -> None:
        """Drop a pod of which nothing is left; observers are told of one that had something."""
        known = self._pods.pop(uid, None)
        self._states.pop(uid, None)
        self._empty.discard(uid)
        event = self._newer.pop(uid, None)
        if event is not None:
            event.set()
        if known is not None and not known.is_empty:
            self.on_observation.call(known, evolve(known, sandboxes=(), containers=()))

    @contextmanager
    def suspend_inspection(self, uid: str) -> Iterator[None]:
        """Held while the pod's own task acts on it; the task inspects the pod when it is done.

        Others would find it half changed, so they do not inspect it meanwhile.
        """
        self._suspended[uid] = trio.Event()
        try:
            yield
        finally:
            self._suspended.pop(uid).set()

    @contextmanager
    def resume_inspection(self, uid: str) -> Iterator[None]:
        """Held while the task that suspended inspection waits and acts on nothing.

        Others may inspect the pod meanwhile.
        """
        self._suspended.pop(uid).set()
        try:
            yield
        finally:
            self._suspended[uid] = trio.Event()

    def is_inspection_suspended(self, uid: str) -> bool:
        """True if the pod's own task acts on it right now."""
        return uid in self._suspended

    async def wait_inspection_resumed(self, uid: str) -> None:
        """Return when nobody acts on the pod, at once if so."""
        while uid in self._suspended:
            await self._suspended[uid].wait()

    async def get_newer_than(self, uid: str, instant: float) -> ObservedPod:
        """The pod as it was after `instant`; waits until such an observation is there.

        Before the first complete listing nothing is new enough, whatever `instant` is.
        """
        while True:
            known = self.get(uid)
            if self.is_newer_than(uid, instant):
                return known
            listed, newer = self._listed, self._newer.setdefault(uid, trio.Event())
            await _either(listed, newer)

    def _covered_at(self, uid: str) -> float:
        """The begin of the last listing that would have shown the pod as it was."""
        return -math.inf if uid in self.unseen else self._listed_at

    def is_newer_than(self, uid: str, instant: float) -> bool:
        """True if `get_newer_than` would answer at once."""
        seen_at = max(self.get(uid).observed_at, self._covered_at(uid))
        return seen_at >= instant and self._listed_at > -math.inf

    def unlike(self, listed: Mapping[str, States], listed_at: float) -> frozenset[str]:
        """The pods that need an inspection, since they are not known as a listing shows them.

        `listed` has the states of all pods that the listing shows. Pods that were looked at
        since it began are better known than by it, and those that their own tasks act on are
        left to these.
        """
        if listed == self._states:
            # The same sets from now on: the next listing like this one is known by identity.
            self._states = dict(listed)
            return frozenset()
        return frozenset(
            uid
            for uid in listed.keys() | self._states.keys()
            if listed.get(uid) != self._states.get(uid)
            and uid not in self._suspended
            and not self._was_seen_since(uid, listed_at)
        )

    def _was_seen_since(self, uid: str, instant: float) -> bool:
        known = self._pods.get(uid)
        return known is not None and known.observed_at >= instant

    def _remember_states(self, observed: ObservedPod) -> None:
        """Keep them where they are compared with a listing, which has none of an empty pod."""
        if states := observed_states(observed):
            self._states[observed.uid] = states
            self._empty.discard(observed.uid)
        else:
            self._states.pop(observed.uid, None)
            self._empty.add(observed.uid)


def _with_known_ends(observed: ObservedPod, known: ObservedPod) -> ObservedPod:
    """The observation, but what was seen at its end before stays there: nothing runs again."""
    ended = {c.id: c for c in known.containers if c.state is ObservedState.EXITED}
    stopped = {s.id: s for s in known.sandboxes if not s.ready}
    return evolve(
        observed,
        containers=tuple(ended.get(c.id, c) for c in observed.containers),
        sandboxes=tuple(stopped.get(s.id, s) for s in observed.sandboxes),
    )


def observed_states(observed: ObservedPod) -> States:
    """The ids and states of all that a pod has in the runtime."""
    return frozenset(
        [(s.id, "ready" if s.ready else "notready") for s in observed.sandboxes]
        + [(c.id, str(c.state)) for c in observed.containers]
    )


async def _either(first: trio.Event, second: trio.Event) -> None:
    async def wait(event: trio.Event) -> None:
        await event.wait()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, first)
        nursery.start_soon(wait, second)
