"""Whatever happens to mirrors and to requests: in the end the API shows what is on the node."""

from collections.abc import Callable
from typing import TypeAlias

import trio
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.unit.sources.test_mirrors import Node, static_pod
from tests.unit.status.api import UNREACHABLE, Fault
from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.client import ApiError
from trio_kubelet.sources import PodOperation

NAMES = ("web", "dns")
CALM_SECONDS = 200.0

Act: TypeAlias = Callable[["World"], None]


@define
class World:
    """Static pods that come, change and go, and users who meddle with their mirrors."""

    node: Node = field(factory=Node)
    static: dict[str, Pod] = field(factory=dict)
    ending: list[str] = field(factory=list)
    made: int = 0
    late: list[Callable[[], None]] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        watched = self.node.api.on_change
        self.node.api.on_change = lambda name, pod: self.late.append(lambda: watched(name, pod))

    def change(self, name: str) -> None:
        """There is a manifest of that name, or another one than before."""
        self.remove(name)
        self.made += 1
        self.static[name] = static_pod(name, f"h{self.made}")
        self.node.add(self.static[name])

    def remove(self, name: str) -> None:
        """The manifest goes; its pod takes its time to end."""
        pod = self.static.pop(name, None)
        if pod is not None:
            self.node.say(PodOperation.REMOVE, pod)
            self.ending.append(pod.metadata.uid)

    def finish(self) -> None:
        """The pods that had to end have ended."""
        for uid in self.ending:
            self.node.finish(uid)
        self.ending.clear()

    def delete_mirror(self, name: str) -> None:
        """A user deletes a mirror, gracefully."""
        if name in self.node.api.pods:
            self.node.api.mark_deleted(name)

    def remove_mirror(self, name: str) -> None:
        """A user deletes a mirror by force."""
        if name in self.node.api.pods:
            self.node.api.remove(name)

    def catch_up(self) -> None:
        """The watch delivers what it has held back."""
        late, self.late = self.late, []
        for deliver in late:
            deliver()


names = st.sampled_from(NAMES)
acts: st.SearchStrategy[Act] = st.one_of(
    st.builds(lambda n: lambda world: world.change(n), names),
    st.builds(lambda n: lambda world: world.remove(n), names),
    st.builds(lambda n: lambda world: world.delete_mirror(n), names),
    st.builds(lambda n: lambda world: world.remove_mirror(n), names),
    st.just(World.finish),
    st.just(World.catch_up),
)
faults: st.SearchStrategy[Fault] = st.sampled_from(
    [
        0.0,
        0.5,
        5.0,
        "lost",
        UNREACHABLE,
        ApiError(403, "Forbidden", "not yet"),
        ApiError(429, "TooManyRequests", "later", retry_after_seconds=3),
        ApiError(500, "InternalError", "no"),
    ]
)
days = st.lists(st.tuples(acts, st.sampled_from([0.0, 0.1, 1.0, 10.0])), max_size=15)


@settings(max_examples=40)
@given(days, st.lists(faults, max_size=20))
def test_in_the_end_each_static_pod_has_its_mirror_and_nothing_else_has_one(
    day: list[tuple[Act, float]], fault_schedule: list[Fault]
) -> None:
    async def live() -> World:
        world = World()
        async with trio.open_nursery() as nursery:
            await nursery.start(world.node.mirrors.run)
            world.node.mirrors.synced()
            world.node.mirrors.node_changed("node-uid")
            world.node.say(PodOperation.ADD)
            world.node.api.faults = list(fault_schedule)
            for act, seconds in day:
                act(world)
                await trio.sleep(seconds)
            world.node.api.faults = []
            world.finish()
            for _ in range(4):
                world.catch_up()
                await trio.sleep(CALM_SECONDS)
            nursery.cancel_scope.cancel()
        return world

    world = trio.run(live, clock=MockClock(autojump_threshold=0))
    wanted = {name: pod.metadata.uid for name, pod in world.static.items()}
    mirrors = world.node.api.pods
    assert world.node.shown == wanted
    assert not any(mirror.metadata.deletion_timestamp for mirror in mirrors.values())
    attached = {uid: mirror for uid, mirror in world.node.attached.items() if mirror}
    assert attached == {uid: mirrors[name].metadata.uid for name, uid in wanted.items()}
