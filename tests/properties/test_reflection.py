"""Whatever lists and watches do, a consumer is told each object's versions in order and once.

A small API server has a history of a few names that are created, changed, deleted and created
again. The reflection reads it with lists, streaming lists that break at any point, watches that
break, repeat themselves, or begin after a gap.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trio_kubelet.k8s import ConfigMap, ObjectMeta
from trio_kubelet.k8s.client import Frame, FrameType, ObjectChanged, ObjectRemoved, WatchEvent
from trio_kubelet.k8s.client.api import ReceivedFrame
from trio_kubelet.k8s.client.deltas import Deltas
from trio_kubelet.k8s.client.objects import head_of
from trio_kubelet.k8s.client.read_ahead import WaitingFrames

NAMES = {"a": "one", "b": "one", "c": "other"}
"""The names of objects, and the namespaces that they are in."""


class Reflection(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.version = 1
        self.objects: dict[str, ConfigMap] = {}
        self.history: list[Frame[ConfigMap]] = []
        self.deltas: Deltas[ConfigMap] = Deltas()
        self.position: int | None = None
        """How much of the history the open watch has sent; None while there is none."""
        self.told: dict[str, ConfigMap] = {}
        self.frames: dict[str, Frame[ConfigMap]] = {}
        """Those that were read ahead, by version."""

        self.finished: set[str] = set()
        """UIDs whose removal was told."""

    def write(self, type_: FrameType, name: str, uid: str) -> None:
        self.version += 1
        version = str(self.version)
        obj = ConfigMap(
            metadata=ObjectMeta(name=name, namespace=NAMES[name], uid=uid, resource_version=version)
        )
        self.history.append(Frame(type_, version, obj))
        if type_ is FrameType.DELETED:
            del self.objects[name]
        else:
            self.objects[name] = obj

    def tell(self, events: tuple[WatchEvent[ConfigMap], ...]) -> None:
        """The consumer: checks that what it is told makes sense after what it was told before."""
        for event in events:
            if isinstance(event, ObjectChanged):
                metadata = event.object.metadata
                before = self.told.get(metadata.name)
                assert metadata.uid not in self.finished
                if before is not None:
                    assert before.metadata.uid == metadata.uid
                    assert number(before) < number(event.object)
                self.told[metadata.name] = event.object
            elif isinstance(event, ObjectRemoved):
                metadata = event.object.metadata
                before = self.told.pop(metadata.name)
                assert before.metadata.uid == metadata.uid
                assert number(before) <= number(event.object)
                self.finished.add(metadata.uid)

    def agrees(self) -> None:
        assert self.told == self.objects

    @rule(name=st.sampled_from([*NAMES]), times=st.integers(1, 3))
    def somebody_writes(self, name: str, times: int) -> None:
        for _ in range(times):
            there = self.objects.get(name)
            type_ = FrameType.ADDED if there is None else FrameType.MODIFIED
            uid = f"uid-{self.version}" if there is None else there.metadata.uid
            self.write(type_, name, uid)

    @rule(name=st.sampled_from([*NAMES]), again=st.booleans())
    def somebody_deletes(self, name: str, again: bool) -> None:
        if name not in self.objects:
            return
        self.write(FrameType.DELETED, name, self.objects[name].metadata.uid)
        if again:
            self.somebody_writes(name, 1)

    @rule()
    def a_list_is_read(self) -> None:
        self.deltas.begin_list()
        for obj in tuple(self.objects.values()):
            self.tell(self.deltas.listed(obj))
        self.tell(self.deltas.end_list(str(self.version)))
        self.position = len(self.history)
        self.agrees()

    @rule(pages=st.integers(0, 2))
    def a_list_breaks_under_way(self, pages: int) -> None:
        self.deltas.begin_list()
        self.position = None
        for obj in tuple(self.objects.values())[:pages]:
            self.tell(self.deltas.listed(obj))

    @rule(
        before=st.integers(0, 6),
        writes=st.lists(st.tuples(st.sampled_from([*NAMES]), st.booleans()), max_size=4),
    )
    def a_streaming_list_is_read_or_breaks(
        self, before: int, writes: list[tuple[str, bool]]
    ) -> None:
        """`before` frames come, while others write; then it breaks, unless it was complete."""
        self.deltas.begin_list()
        self.position = None
        start = len(self.history)
        frames = [Frame(FrameType.ADDED, version(obj), obj) for obj in self.objects.values()]
        for name, deletes in writes:
            if deletes:
                self.somebody_deletes(name, again=False)
            else:
                self.somebody_writes(name, 1)
        frames += self.history[start:]
        if before < len(frames):
            for frame in frames[:before]:
                self.tell(self.deltas.take(frame))
            return
        bookmark: Frame[ConfigMap] = Frame(
            FrameType.BOOKMARK, str(self.version), initial_events_end=True
        )
        for frame in (*frames, bookmark):
            self.tell(self.deltas.take(frame))
        self.position = len(self.history)
        self.agrees()

    @precondition(lambda self: self.position is not None)
    @rule(count=st.integers(1, 5), back=st.integers(0, 3), bookmark=st.booleans())
    def the_watch_sends(self, count: int, back: int, bookmark: bool) -> None:
        """Some frames come, perhaps preceded by a repetition of earlier ones.

        They are read before they are handed out, so that later versions supersede them.
        """
        assert self.position is not None
        waiting: WaitingFrames[ConfigMap] = WaitingFrames()
        for frame in self.history[max(0, self.position - back) : self.position + count]:
            if self.deltas.arrives(frame.resource_version):
                waiting.put(self.received(frame))
        self.hand_out(waiting)
        self.position = min(len(self.history), self.position + count)
        if bookmark and self.position == len(self.history):
            self.deltas.arrives(str(self.version))

    def hand_out(self, waiting: WaitingFrames[ConfigMap]) -> None:
        while (frame := waiting.take(0.0)) is not None:
            self.tell(self.deltas.take(self.frames[frame.head.resource_version]))

    def received(self, frame: Frame[ConfigMap]) -> ReceivedFrame[ConfigMap]:
        async def read() -> Frame[ConfigMap]:
            return frame

        self.frames[frame.resource_version] = frame
        return ReceivedFrame(head_of(frame), 1, read)

    @precondition(lambda self: self.position is not None)
    @rule()
    def the_watch_breaks_and_goes_on(self) -> None:
        asked = int(self.deltas.resource_version)
        self.position = sum(1 for frame in self.history if int(frame.resource_version) <= asked)

    @precondition(lambda self: self.position is not None)
    @rule()
    def the_watch_catches_up(self) -> None:
        self.the_watch_sends(len(self.history), 0, bookmark=True)
        self.agrees()

    @invariant()
    def a_watch_knows_where_to_go_on_unless_a_list_is_due(self) -> None:
        assert self.deltas.is_listing is (self.position is None)
        assert bool(self.deltas.resource_version) is not self.deltas.is_listing

    def teardown(self) -> None:
        self.a_list_is_read()


def number(obj: ConfigMap) -> int:
    return int(obj.metadata.resource_version)


def version(obj: ConfigMap) -> str:
    return obj.metadata.resource_version


TestReflection = Reflection.TestCase
TestReflection.settings = settings(max_examples=150, stateful_step_count=30)
