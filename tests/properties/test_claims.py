"""No claim stays prepared without a pod, and none is unprepared under one, whatever comes.

Pods with claims of their own and shared ones come and go, drivers come, go, fail and lose answers,
calls are cut off, and the agent is killed and starts anew on what it has written down.
"""

import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from lab.dra_driver import LabDRADriver
from tests.unit.dra.nodes import ClaimNode, Objects, claim_node, claim_pod
from trio_kubelet.dra import ClaimsAwaitedError
from trio_kubelet.errors import PreparationError
from trio_kubelet.k8s import Pod

NAMES = ("one.example.com", "two.example.com")
CLAIMS = {"a": NAMES[:1], "b": NAMES[1:], "c": NAMES}
PREPARE, UNPREPARE = "NodePrepareResources", "NodeUnprepareResources"
FAULTS: tuple[dict[str, object], ...] = (
    {},
    {"fail": "no"},
    {"answer": "no"},
    {"skip": True},
    {"hang": True},
    {"hang_after": True},
)

Step = tuple[str, int]

steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 7)),
        st.tuples(st.sampled_from(("sync", "cut")), st.integers(0, 1)),
        st.tuples(st.just("end"), st.integers(0, 1)),
        st.tuples(st.just("fail_prepare"), st.integers(0, 11)),
        st.tuples(st.just("fail_unprepare"), st.integers(0, 11)),
        st.tuples(st.sampled_from(("flip", "restart")), st.integers(0, 1)),
    ),
    max_size=16,
)


@define
class Model:
    """A node and what is known of it beside it: its pods, and the drivers that are there."""

    node: ClaimNode
    drivers: dict[str, LabDRADriver]
    registered: dict[str, ExitStack] = field(factory=dict)
    pods: dict[str, Pod] = field(factory=dict)
    ready: set[str] = field(factory=set)
    ended: set[str] = field(factory=set)
    added: int = 0

    async def do(self, step: str, number: int) -> None:
        match step:
            case "add":
                self.add(number)
                await self.sync(len(self.pods) - 1)
            case "sync":
                await self.sync(number)
            case "cut":
                await self.sync(number, seconds=0.5)
            case "end":
                await self.end(number)
            case "flip":
                self.flip(number)
            case _:
                self.faults(number, PREPARE if step == "fail_prepare" else UNPREPARE)

    def flip(self, number: int) -> None:
        """A driver comes or goes."""
        name = NAMES[number]
        if name in self.registered:
            self.registered.pop(name).close()
        else:
            self.registered[name] = stack = ExitStack()
            stack.enter_context(self.node.registered(self.drivers[name]))

    def add(self, shape: int) -> None:
        self.added += 1
        uid = f"u{self.added}"
        claims = [name for bit, name in enumerate(CLAIMS) if shape >> bit & 1]
        self.pods[uid] = claim_pod(uid, *claims)
        for name in CLAIMS:
            users = [each for each in self.pods if each not in self.ended]
            self.node.objects.add(name, *users, drivers=CLAIMS[name])

    def faults(self, number: int, call: str) -> None:
        driver, fault = divmod(number, len(FAULTS))
        self.drivers[NAMES[driver]].set_faults(**{call: FAULTS[fault]})

    async def sync(self, number: int, *, seconds: float = 100) -> None:
        waiting = [uid for uid in self.pods if uid not in self.ended]
        if number >= len(waiting):
            return
        uid = waiting[number]
        with trio.move_on_after(seconds):
            try:
                await self.node.manager.prepare(self.pods[uid], is_running=False)
            except ClaimsAwaitedError:
                return
            self.ready.add(uid)

    async def end(self, number: int) -> None:
        if number < len(self.pods):
            uid = list(self.pods)[number]
            self.ended.add(uid)
            self.ready.discard(uid)
            await self.release(uid)

    async def release(self, uid: str) -> None:
        try:
            await self.node.manager.release(uid)
        except PreparationError:
            return
        del self.pods[uid]
        self.ended.discard(uid)

    def check(self) -> None:
        """A pod that may run has its claims, and a claim that is prepared has a record."""
        recorded = {
            (name, each.uid) for each in self.node.manager.records.all() for name in each.drivers
        }
        for name, driver in self.drivers.items():
            assert {(name, uid) for uid in driver.prepared()} <= recorded
            for uid in self.ready:
                needed = {
                    f"uid-{claim.name}"
                    for claim in self.pods[uid].spec.resource_claims
                    if name in CLAIMS[claim.name]
                }
                assert needed <= driver.usable()


async def play(story: list[Step], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do the steps and look after each; in the end all pods go, and nothing is left."""
    node = claim_node(folder, monkeypatch, Objects())
    model = Model(node, {name: node.lab_driver(name) for name in NAMES})
    for number in range(len(NAMES)):
        model.flip(number)
    for step, number in story:
        if step == "restart":
            await restart(model, folder, monkeypatch)
        else:
            await model.do(step, number)
        model.check()
    for name, driver in model.drivers.items():
        driver.set_faults()
        if name not in model.registered:
            model.flip(NAMES.index(name))
    for uid in list(model.pods):
        await model.release(uid)
    assert model.pods == {}
    assert not model.node.manager.records.all()
    assert all(driver.prepared() == set() for driver in model.drivers.values())


async def restart(model: Model, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent is killed, and another one starts on what is on the disk."""
    there = sorted(model.registered)
    for name in there:
        model.flip(NAMES.index(name))
    objects, reachable = model.node.objects, model.node.reachable
    model.node = claim_node(folder, monkeypatch, objects)
    model.node.reachable.update(reachable)
    await model.node.manager.records.load()
    for name in there:
        model.flip(NAMES.index(name))


@given(story=steps)
def test_claims_are_prepared_as_long_as_pods_use_them(story: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        clock = MockClock(autojump_threshold=0)
        trio.run(play, story, Path(folder), monkeypatch, clock=clock)
