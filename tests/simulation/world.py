"""A day of a node: what its owners want, what breaks, and when; all of it from one seed.

A day is a sequence of rounds of faults with quiet phases between them. In a round pods come, change
and go, and one thing after another breaks. In a quiet phase nothing does, and at its end the node
must have settled.
"""

import json
import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import trio
import trio.testing
from attrs import evolve

from state_machines.probe import ProbeKind
from tests.apiserver.faults import RequestFault
from tests.simulation.convergence import bad_tokens, leftovers, unsettled, untold_events
from tests.simulation.disk import Disk
from tests.simulation.fault_schedule import FaultSchedule
from tests.simulation.health import (
    ContainerHealth,
    Mood,
    behaviours_with_health,
    health_of,
)
from tests.simulation.invariants import Invariants
from tests.simulation.node import NODE, Node, WallClock
from tests.simulation.pods import REGISTRY, UNREACHABLE, Fate, PodMaker, Shape
from tests.simulation.record import Wanted
from tests.simulation.shared import SharedObjects
from trio_kubelet.hollow import HollowOptions, HollowRegistry, HollowRuntime, Latencies
from trio_kubelet.hollow.records import HollowContainer
from trio_kubelet.k8s import NODES, PODS, Pod
from trio_kubelet.k8s.codec import decode
from trio_kubelet.k8s.defaults import with_defaults
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.sources.apiserver import is_mirror

ROUNDS = 4
SHORTEST_ROUND_SECONDS, LONGEST_ROUND_SECONDS = 120.0, 1200.0
QUIET_SECONDS = 780.0
"""Longer than the longest back-off, with its jitter, the next resync, and a grace period."""
CLEAN_UP_SECONDS = 240.0
"""Longer than the slowest call, a grace period, and a few tries."""
GLANCE_SECONDS = 20.0
"""How often what may last only a short time is looked for in a quiet phase."""
MOST_PODS = 14
PACES_SECONDS = (0.3, 8.0, 40.0)
"""How long it may be until the next thing happens, on average."""

TROUBLES: tuple[Mapping[str, Any], ...] = (
    {"code": 500, "reason": "InternalError"},
    {"code": 503, "reason": "ServiceUnavailable"},
    {"code": 429, "reason": "TooManyRequests", "retry_after": 2.0},
    {"code": 409, "reason": "Conflict"},
    {"lost": True},
    {"seconds": 3.0},
    {"seconds": 40.0},
)

RUNTIMES = (
    ("hollow", "1.0"),
    ("containerd", "2.1.0"),
    ("containerd", "1.7.5"),
    ("containerd", "1.6.9"),
)


def _bound(shape: Shape) -> Pod:
    """The pod as its owner creates it, bound to the node."""
    pod = with_defaults(decode(Pod, shape.document))
    return evolve(pod, spec=evolve(pod.spec, node_name=NODE))


class World:
    """Owners, operators and bad luck of one node."""

    def __init__(
        self, seed: int, root: Path, disk: Disk, invariants: Invariants, nursery: trio.Nursery
    ) -> None:
        self._disk = disk
        self._chance = random.Random(seed)
        self._record = invariants.record
        self._invariants = invariants
        self._nursery = nursery
        self._pods = PodMaker(self._chance, str(root / "host" / "data"))
        clock = WallClock()
        self._fault_schedule = FaultSchedule(random.Random(seed + 1))
        runtime = HollowRuntime(clock, nursery, self._runtime_options(seed))
        self._node = invariants.node = Node(
            root,
            clock,
            runtime,
            nursery,
            invariants,
            chance=random.Random(seed + 2),
            doubling=self._chance.choice((0.0, 0.0, 0.2)),
        )
        runtime.events.add_observer(invariants.on_event)
        self._node.api.storage.observers.append(invariants.on_write)
        self._shared = SharedObjects(self._node.api, self._chance)
        self._actions: Mapping[Callable[[], None], int] = {
            self._add: 8,
            self._remove: 4,
            self._change: 3,
            self._replace: 2,
            self._bring_back: 2,
            self._spoil_manifest: 1,
            self._change_shared: 3,
            self._lose_shared: 1,
            self._fault_schedule.start_faults: 3,
            self._fault_schedule.stop_faults: 2,
            self._end_agent: 3,
            self._end_agent_in_a_call: 3,
            self._restart_runtime: 2,
            self._restart_runtime_in_a_call: 2,
            self._lose_api: 2,
            self._break_watches: 1,
            self._forget_history: 1,
            self._trouble_api: 3,
            self._delete_mirror: 1,
            self._delete_node: 1,
            self._break_network: 1,
            self._kill_container: 2,
            self._kill_sandbox: 1,
            self._lose_container: 3,
            self._sicken: 8,
            self._remove_container: 1,
            self._reboot: 1,
            self._jump: 1,
            self._lose_image: 1,
            self._fill_disk: 2,
        }
        self._gone: list[Wanted] = []
        self._outages = 0

    def _runtime_options(self, seed: int) -> HollowOptions:
        name, version = self._chance.choice(RUNTIMES)
        event_loss = self._chance.choice((0.0, 0.0, 0.05, 0.5))
        event_buffer = self._chance.choice((1000, 4))
        self._record.loses_events = bool(event_loss) or event_buffer < MOST_PODS
        return HollowOptions(
            name=name,
            version=version,
            seed=seed,
            faults=self._fault_schedule,
            latencies=Latencies(run_pod_sandbox=0.2, start_container=0.05, stop_pod_sandbox=0.05),
            registry=HollowRegistry(unreachable=frozenset({UNREACHABLE}), pull_seconds=1.5),
            behaviours=behaviours_with_health(random.Random(seed + 3)),
            event_loss=event_loss,
            event_buffer=event_buffer,
            share_event_channel=version.startswith("1.7"),
            has_events=version != "1.6.9",
        )

    async def live(self, rounds: int) -> None:
        """Live through a number of rounds of faults, each with a quiet phase after it."""
        self._shared.create_all()
        for _ in range(self._chance.randint(2, 6)):
            self._add()
        self._node.start_agent()
        for _ in range(rounds):
            seconds = self._chance.uniform(SHORTEST_ROUND_SECONDS, LONGEST_ROUND_SECONDS)
            await self._round_of_faults(seconds)
            await self._quiet_phase()
        self._node.stop_agent()
        await self._node.agent_ended()

    async def _round_of_faults(self, seconds: float) -> None:
        """Do one thing after another, and let all come to its end."""
        self._record.note("FAULTS")
        async with trio.open_nursery() as nursery:
            self._short_lived = nursery
            with trio.move_on_after(seconds):
                while True:
                    pace_seconds = self._chance.choice(PACES_SECONDS)
                    await trio.sleep(self._chance.expovariate(1 / pace_seconds))
                    self._act()
        self._fault_schedule.stop_faults()
        self._node.api.faults.rules.clear()
        if self._node.agent is None:
            self._node.start_agent()

    def _act(self) -> None:
        acts, weights = list(self._actions), list(self._actions.values())
        act = self._chance.choices(acts, weights)[0]
        self._record.note("world", getattr(act, "__name__", act))
        act()

    async def _quiet_phase(self) -> None:
        self._record.note("QUIET")
        await trio.sleep(CLEAN_UP_SECONDS)
        if not self._record.loses_events:
            for problem in leftovers(self._node, self._record):
                self._invariants.violated("not cleaned up:", problem)
        with trio.move_on_after(QUIET_SECONDS - CLEAN_UP_SECONDS):
            while True:
                await trio.sleep(GLANCE_SECONDS)
                for problem in bad_tokens(self._node, self._record):
                    self._invariants.violated("not renewed:", problem)
                for problem in untold_events(self._node, self._record):
                    self._invariants.violated("not told:", problem)
        for problem in unsettled(self._node, self._record):
            self._invariants.violated("not settled:", problem)

    # What owners do

    def _add(self) -> None:
        if len(self._record.wanted) < MOST_PODS:
            is_static = self._chance.random() < 0.5
            self._want(self._pods.make(is_static=is_static), is_static=is_static)

    def _want(self, shape: Shape, *, is_static: bool) -> None:
        if not is_static:
            shape = shape.with_uid(self._node.api.create(PODS, _bound(shape)).metadata.uid)
        now = trio.current_time()
        wanted = Wanted(shape=shape, is_static=is_static, made_at=now, touched_at=now)
        self._record.wanted[shape.uid] = wanted
        self._record.note("wanted", shape.uid, shape.name, "static" if is_static else "api")
        if is_static:
            self._node.write_manifest(shape.name, json.dumps(shape.document))

    def _remove(self) -> None:
        if wanted := self._any_pod():
            self._drop(wanted)

    def _drop(self, wanted: Wanted) -> None:
        uid = wanted.shape.uid
        wanted.deleted = True
        if wanted.is_static:
            self._gone.append(wanted)
            (self._node.manifests / f"{wanted.shape.name}.json").unlink()
            self._forget(uid)
        else:
            # At once, whatever the node has to say; as the pod itself says; or in some seconds.
            grace = self._chance.choice((0, None, 1, 3, 30))
            wanted.forced = True
            self._node.api.delete(PODS, wanted.shape.name, grace_seconds=grace)
            wanted.forced = self._node.api.find(PODS, wanted.shape.name) is None

    def _forget(self, uid: str) -> None:
        self._record.wanted.pop(uid, None)

    def _change(self) -> None:
        """Change a pod in place: the UID stays."""
        if wanted := self._any_pod():
            before, wanted.shape = wanted.shape, self._pods.changed(wanted.shape)
            wanted.touched_at = trio.current_time()
            if before.images != wanted.shape.images and before.fate is not Fate.RUNS:
                wanted.harmed = True  # A job that is cut off ends otherwise.
            if wanted.is_static:
                self._node.write_manifest(wanted.shape.name, json.dumps(wanted.shape.document))
                return
            known = self._node.api.get(PODS, wanted.shape.name)
            pod = _bound(wanted.shape)
            labels = evolve(known.metadata, labels=pod.metadata.labels)
            self._node.api.update(PODS, evolve(known, metadata=labels, spec=pod.spec))

    def _replace(self) -> None:
        """Put a pod with the same name and another UID in the place of one."""
        wanted = self._any_pod()
        if wanted is not None and wanted.is_static:
            self._gone.append(wanted)
            self._forget(wanted.shape.uid)
            self._want(self._pods.renamed(wanted.shape), is_static=True)

    def _bring_back(self) -> None:
        """Put a manifest back that was removed: its pod comes back under its UID."""
        gone = [each for each in self._gone if each.shape.uid not in self._record.wanted]
        taken = {each.shape.name for each in self._record.wanted.values()}
        gone = [each for each in gone if each.shape.name not in taken]
        if gone and len(self._record.wanted) < MOST_PODS:
            again = self._chance.choice(gone)
            self._gone.remove(again)
            self._want(again.shape, is_static=True)
            # An agent that was away in between never noticed: to it, it is the same pod.
            back = self._record.wanted[again.shape.uid]
            back.harmed, back.made_at = again.harmed, again.made_at

    def _spoil_manifest(self) -> None:
        """Leave a half-written manifest for a while: its pod runs on.

        Not while the agent had no room to keep what the manifest said.
        """
        wanted = self._any_pod()
        if wanted is not None and wanted.is_static:
            if self._record.lives.get(wanted.shape.uid) and not self._node.keeps(wanted.shape.uid):
                return
            text = json.dumps(wanted.shape.document)
            self._node.write_manifest(wanted.shape.name, text[: len(text) // 2])
            self._short_lived.start_soon(self._mend, wanted)

    async def _mend(self, wanted: Wanted) -> None:
        await trio.sleep(self._chance.uniform(0, 60))
        if self._record.wanted.get(wanted.shape.uid) is wanted:
            self._node.write_manifest(wanted.shape.name, json.dumps(wanted.shape.document))

    def _change_shared(self) -> None:
        self._shared.change(self._shared.any_name())

    def _lose_shared(self) -> None:
        """Take an object away for a while: who has it keeps it, who needs it waits."""
        name = self._shared.any_name()
        if self._shared.take_away(name):
            self._short_lived.start_soon(self._return_shared, name)

    async def _return_shared(self, name: str) -> None:
        await trio.sleep(self._chance.uniform(0, 100))
        self._shared.create(name)

    def _any_pod(self) -> Wanted | None:
        pods = [each for each in self._record.wanted.values() if not each.deleted]
        return self._chance.choice(pods) if pods else None

    # What breaks

    def _end_agent(self) -> None:
        if self._node.agent is None:
            return
        if self._chance.random() < 0.7:
            self._kill_agent()
        else:
            self._node.stop_agent()
        self._short_lived.start_soon(self._start_agent_later)

    def _kill_agent(self) -> None:
        self._record.cut_off_at = trio.current_time()
        self._node.kill_agent()

    async def _start_agent_later(self) -> None:
        await self._node.agent_ended()
        await trio.sleep(self._chance.choice((0, 1, self._chance.uniform(0, 90))))
        if self._node.agent is None:
            self._node.start_agent()

    def _end_agent_in_a_call(self) -> None:
        if self._node.agent is not None:
            self._fault_schedule.at_call(self._chance.randint(1, 40), self._end_agent)

    def _restart_runtime(self) -> None:
        seconds = self._chance.choice((0, 2, 20, 200))
        self._record.on_runtime_away(seconds)
        self._short_lived.start_soon(self._node.runtime.restart, seconds)

    def _restart_runtime_in_a_call(self) -> None:
        self._fault_schedule.at_call(self._chance.randint(1, 40), self._restart_runtime)

    def _lose_api(self) -> None:
        self._short_lived.start_soon(self._without_api, self._chance.choice((1, 20, 90, 400)))

    async def _without_api(self, seconds: float) -> None:
        self._outages += 1
        self._node.api.go_away()
        await trio.sleep(seconds)
        self._outages -= 1
        if not self._outages:
            self._node.api.come_back()

    def _break_watches(self) -> None:
        self._chance.choice((self._node.api.drop_watches, self._node.api.end_watches))()

    def _forget_history(self) -> None:
        """Let the next watch that falls behind begin anew."""
        self._node.api.drop_watches()
        self._node.api.storage.compact()

    def _trouble_api(self) -> None:
        """Let some requests fail, be slow, or lose their answers."""
        self._node.api.faults.add(
            RequestFault(
                verb=self._chance.choice(("", "patch", "create", "delete", "list", "watch", "get")),
                resource=self._chance.choice(("", "pods", "nodes", "leases", "events")),
                times=self._chance.choice((1, 3, 20)),
                **self._chance.choice(TROUBLES),
            )
        )

    def _delete_mirror(self) -> None:
        """Delete what shows a static pod: it is shown again, and nothing happens to the pod."""
        mirrors = [each for each in self._node.api.all(PODS) if is_mirror(each)]
        if mirrors:
            mirror = self._chance.choice(mirrors)
            grace = self._chance.choice((0, None))
            self._node.api.delete(PODS, mirror.metadata.name, grace_seconds=grace)

    def _delete_node(self) -> None:
        """Delete the node, and later start its agent anew, which registers it again."""
        if self._node.agent is not None and self._node.api.find(NODES, NODE) is not None:
            self._node.api.delete(NODES, NODE)
            self._short_lived.start_soon(self._without_node)

    async def _without_node(self) -> None:
        for _ in range(self._chance.randint(0, 4)):
            await trio.sleep(self._chance.uniform(0, 30))
            self._collect_what_the_node_owned()
        self._end_agent()

    def _collect_what_the_node_owned(self) -> None:
        """Delete the mirrors whose owner is gone, as the garbage collector does."""
        node = self._node.api.find(NODES, NODE)
        for mirror in filter(is_mirror, self._node.api.all(PODS)):
            (owner,) = mirror.metadata.owner_references
            if node is None or owner.uid != node.metadata.uid:
                self._node.api.delete(PODS, mirror.metadata.name)

    def _break_network(self) -> None:
        self._short_lived.start_soon(self._without_network, self._chance.uniform(1, 90))

    async def _without_network(self, seconds: float) -> None:
        self._node.runtime.sandboxes.network_ready = False
        await trio.sleep(seconds)
        self._node.runtime.sandboxes.network_ready = True

    def _kill_container(self) -> None:
        if victim := self._running_container():
            self._harm(victim.sandbox.config.metadata.uid, victim.id)
            self._node.runtime.containers.kill(victim.id, self._chance.choice(("OOMKilled", "")))

    def _lose_container(self) -> None:
        """Let the runtime not know how a container is, for ever or for a while."""
        if victim := self._running_container():
            self._record.lost.add(victim.id)
            self._harm(victim.sandbox.config.metadata.uid, victim.id)
            self._node.runtime.containers.lose(victim.id)
            if self._chance.random() < 0.5:
                self._short_lived.start_soon(self._find_again, victim)

    def _sicken(self) -> None:
        """Let a container answer a probe in another way for a while."""
        containers = [c for c in self._node.runtime.containers if c.process and not c.finished_at]
        healths = [health for health in map(health_of, containers) if health is not None]
        if healths:
            health = self._chance.choice(healths)
            kind = self._chance.choice(list(health.natures))
            health.troubles[kind] = self._chance.choice(list(Mood))
            self._short_lived.start_soon(self._heal, health, kind)

    async def _heal(self, health: ContainerHealth, kind: ProbeKind) -> None:
        await trio.sleep(self._chance.uniform(0, 150))
        health.troubles.pop(kind, None)

    async def _find_again(self, victim: HollowContainer) -> None:
        await trio.sleep(self._chance.uniform(0, 3))
        victim.lost = False

    def _remove_container(self) -> None:
        """Let somebody remove a running container, who is not the agent."""
        if victim := self._running_container():
            self._record.lost.add(victim.id)
            self._harm(victim.sandbox.config.metadata.uid, victim.id)
            request = cri.RemoveContainerRequest(container_id=victim.id)
            self._short_lived.start_soon(self._node.runtime.containers.remove, request)

    def _running_container(self) -> HollowContainer | None:
        containers = [c for c in self._node.runtime.containers if c.process and not c.finished_at]
        return self._chance.choice(containers) if containers else None

    def _kill_sandbox(self) -> None:
        sandboxes = [s for s in self._node.runtime.sandboxes if s.ready]
        if sandboxes:
            victim = self._chance.choice(sandboxes)
            self._harm(victim.config.metadata.uid, victim.id)
            self._node.runtime.sandboxes.fail(victim.id)

    def _harm(self, uid: str, victim_id: str) -> None:
        self._record.killed.add(victim_id)
        if uid in self._record.wanted:
            self._record.wanted[uid].harmed = True

    def _reboot(self) -> None:
        """Let the whole machine fail: whatever ran has ended when it is back."""
        if self._node.agent is None:
            return
        self._kill_agent()
        for sandbox in self._node.runtime.sandboxes:
            self._harm(sandbox.config.metadata.uid, sandbox.id)
            self._node.runtime.sandboxes.fail(sandbox.id)
        for container in self._node.runtime.containers:
            self._node.runtime.containers.kill(container.id)
        self._short_lived.start_soon(self._start_agent_later)

    def _jump(self) -> None:
        self._record.clock_jumped_at = trio.current_time()
        self._node.clock.jump(self._chance.choice((-3600, -5, 5, 3600)))

    def _fill_disk(self) -> None:
        self._short_lived.start_soon(self._without_room, self._chance.uniform(1, 90))

    async def _without_room(self, seconds: float) -> None:
        self._disk.is_full = True
        await trio.sleep(seconds)
        self._disk.is_full = False

    def _lose_image(self) -> None:
        reference = f"{REGISTRY}/app:{self._chance.randint(1, 8)}"
        self._short_lived.start_soon(partial(self._remove_image, reference))

    async def _remove_image(self, reference: str) -> None:
        spec = cri.ImageSpec(image=reference)
        await self._node.runtime.images.remove(cri.RemoveImageRequest(image=spec))
