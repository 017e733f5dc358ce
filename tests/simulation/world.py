"""A day of a node: what its owners want, what breaks, and when; all of it from one seed.

A day is a sequence of rounds of faults with quiet phases between them. In a round pods come, change
and go, and one thing after another breaks. In a quiet phase nothing does, and at its end the node
must have settled.
"""

import math
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import trio
import trio.testing
from attrs import frozen

from state_machines.probe import ProbeKind
from tests.apiserver.faults import RequestFault
from tests.simulation.convergence import (
    bad_tokens,
    leftovers,
    unsettled,
    untold_events,
    untold_pressures,
)
from tests.simulation.disk import Disk
from tests.simulation.fault_schedule import FaultSchedule
from tests.simulation.health import ContainerHealth, Mood, health_of
from tests.simulation.invariants import Invariants
from tests.simulation.load import EVICTION_SETTINGS
from tests.simulation.mounts import MountTable
from tests.simulation.node import NODE, Node, WallClock
from tests.simulation.node_plugins import NodePlugins
from tests.simulation.owners import Owners
from tests.simulation.placements import PlacementRules
from tests.simulation.policies import policies_of, without_cpus
from tests.simulation.power import Power
from tests.simulation.record import Record
from tests.simulation.runtimes import loses_events, runtime_options
from tests.simulation.shapes import REGISTRY
from tests.simulation.shortages import Shortages
from tests.turns import making_test_data
from trio_kubelet.hollow import HollowRuntime
from trio_kubelet.hollow.records import HollowContainer
from trio_kubelet.k8s import NODES, PODS
from trio_kubelet.resource_managers.cpu_sets import cpu_list
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
MOST_CORES_OFFLINE = 8
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


@frozen
class Machine:
    """What the node is on: its folder, its disk, its power, its mounts."""

    root: Path
    disk: Disk
    power: Power
    mounts: MountTable


class World:
    """Operators and bad luck of one node, and its owners."""

    def __init__(
        self, seed: int, machine: Machine, invariants: Invariants, nursery: trio.Nursery
    ) -> None:
        root = machine.root
        self._disk, self._power = machine.disk, machine.power
        self._chance = random.Random(seed)
        self._cpu_chance = random.Random(seed + 3)
        self._record = invariants.record
        self._invariants = invariants
        self._nursery = nursery
        clock = WallClock()
        self._fault_schedule = FaultSchedule(random.Random(seed + 1))
        options = runtime_options(seed, self._chance, self._fault_schedule)
        self._record.loses_events = loses_events(options)
        runtime = HollowRuntime(clock, nursery, options)
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
        self._fault_schedule.on_call = invariants.on_call
        invariants.evictions.node = self._node
        invariants.evictions.on_eviction = self._end_agent_in_an_eviction
        policies = policies_of(seed)
        self._node.settings = {**EVICTION_SETTINGS, **policies.settings}
        if policies.gives_away:
            self._node.set_topology(policies.machine)
        self._policies = policies
        self._placements = PlacementRules(self._node, self._record, policies, invariants.violated)
        runtime.events.add_observer(self._placements.on_event)
        self._node.api.storage.observers.append(self._placements.on_write)
        self._disk.measure = self._node.load.statvfs
        self._shortages = Shortages(self._node, self._record, self._chance, self._start_soon)
        runtime.events.add_observer(self._shortages.on_event)
        self._node.api.storage.observers.append(invariants.on_write)
        self._owners = Owners(self._node, self._record, self._chance, self._start_soon, policies)
        self._plugins = NodePlugins(
            seed + 5,
            self._node,
            machine.mounts,
            invariants,
            nursery,
            self._start_soon,
            self._end_agent,
        )
        self._actions: Mapping[Callable[[], None], int] = {
            self._owners.add: 8,
            self._owners.remove: 4,
            self._owners.change: 3,
            self._owners.resize: 4,
            self._owners.replace: 2,
            self._owners.bring_back: 2,
            self._owners.replace_evicted: 5,
            self._owners.spoil_manifest: 1,
            self._owners.change_shared: 3,
            self._owners.lose_shared: 1,
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
            self._lose_power: 1,
            self._lose_power_in_a_write: 2,
            self._jump: 1,
            self._lose_image: 1,
            self._fill_disk: 2,
            self._fill_image_disk: 2,
            self._plugins.start_faults: 6,
            self._plugins.stop_faults: 2,
            self._plugins.reinstall: 5,
            self._plugins.change_devices: 4,
            self._plugins.end_agent_in_a_call: 5,
            self._shortages.begin: 12,
            self._shortages.exceed_limit: 1,
        }
        self._outages = 0
        self._is_faulty = False

    async def live(self, rounds: int) -> None:
        """Live through a number of rounds of faults, each with a quiet phase after it."""
        with making_test_data():
            self._owners.begin()
            self._plugins.begin()
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
        self._is_faulty = True
        async with trio.open_nursery() as nursery:
            self._short_lived = nursery
            self._plugins.begin_round()
            with trio.move_on_after(seconds):
                while True:
                    pace_seconds = self._chance.choice(PACES_SECONDS)
                    await trio.sleep(self._chance.expovariate(1 / pace_seconds))
                    self._act()
        self._is_faulty = False
        self._fault_schedule.stop_faults()
        self._plugins.end_round()
        self._power.at_write(0, self._lose_power)
        self._node.api.faults.rules.clear()
        if self._node.agent is None:
            self._node.start_agent()

    def _start_soon(self, work: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Run what takes time; the round of faults lasts until it is done."""
        self._short_lived.start_soon(work, *arguments)

    def _act(self) -> None:
        acts, weights = list(self._actions), list(self._actions.values())
        act = self._chance.choices(acts, weights)[0]
        self._record.note("world", getattr(act, "__name__", act))
        act()

    async def _quiet_phase(self) -> None:
        self._record.note("QUIET")
        await trio.sleep(CLEAN_UP_SECONDS)
        if not self._record.loses_events:
            self._look_for("not cleaned up:", leftovers)
            self._look_for("not cleaned up:", self._unsettled_plugins)
        with trio.move_on_after(QUIET_SECONDS - CLEAN_UP_SECONDS):
            while True:
                await trio.sleep(GLANCE_SECONDS)
                self._look_for("not renewed:", bad_tokens)
                self._look_for("not told:", untold_events)
                self._look_for("not told:", untold_pressures)
        self._look_for("not settled:", unsettled)
        self._look_for("not settled:", self._unsettled_plugins)
        self._look_for("not settled:", self._unsettled_placements)

    def _unsettled_plugins(self, _node: Node, _record: Record) -> Iterable[str]:
        return self._plugins.unsettled()

    def _unsettled_placements(self, _node: Node, _record: Record) -> Iterable[str]:
        return self._placements.unsettled()

    def _look_for(self, kind: str, problems: Callable[[Node, Record], Iterable[str]]) -> None:
        with making_test_data():
            for problem in problems(self._node, self._record):
                self._invariants.violated(kind, problem)

    # What breaks

    def _end_agent(self) -> None:
        if self._node.agent is None:
            return
        if self._chance.random() < 0.7:
            self._kill_agent()
        else:
            self._node.stop_agent()
        self._start_soon(self._start_agent_later)

    def _kill_agent(self) -> None:
        self._record.cut_off_at = trio.current_time()
        self._node.kill_agent()

    async def _start_agent_later(self) -> None:
        await self._node.agent_ended()
        await trio.sleep(self._chance.choice((0, 1, self._chance.uniform(0, 90))))
        if self._node.agent is None:
            self._switch_cpus()
            self._node.start_agent()

    def _switch_cpus(self) -> None:
        """Let some cores that nobody has for himself be offline now and then, and others online."""
        if self._policies.gives_away and self._cpu_chance.random() < 0.4:
            spare = self._placements.spare_cores()
            count = self._cpu_chance.randint(0, min(MOST_CORES_OFFLINE, len(spare)))
            offline = frozenset[int]().union(*self._cpu_chance.sample(spare, count))
            self._record.note("offline CPUs", cpu_list(offline))
            self._node.set_topology(without_cpus(self._policies.machine, offline))

    def _end_agent_in_a_call(self) -> None:
        if self._node.agent is not None:
            self._fault_schedule.at_call(self._chance.randint(1, 40), self._end_agent)

    def _end_agent_in_an_eviction(self) -> None:
        """End some agents right when they have decided, others while the pod is ending."""
        if self._is_faulty and self._chance.random() < 0.3:
            if self._chance.random() < 0.5:
                self._end_agent()
            else:
                self._start_soon(self._end_agent_soon)

    async def _end_agent_soon(self) -> None:
        await trio.sleep(self._chance.uniform(0, 3))
        self._end_agent()

    def _restart_runtime(self) -> None:
        seconds = self._chance.choice((0, 2, 20, 200))
        self._record.on_runtime_away(seconds)
        self._start_soon(self._node.runtime.restart, seconds)

    def _restart_runtime_in_a_call(self) -> None:
        self._fault_schedule.at_call(self._chance.randint(1, 40), self._restart_runtime)

    def _lose_api(self) -> None:
        self._start_soon(self._without_api, self._chance.choice((1, 20, 90, 400)))

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
            self._start_soon(self._without_node)

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
        self._start_soon(self._without_network, self._chance.uniform(1, 90))

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
                self._start_soon(self._find_again, victim)

    def _sicken(self) -> None:
        """Let a container answer a probe in another way for a while."""
        containers = [c for c in self._node.runtime.containers if c.process and not c.finished_at]
        healths = [health for health in map(health_of, containers) if health is not None]
        if healths:
            health = self._chance.choice(healths)
            kind = self._chance.choice(list(health.natures))
            health.troubles[kind] = self._chance.choice(list(Mood))
            self._start_soon(self._heal, health, kind)

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
            self._start_soon(self._node.runtime.containers.remove, request)

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

    def _lose_power(self) -> None:
        """Let the machine lose its power: whatever ran has ended when it is back.

        Of what the agent has written it finds what was synced.
        """
        if self._node.agent is None or self._power.is_off:
            return
        self._record.power_failed_at = trio.current_time()
        self._plugins.lose_power()
        self._record.note("power failed", "survived", self._power.fail())
        self._kill_agent()
        for sandbox in self._node.runtime.sandboxes:
            self._harm(sandbox.config.metadata.uid, sandbox.id)
            self._node.runtime.sandboxes.fail(sandbox.id)
        for container in self._node.runtime.containers:
            self._node.runtime.containers.kill(container.id)
        self._start_soon(self._without_power)

    async def _without_power(self) -> None:
        await self._node.agent_ended()
        with making_test_data():
            self._power.come_back()
        self._node.boot()
        self._plugins.boot()
        await self._start_agent_later()

    def _lose_power_in_a_write(self) -> None:
        self._power.at_write(self._chance.randint(1, 40), self._lose_power)

    def _jump(self) -> None:
        self._record.clock_jumped_at = trio.current_time()
        self._node.clock.jump(self._chance.choice((-3600, -5, 5, 3600)))

    def _fill_disk(self) -> None:
        self._start_soon(self._without_room, self._chance.uniform(1, 90))
        if self._chance.random() < 0.3:
            self._shortages.begin()

    async def _without_room(self, seconds: float) -> None:
        self._disk.is_full, self._record.disk_full_until = True, math.inf
        await trio.sleep(seconds)
        self._disk.is_full, self._record.disk_full_until = False, trio.current_time()

    def _fill_image_disk(self) -> None:
        self._start_soon(self._without_room_for_images, self._chance.uniform(30, 400))

    async def _without_room_for_images(self, seconds: float) -> None:
        self._node.image_disk_is_full = True
        await trio.sleep(seconds)
        self._node.image_disk_is_full = False

    def _lose_image(self) -> None:
        reference = f"{REGISTRY}/app:{self._chance.randint(1, 8)}"
        self._start_soon(partial(self._remove_image, reference))

    async def _remove_image(self, reference: str) -> None:
        spec = cri.ImageSpec(image=reference)
        await self._node.runtime.images.remove(cri.RemoveImageRequest(image=spec))
