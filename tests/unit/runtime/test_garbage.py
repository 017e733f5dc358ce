"""That the collector removes just what is garbage, on the hollow runtime."""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from attrs import evolve, frozen
from trio.testing import MockClock

from tests.node_facts import configured, node_facts
from tests.trio_clock import TrioClock
from tests.unit.runtime.observed_pods import pod
from trio_kubelet.errors import CollectionError
from trio_kubelet.hollow import (
    Behaviour,
    CallFault,
    HollowOptions,
    ScriptedFaults,
    open_hollow_runtime,
)
from trio_kubelet.rpc import Code, InProcess, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.cache import RuntimeCache
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.config import names
from trio_kubelet.runtime.garbage import collector as collector_module
from trio_kubelet.runtime.garbage.collector import (
    DeadContainerLimits,
    GarbageCollector,
    crowding_pods,
)
from trio_kubelet.runtime.garbage.logs import with_usable_names
from trio_kubelet.runtime.garbage.removal import CONTAINERS_AT_ONCE, ContainerRemover
from trio_kubelet.runtime.health import RuntimeHealth, RuntimeState
from trio_kubelet.runtime.inspection import PodInspector
from trio_kubelet.runtime.node_facts import NodeFacts
from trio_kubelet.runtime.observed import (
    ObservedPod,
)
from trio_kubelet.telemetry import EventRecorder, Journal


@frozen
class Node:
    """A hollow node with one pod, and the collector that works on it."""

    client: RuntimeClient
    cache: RuntimeCache
    remover: ContainerRemover
    collector: GarbageCollector
    runtime_health: RuntimeHealth
    facts: NodeFacts
    wanted: set[str]
    ended: set[str]
    faults: ScriptedFaults
    journal: Journal

    async def sandbox(self, attempt: int = 0, *, stopped: bool = False) -> str:
        config = sandbox_config(attempt)
        sandbox_id = await self.client.run_pod_sandbox(config)
        if stopped:
            await self.client.stop_pod_sandbox(sandbox_id)
        return sandbox_id

    async def container(self, sandbox: str, attempt: int, state: str) -> str:
        """A container in state `R`unning, e`X`ited or `C`reated."""
        config = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name="main", attempt=attempt),
            image=cri.ImageSpec(image="busybox"),
            log_path=f"main/{attempt}.log",
            labels={
                names.POD_UID_LABEL: "uid",
                names.POD_NAME_LABEL: "web",
                names.POD_NAMESPACE_LABEL: "default",
                names.CONTAINER_NAME_LABEL: "main",
            },
        )
        in_sandbox = sandbox_config(0)
        in_sandbox.log_directory = f"{self.facts.configuration.pod_logs_dir}/default_web_uid"
        made = await self.client.create_container(sandbox, config, in_sandbox)
        if state != "C":
            await self.client.start_container(made)
        if state == "X":
            await self.client.stop_container(made, 0)
        await trio.sleep(1)
        return made

    async def look(self) -> ObservedPod:
        return self.cache.put(await PodInspector(client=self.client).inspect(self.cache.get("uid")))

    def log(self, name: str) -> Path:
        file = Path(self.facts.configuration.pod_logs_dir, "default_web_uid", "main", name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        return file

    def unreadable_logs(self) -> Path:
        folder = Path(self.facts.configuration.pod_logs_dir, "default_web_uid", "main")
        folder.parent.mkdir(parents=True)
        folder.symlink_to(folder)
        return folder

    def link(self, name: str, target: Path) -> Path:
        link = Path(self.facts.container_logs_directory, name)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
        os.utime(link, (0, 0), follow_symlinks=False)
        return link

    def links(self) -> Mapping[str, Path]:
        return {each.name: each.readlink() for each in self._links.iterdir()}

    def remove_link(self, name: str) -> None:
        (self._links / name).unlink()

    @property
    def _links(self) -> Path:
        return Path(self.facts.container_logs_directory)


def sandbox_config(attempt: int) -> cri.PodSandboxConfig:
    return cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(
            name="web", namespace="default", uid="uid", attempt=attempt
        ),
        labels={names.POD_UID_LABEL: "uid"},
    )


@asynccontextmanager
async def hollow_node(folder: Path) -> AsyncIterator[Node]:
    clock = TrioClock()
    faults = ScriptedFaults()
    options = HollowOptions(images=("busybox",), behaviours=lambda _: Behaviour(), faults=faults)
    facts = configured(node_facts(), pod_logs_dir=str(folder / "pods"))
    async with open_hollow_runtime(clock, options) as runtime:
        client = RuntimeClient(InProcess(runtime))
        cache, runtime_health, wanted, ended = RuntimeCache(), RuntimeHealth(), {"uid"}, set[str]()
        journal = Journal(clock)
        remover = ContainerRemover(client=client, node=facts)
        collector = GarbageCollector(
            remover=remover,
            inspector=PodInspector(client=client),
            cache=cache,
            wanted=lambda: wanted,
            ended=lambda: ended,
            limits=DeadContainerLimits(per_container=1),
            runtime_health=runtime_health,
            clock=clock,
            recorder=EventRecorder(journal, "node"),
        )
        yield Node(
            client, cache, remover, collector, runtime_health, facts, wanted, ended, faults, journal
        )


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with hollow_node(tmp_path) as node:
        yield node


async def ids(node: Node) -> tuple[Sequence[str], Sequence[str]]:
    """What the runtime and the cache have, which must be the same: sandboxes, containers."""
    known = node.cache.get("uid")
    sandboxes = sorted(s.id for s in await node.client.list_pod_sandboxes())
    containers = sorted(c.id for c in await node.client.list_containers())
    assert sandboxes == sorted(s.id for s in known.sandboxes)
    assert containers == sorted(c.id for c in known.containers)
    return sandboxes, containers


async def test_the_dead_the_never_started_and_the_replaced_go(
    node: Node, autojump_clock: MockClock
) -> None:
    old = await node.sandbox(0)
    await node.container(old, 0, "X")
    await node.container(old, 1, "C")
    await node.client.stop_pod_sandbox(old)
    new = await node.sandbox(1)
    kept = await node.container(new, 2, "X")
    runs = await node.container(new, 3, "R")
    await trio.sleep(100)
    await node.look()
    await node.collector.collect()
    assert await ids(node) == ([new], sorted([kept, runs]))


async def test_pods_that_no_source_has_are_left_to_housekeeping(
    node: Node, autojump_clock: MockClock
) -> None:
    old, new = await node.sandbox(0, stopped=True), await node.sandbox(1)
    await node.look()
    node.wanted.clear()
    await node.collector.collect()
    assert await ids(node) == (sorted([old, new]), [])


async def test_a_pod_that_its_own_task_works_on_is_left_to_the_next_round(
    node: Node, autojump_clock: MockClock
) -> None:
    old, new = await node.sandbox(0, stopped=True), await node.sandbox(1)
    await node.look()
    with node.cache.suspend_inspection("uid"):
        await node.collector.collect()
    assert await ids(node) == (sorted([old, new]), [])
    await node.collector.collect()
    assert await ids(node) == ([new], [])


async def test_who_needs_room_gets_all_that_an_ended_pod_has_left(
    node: Node, autojump_clock: MockClock
) -> None:
    sandbox = await node.sandbox()
    await node.container(sandbox, 0, "X")
    await node.client.stop_pod_sandbox(sandbox)
    log = node.log("0.log")
    await node.look()
    await node.collector.delete_all_unused_containers()
    assert len((await ids(node))[1]) == 1
    node.ended.add("uid")
    await node.collector.collect()
    assert len((await ids(node))[1]) == 1
    await node.collector.delete_all_unused_containers()
    assert await ids(node) == ([], [])
    assert not log.exists()


def ended_pod(namespace: str, number: int, kibibytes: int) -> ObservedPod:
    """A pod that ended, of which one sandbox with annotations of so many kibibytes is left."""
    (sandbox,) = pod(f"{namespace}{number}", "n").sandboxes
    annotations = {"a": "\u00e9" * 512 * kibibytes}
    sandbox = evolve(sandbox, namespace=namespace, created_at=number, annotations=annotations)
    return evolve(pod(sandbox.uid), namespace=namespace, sandboxes=(sandbox,))


def test_ended_pods_make_the_list_of_sandboxes_as_long_as_others_have_room() -> None:
    small = [ended_pod("small", number, 1) for number in range(1000)]
    assert crowding_pods(small) == []
    large = [ended_pod("large", number, 32) for number in range(500)]
    crowding = crowding_pods([*reversed(large), *small])
    assert 400 < len(crowding) < 450
    assert crowding == large[: len(crowding)], "the oldest, and none of the other namespace"
    left = [*large[len(crowding) :], *small]
    assert crowding_pods(left) == []


async def test_an_ended_pod_goes_when_the_list_of_sandboxes_is_long(
    node: Node, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await node.sandbox()
    await node.container(sandbox, 0, "X")
    await node.client.stop_pod_sandbox(sandbox)
    await node.look()
    monkeypatch.setattr(collector_module, "ENDED_PODS_BYTES", 0)
    await node.collector.collect()
    assert (await ids(node))[0] == [sandbox], "it has not ended for good"
    node.ended.add("uid")
    await node.collector.collect()
    assert await ids(node) == ([], [])


async def test_what_of_an_ended_pod_cannot_be_removed_keeps_its_logs_and_nothing_else(
    node: Node, autojump_clock: MockClock
) -> None:
    sandbox = await node.sandbox()
    await node.container(sandbox, 0, "X")
    await node.look()
    log = node.log("0.log")
    node.ended.add("uid")
    node.faults.add("RemoveContainer", CallFault(error=RpcError(Code.UNKNOWN, "busy")))
    await node.collector.delete_all_unused_containers()
    assert log.exists()
    await node.collector.delete_all_unused_containers()
    assert not log.exists()


async def test_a_runtime_that_shows_no_ended_pod_is_an_error_of_the_whole(
    node: Node, autojump_clock: MockClock
) -> None:
    await node.container(await node.sandbox(), 0, "X")
    await node.look()
    node.ended.add("uid")
    node.faults.add("ListContainers", CallFault(error=RpcError(Code.UNKNOWN, "broken")))
    with pytest.raises(CollectionError, match="broken"):
        await node.collector.delete_all_unused_containers()


async def test_what_is_gone_already_is_no_error(node: Node, autojump_clock: MockClock) -> None:
    sandbox = await node.sandbox()
    first = await node.container(sandbox, 0, "X")
    second = await node.container(sandbox, 1, "X")
    await node.look()
    await node.client.remove_container(first)
    await node.collector.collect()
    assert await ids(node) == ([sandbox], [second])


async def test_logs_and_links_follow_their_containers(
    node: Node, autojump_clock: MockClock
) -> None:
    sandbox = await node.sandbox()
    await node.container(sandbox, 0, "X")
    await node.container(sandbox, 1, "X")
    living = await node.container(sandbox, 2, "R")
    logs = {name: node.log(name) for name in ("0.log", "0.log.1.gz", "1.log", "2.log", "notes")}
    gone = node.link("web_default_main-old.log", logs["0.log"])
    kept = node.link("web_default_main-dead.log", logs["1.log"])
    rotated = node.link(f"web_default_main-{living}.log", logs["2.log"])
    logs["2.log"].unlink()
    foreign = node.link("foreign.log", Path("/nowhere/0.log"))
    await node.look()
    await node.collector.collect()
    assert {name for name, file in logs.items() if file.exists()} == {"1.log", "notes"}
    assert not gone.is_symlink()
    assert kept.is_symlink()
    assert rotated.is_symlink()
    assert foreign.is_symlink()


async def test_a_container_that_is_removed_takes_its_logs_and_its_link_along(
    node: Node, autojump_clock: MockClock
) -> None:
    sandbox = await node.sandbox()
    first = await node.container(sandbox, 0, "X")
    second = await node.container(sandbox, 1, "X")
    third = await node.container(sandbox, 2, "X")
    logs = {name: node.log(name) for name in ("0.log", "0.log.1.gz", "1.log", "2.log")}
    for container, name in ((first, "0.log"), (second, "1.log"), (third, "2.log")):
        node.link(f"web_default_main-{container}.log", logs[name])
    observed = await node.look()
    gone = [each for each in observed.containers if each.id != second]
    await node.remover.remove_containers(observed, gone)
    assert [c.id for c in await node.client.list_containers()] == [second]
    assert {name for name, file in logs.items() if file.exists()} == {"1.log", "2.log"}
    kept = {f"web_default_main-{each}.log" for each in (second, third)}
    assert node.links().keys() == kept, "the newest log stays: restarts are counted by it"


async def test_what_cannot_be_removed_keeps_none_of_the_others(
    node: Node, autojump_clock: MockClock
) -> None:
    sandbox = await node.sandbox()
    first = await node.container(sandbox, 0, "X")
    second = await node.container(sandbox, 1, "X")
    observed = await node.look()
    node.faults.add("RemoveContainer", CallFault(error=RpcError(Code.UNKNOWN, "busy")))
    with pytest.raises(RpcError, match="busy"):
        await node.remover.remove_containers(observed, observed.containers)
    left = [c.id for c in await node.client.list_containers()]
    assert len(left) == 1
    assert left[0] in (first, second)


async def test_hundreds_of_containers_of_a_pod_are_removed_a_few_at_a_time(
    node: Node, autojump_clock: MockClock
) -> None:
    sandbox = await node.sandbox()
    for attempt in range(3 * CONTAINERS_AT_ONCE):
        await node.container(sandbox, attempt, "X")
    observed = await node.look()
    for _ in observed.containers:
        node.faults.add("RemoveContainer", CallFault(delay_seconds=1))
    began = trio.current_time()
    await node.remover.remove_pod(observed)
    assert trio.current_time() - began == 3
    assert not await node.client.list_containers()


async def test_links_that_an_earlier_agent_did_not_make_are_made_at_the_start(
    node: Node, autojump_clock: MockClock
) -> None:
    sandbox = await node.sandbox()
    container = await node.container(sandbox, 0, "R")
    await node.container(sandbox, 1, "R")  # Its log is away: it is rotated just now.
    log = node.log("0.log")
    await node.look()
    node.runtime_health.update(RuntimeState(up=True, network_ready=True))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.collector.run)
        await trio.sleep(1)
        links = node.links()
        assert links == {f"web_default_main-{container}.log": log}
        for link in links:
            node.remove_link(link)
        await trio.sleep(61)
        assert node.links() == links
        nursery.cancel_scope.cancel()


async def test_it_runs_once_a_minute_and_waits_for_the_runtime(
    node: Node, autojump_clock: MockClock
) -> None:
    old, new = await node.sandbox(0, stopped=True), await node.sandbox(1)
    await node.look()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.collector.run)
        await trio.sleep(600)
        assert await ids(node) == (sorted([old, new]), [])
        node.runtime_health.update(RuntimeState(up=True, network_ready=True))
        await trio.sleep(61)
        assert await ids(node) == ([new], [])
        await node.container(new, 0, "X")
        await node.container(new, 1, "X")
        await node.look()
        await trio.sleep(61)
        assert len((await ids(node))[1]) == 1
        nursery.cancel_scope.cancel()


async def told_of_a_round(node: Node) -> list[tuple[str, str]]:
    """The node's events of the first whole round, after that of a start."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.collector.run)
        node.runtime_health.update(RuntimeState(up=True, network_ready=True))
        await trio.sleep(30)
        before = len(list(node.journal.entries("node")))
        await trio.sleep(31)
        nursery.cancel_scope.cancel()
    return [(entry.event, entry.cause) for entry in node.journal.entries("node")][before:]


async def test_a_round_that_cannot_ask_the_runtime_is_told_of(
    node: Node, autojump_clock: MockClock
) -> None:
    old, new = await node.sandbox(0, stopped=True), await node.sandbox(1)
    await node.look()
    node.faults.add("ListPodSandbox", CallFault(error=RpcError(Code.UNKNOWN, "database is locked")))
    assert await told_of_a_round(node) == [("ContainerGCFailed", "UNKNOWN: database is locked")]
    assert await ids(node) == (sorted([old, new]), [])
    assert await told_of_a_round(node) == []
    assert await ids(node) == ([new], [])


async def test_a_folder_of_logs_that_cannot_be_read_is_told_of_and_keeps_no_others(
    node: Node, autojump_clock: MockClock
) -> None:
    sandbox = await node.sandbox()
    await node.container(sandbox, 0, "X")
    folder = node.unreadable_logs()
    gone = node.link("web_default_main-old.log", folder / "0.log")
    await node.look()
    ((reason, message),) = await told_of_a_round(node)
    assert reason == "ContainerGCFailed"
    assert str(folder) in message
    assert not gone.is_symlink()


async def test_a_bug_of_a_round_is_told_of_and_ends_nothing(
    node: Node, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr(node.collector, "_wanted", broken)
    assert await told_of_a_round(node) == [("ContainerGCFailed", "no such thing")]


async def test_what_cannot_be_removed_is_no_failure_of_the_round(
    node: Node, autojump_clock: MockClock
) -> None:
    sandbox = await node.sandbox()
    await node.container(sandbox, 0, "X")
    await node.container(sandbox, 1, "X")
    await node.look()
    node.faults.add("RemoveContainer", CallFault(error=RpcError(Code.UNKNOWN, "busy")))
    assert await told_of_a_round(node) == []


def test_names_that_lead_elsewhere_are_part_of_no_path() -> None:
    good = pod(a="X", b="R")
    odd = evolve(good.containers[0], name="../../etc")
    others = [
        evolve(odd, name="a", id="x/y"),
        evolve(odd, name="a", log_path="/var/log/pods/a\0b"),
    ]
    mixed = evolve(good, containers=(odd, *others, *good.containers))
    somebodys = [evolve(good, name="../up"), evolve(good, namespace="")]
    assert with_usable_names([mixed, *somebodys]) == (good,)
