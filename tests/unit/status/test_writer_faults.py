"""Whatever the API server does to requests: it ends with the newest status, of the right pod.

Each status names the pod that it was made for and its number; the fake server keeps what every
incarnation of a pod was ever told.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import TypeAlias

import trio
from attrs import define, evolve, field
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.unit.status.api import UNREACHABLE, Fault, a_named_pod
from tests.unit.status.writers import Node
from trio_kubelet.k8s import Pod, PodStatus
from trio_kubelet.k8s.client import ApiError
from trio_kubelet.status.writer import RETRY_INVALID

NAMES = ("p", "q", "r")
CALM_SECONDS = 1.2 * RETRY_INVALID.cap_seconds

Act: TypeAlias = Callable[["World"], None]


@define
class World:
    """Reports, replacements and deletions of a few pods, and what the API was told of each."""

    node: Node = field(factory=Node)
    made: int = 0
    reports: int = 0
    late: list[Callable[[], None]] = field(factory=list)
    told: dict[str, list[int]] = field(factory=lambda: defaultdict(list))
    shown: dict[str, Pod] = field(factory=dict)
    untold: list[str] = field(factory=list)
    by_force: bool = False

    def __attrs_post_init__(self) -> None:
        watched = self.node.api.on_change

        def on_change(name: str, pod: Pod | None) -> None:
            if pod is not None and pod.status.reason:
                uid, number = pod.status.reason.split()
                assert uid == pod.metadata.uid, "a status reached another pod"
                if self.told[uid][-1:] != [int(number)]:
                    self.told[uid].append(int(number))
            if pod is not None:
                self.shown[name] = pod
            elif not self.by_force:
                self.note_end(self.shown[name])
            self.late.append(lambda: watched(name, pod))

        self.node.api.on_change = on_change
        for name in NAMES:
            self.replace(name)
        self.catch_up()

    def note_end(self, pod: Pod) -> None:
        """The agent took the pod out of the API: was all told by then?"""
        newest = self.node.statuses.get(pod.metadata.uid)
        if newest is not None and newest.reason != pod.status.reason:
            self.untold.append(pod.metadata.uid)

    def report(self, name: str) -> None:
        """The node makes a new status of the pod that it knows under the name."""
        known = self.node.known.get(name)
        if known is None:
            return
        self.reports += 1
        uid = known.metadata.uid
        self.node.statuses[uid] = PodStatus(phase="Running", reason=f"{uid} {self.reports}")
        self.node.writer.status_changed(known, self.node.statuses[uid])

    def replace(self, name: str) -> None:
        """Somebody removes the pod by force, and makes another one of its name."""
        if name in self.node.api.pods:
            self.by_force = True
            self.node.api.remove(name)
            self.by_force = False
        self.made += 1
        self.node.api.put(a_named_pod(name, uid=f"uid-{self.made}"))

    def meddle(self, name: str) -> None:
        """Somebody else writes into the status."""
        pod = self.node.api.pods.get(name)
        if pod is not None:
            message = f"{len(self.node.api.log)}"
            self.node.api.put(evolve(pod, status=evolve(pod.status, message=message)))

    def delete(self, name: str) -> None:
        """Somebody deletes the pod; its task ends at once, with a last status."""
        pod = self.node.api.pods.get(name)
        if pod is not None:
            self.node.api.mark_deleted(name)
            self.report(name)
            self.node.over.add(pod.metadata.uid)
            self.node.writer.look_at(pod.metadata.uid)

    def catch_up(self) -> None:
        """The watch delivers what it has held back."""
        late, self.late = self.late, []
        for deliver in late:
            deliver()


names = st.sampled_from(NAMES)
acts: st.SearchStrategy[Act] = st.one_of(
    st.builds(lambda n: lambda world: world.report(n), names),
    st.builds(lambda n: lambda world: world.report(n), names),
    st.builds(lambda n: lambda world: world.replace(n), names),
    st.builds(lambda n: lambda world: world.meddle(n), names),
    st.builds(lambda n: lambda world: world.delete(n), names),
    st.just(World.catch_up),
)
faults: st.SearchStrategy[Fault] = st.sampled_from(
    [
        0.0,
        0.3,
        2.0,
        "lost",
        UNREACHABLE,
        ApiError(403, "Forbidden", "not yet"),
        ApiError(409, "Conflict", "modified"),
        ApiError(422, "Invalid", "never"),
        ApiError(429, "TooManyRequests", "later", retry_after_seconds=3),
        ApiError(500, "InternalError", "no"),
    ]
)
days = st.lists(st.tuples(acts, st.sampled_from([0.0, 0.1, 1.0, 10.0])), max_size=15)


@settings(max_examples=40)
@given(days, st.lists(faults, max_size=25))
def test_the_newest_status_arrives_and_none_goes_astray(
    day: list[tuple[Act, float]], fault_schedule: list[Fault]
) -> None:
    async def live() -> World:
        world = World()
        async with trio.open_nursery() as nursery:
            await nursery.start(world.node.writer.run)
            world.node.api.faults = list(fault_schedule)
            for act, seconds in day:
                act(world)
                await trio.sleep(seconds)
            world.node.api.faults = []
            for _ in range(3):
                world.catch_up()
                await trio.sleep(CALM_SECONDS)
            nursery.cancel_scope.cancel()
        return world

    world = trio.run(live, clock=MockClock(autojump_threshold=0))
    for name, pod in world.node.api.pods.items():
        newest = world.node.statuses.get(pod.metadata.uid, pod.status)
        assert (pod.status.reason, pod.status.message) == (newest.reason, newest.message), name
        assert pod.metadata.uid not in world.node.over, "a deleted pod stayed"
    if not any(isinstance(fault, ApiError) and fault.code == 422 for fault in fault_schedule):
        assert world.untold == [], "a pod went before its last status had come"
    for numbers in world.told.values():
        assert numbers == sorted(numbers), "an older status came after a newer one"
