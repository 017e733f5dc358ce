"""Exclusive CPUs and memory of a node whose agent is killed, or its power cut, between two steps.

Steps are the calls that change the state files, containers that are made or end, and CPUs that are
applied to one that runs. The next agent finds the disk and the containers as they were then.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory

import trio
from attrs import frozen
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.power_failures import Failure, PowerFailures
from tests.unit.resource_managers.machines import Shape, machine, managers_of
from tests.unit.resource_managers.pods import a_pod, guaranteed
from trio_kubelet.config.cpu_policy import CpuPolicyOptions
from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.totals import passing_containers
from trio_kubelet.resource_managers.cpu_draft import exclusive_cpu_counts, static_cpu_policy
from trio_kubelet.resource_managers.cpu_sets import cpu_list, parsed_cpus
from trio_kubelet.resource_managers.memory_draft import static_memory_policy, wanted_memory
from trio_kubelet.resource_managers.placement import ContainerPlacement

SHAPES = (Shape(sockets=2), Shape(sockets=2, nodes_per_socket=2, cores_per_node=2))
POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
MOST_KILLS = 3
amounts = st.sampled_from(["1", "2", "3", "500m"])
gib = st.sampled_from([1, 3, 6])

Running = dict[tuple[str, str], ContainerPlacement]
"""What containers run on, by the pod's UID and their names."""


@st.composite
def pods(draw: st.DrawFn, uid: str) -> Pod:
    init = [
        guaranteed(f"i{number}", draw(amounts), memory="1Gi", sidecar=draw(st.booleans()))
        for number in range(draw(st.integers(0, 2)))
    ]
    regular = [
        guaranteed(f"c{number}", draw(amounts), memory=f"{draw(gib)}Gi")
        for number in range(draw(st.integers(1, 2)))
    ]
    return a_pod(uid, *regular, init=tuple(init))


@frozen
class Cut:
    """The state of the disk and the containers at one moment."""

    disk: Failure
    running: Running


class Node(RuleBasedStateMachine):
    """An agent that admits and ends pods; it may die at each step, and is started anew."""

    @initialize(shape=st.sampled_from(SHAPES), name=st.sampled_from(POLICIES), by_pod=st.booleans())
    def start(self, shape: Shape, name: str, by_pod: bool) -> None:
        self.folder = TemporaryDirectory()
        self.disk = Path(self.folder.name) / "disk"
        self.disk.mkdir()
        self.topology, self.name, self.by_pod = machine(shape), name, by_pod
        self.pods: dict[str, Pod] = {}
        self.admitted: set[str] = set()
        self.new: set[str] = set()
        self.running: Running = {}
        self.number = 0
        self.seen: list[tuple[int, Running]] = []
        self.failures = PowerFailures(self.disk)
        trio.run(self.begin)

    # What the agent does

    async def begin(self) -> None:
        """Start, and take up all pods."""
        self.managers = managers_of(
            static_cpu_policy(
                self.topology, CpuPolicyOptions(), reserved_cpus="0", reserved_milli=0
            ),
            self.disk,
            memory=static_memory_policy(self.topology, (), {}),
            name=self.name,
            by_pod=self.by_pod,
        )
        await self.managers.load()
        for uid, pod in list(self.pods.items()):
            if uid in self.admitted:
                self.managers.recall(pod, self.is_gone)
            elif self.managers.reserve(pod, self.is_gone) is not None:
                assert uid in self.new, "others were given what it was promised"
                del self.pods[uid]
        self.new.clear()
        for pod in self.pods.values():
            await self.run(pod)
        for uid in {uid for uid, _ in self.running} | self.managers.uids():
            if uid not in self.pods:
                await self.stop(uid)

    async def run(self, pod: Pod) -> None:
        """Make the containers that do not run: after what they have is on the disk."""
        uid = pod.metadata.uid
        assert await self.managers.keep()
        self.admitted.add(uid)
        for container in pod.spec.admitted_containers:
            key = uid, container.name
            if key not in self.running:
                self.change({**self.running, key: self.managers.placement(*key)})
            if container.name in passing_containers(pod.spec):
                self.change({each: on for each, on in self.running.items() if each != key})
        self.apply()

    async def stop(self, uid: str) -> None:
        """End what runs of a pod, then give back what it has."""
        for key in [key for key in self.running if key[0] == uid]:
            self.change({each: on for each, on in self.running.items() if each != key})
        self.managers.release(uid)
        assert await self.managers.keep()
        self.apply()

    def apply(self) -> None:
        """Move those that share CPUs; what somebody has alone never changes as it runs."""
        for key, on in self.running.items():
            wanted = self.managers.placement(*key)
            if wanted != on:
                assert not on.has_exclusive_cpus
                assert not wanted.has_exclusive_cpus
                assert wanted.cpuset_mems == on.cpuset_mems
                self.change({**self.running, key: wanted})

    def is_gone(self, uid: str) -> bool:
        return uid not in self.pods and all(uid != other for other, _ in self.running)

    def change(self, running: Running) -> None:
        alone: dict[str, set[int]] = {}
        for (uid, _), on in running.items():
            cpus = parsed_cpus(on.cpuset_cpus) if on.has_exclusive_cpus else ()
            alone.setdefault(uid, set()).update(cpus)
        assert sum(map(len, alone.values())) == len(set().union(*alone.values())), "given twice"
        self.running = running
        self.seen.append((self.failures.moment, running))

    # What happens to it

    def perform(self, work: Callable[[], Awaitable[None]], data: st.DataObject) -> None:
        """Let the agent do something; it may die meanwhile, and again when it is started anew."""
        kept = {uid: self.placements(pod) for uid, pod in self.pods.items() if uid in self.admitted}
        self.work(work, data)
        assert kept == {uid: self.placements(self.pods[uid]) for uid in kept}

    def placements(self, pod: Pod) -> dict[str, tuple[frozenset[int], str]]:
        """What containers have for themselves: CPUs, and memory."""
        uid, names = pod.metadata.uid, [each.name for each in pod.spec.admitted_containers]
        at = self.managers
        return {
            name: (
                at.cpus.cpus_of(uid, name) or frozenset(),
                at.placement(uid, name).cpuset_mems,
            )
            for name in names
        }

    def work(self, work: Callable[[], Awaitable[None]], data: st.DataObject) -> None:
        for _ in range(MOST_KILLS):
            before, admitted = self.running, set(self.admitted)
            self.failures, self.seen = PowerFailures(self.disk), [(0, before)]
            files = (path for path in self.disk.rglob("*") if path.is_file())
            at_first = {str(path.relative_to(self.disk)): path.read_bytes() for path in files}
            with self.failures.noted():
                trio.run(work)
            cuts = list(self.cuts([Failure(0, "all", at_first), *self.failures.found]))
            number = data.draw(st.none() | st.integers(0, len(cuts) - 1), label="dies at")
            if number is None:
                return
            self.lose_all_since(cuts[number])
            # Whether its allocation is on the disk before what it was allocated, is open.
            is_told = data.draw(st.booleans(), label="the allocation was kept")
            running = {uid for uid, _ in self.running}
            self.admitted = self.admitted if is_told else admitted | running & self.pods.keys()
            if data.draw(st.booleans(), label="a pod comes meanwhile"):
                self.new.add(self.come(data))
            work = self.begin
        trio.run(work)

    def cuts(self, failures: Iterable[Failure]) -> Iterator[Cut]:
        """All that may be left: what runs is gone unless the whole disk is as it was."""
        for failure in failures:
            if failure.survived != "all":
                yield Cut(failure, {})
                continue
            before = [running for moment, running in self.seen if moment < failure.moment]
            now = [running for moment, running in self.seen if moment == failure.moment]
            for running in (*before[-1:], *now):
                yield Cut(failure, running)

    def lose_all_since(self, cut: Cut) -> None:
        rmtree(self.disk)
        self.disk.mkdir()
        cut.disk.restore(self.disk)
        self.running = cut.running

    def come(self, data: st.DataObject) -> str:
        """A new pod is bound to the node; return its UID."""
        self.number += 1
        uid = f"u{self.number}"
        self.pods[uid] = data.draw(pods(uid))
        return uid

    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        uid = self.come(data)
        pod = self.pods[uid]
        if self.managers.reserve(pod, self.is_gone) is None:
            self.perform(lambda: self.run(pod), data)
        else:
            del self.pods[uid]

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        assume(self.pods)
        uid = data.draw(st.sampled_from(sorted(self.pods)))
        del self.pods[uid]
        self.admitted.discard(uid)
        self.perform(lambda: self.stop(uid), data)

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        self.perform(self.begin, data)

    # What holds at rest

    @invariant()
    def no_cpu_is_given_twice_or_lost(self) -> None:
        alone: set[int] = set()
        sharing: set[str] = set()
        for (uid, name), on in getattr(self, "running", {}).items():
            assert on == self.managers.placement(uid, name)
            cpus = parsed_cpus(on.cpuset_cpus)
            count = exclusive_cpu_counts(self.pods[uid]).get(name, 0)
            assert on.has_exclusive_cpus == bool(count)
            if count:
                assert len(cpus) == count
                assert cpus.isdisjoint(alone)
                alone |= cpus
            else:
                sharing.add(on.cpuset_cpus)
        if hasattr(self, "managers"):
            assert 0 not in alone
            assert alone <= self.managers.cpus.assigned
            rest = self.topology.all - self.managers.cpus.assigned
            assert sharing <= {cpu_list(rest)}

    @invariant()
    def those_have_memory_who_asked_for_it(self) -> None:
        if not hasattr(self, "managers"):
            return
        blocks = self.managers.memory.blocks
        assert blocks.keys() == self.pods.keys() == self.admitted
        for uid, pod in self.pods.items():
            assert blocks[uid].keys() == wanted_memory(pod).keys()
        assert self.managers.cpus.uids() <= self.pods.keys()

    @invariant()
    def the_next_agent_would_find_the_same(self) -> None:
        if not hasattr(self, "managers"):
            return
        later = managers_of(
            self.managers.cpus.policy, self.disk, memory=self.managers.memory.policy
        )
        trio.run(later.load)
        assert later.memory.blocks == self.managers.memory.blocks
        assert later.cpus.shared == self.managers.cpus.shared
        assert {
            (uid, name): later.placement(uid, name) for uid, name in self.running
        } == self.running

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


Node.TestCase.settings = settings(max_examples=30, stateful_step_count=10, deadline=None)
TestNode = Node.TestCase
