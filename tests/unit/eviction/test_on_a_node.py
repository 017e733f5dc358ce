"""Evictions on a whole node of a cluster: what the API shows of the pods that go."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from betterproto import Message
from trio.testing import MockClock

from tests.apiserver.faults import RequestFault
from tests.unit.sync.admission.test_on_a_node import OneNode, make_pod, one_node
from trio_kubelet.eviction.pressure_record import FILE
from trio_kubelet.hollow import CallFault, ScriptedFaults
from trio_kubelet.k8s import EVENTS, NODES, NodeCondition, Pod
from trio_kubelet.stats import CgroupReader

NEVER_ENOUGH: dict[str, Any] = {
    "max_pods": 9,
    "eviction_hard": {},
    "eviction_soft": {"memory.available": "99.9%"},
    "eviction_soft_grace_period": {"memory.available": "0s"},
}
"""A threshold that this machine has crossed, whatever runs on it: as soft ones may be."""

ENOUGH: dict[str, Any] = {"max_pods": 9, "eviction_hard": {}}
MESSAGE = "The node was low on resource: memory. Threshold quantity: "


def asking(name: str, request: str, **spec: Any) -> Pod:
    """A pod that uses 8 MiB, and asks for so much."""
    resources = {"requests": {"memory": request}}
    container = {"name": "c", "image": "busybox", "resources": resources}
    return make_pod(name, containers=[container], **spec)


async def sees(condition: Callable[[], object]) -> None:
    """Wait for something that is not in the API."""
    with trio.fail_after(120):
        while not condition():  # noqa: ASYNC110 - files and a runtime
            await trio.sleep(0.1)


async def get_json(socket: Path, path: str) -> Any:
    """What an agent answers on its socket."""
    transport = httpx.AsyncHTTPTransport(uds=str(socket))
    async with httpx.AsyncClient(transport=transport, base_url="http://agent") as client:
        return (await client.get(path)).json()


def phase(node: OneNode, name: str) -> str:
    return node.status(name).phase


async def test_the_pods_that_go_say_why_and_critical_ones_stay(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with one_node(tmp_path) as node:
        async with node.agent(**ENOUGH):
            await node.run(asking("within", "64Mi"))
            await node.run(asking("above", "1Mi"))
            await node.run(asking("critical", "1Mi", priority=2_000_001_000))
        async with node.agent(**NEVER_ENOUGH):
            status = await node.becomes("above", "Failed")
            assert phase(node, "within") == "Running"
            assert status.reason == "Evicted"
            assert status.message.startswith(MESSAGE)
            assert status.message.endswith(
                "Container c was using 8Mi, request is 1Mi, has larger consumption of memory. "
            )
            disruption = next(c for c in status.conditions if c.type == "DisruptionTarget")
            assert (disruption.status, disruption.reason, disruption.message) == (
                "True",
                "TerminationByKubelet",
                status.message,
            )
            assert await node.hears("above", "Evicted") == status.message
            (event,) = [e for e in node.server.all(EVENTS) if e.reason == "Evicted"]
            assert event.metadata.annotations["starved_resource"] == "memory"
            assert event.metadata.annotations["offending_containers"] == "c"
            later = await node.becomes("within", "Failed")
            assert later.reason == "Evicted"
            assert "Container" not in later.message
            await trio.sleep(120)
            assert phase(node, "critical") == "Running"
            shown = node.server.get(NODES, "here").status.conditions
            assert {c.type: c.status for c in shown}["MemoryPressure"] == "True"
            told = await get_json(tmp_path / "kubelet/agent.sock", "/debug/evictions")
            assert [each["name"] for each in told["evictions"]] == ["within", "above"]
            assert "memory.available" in {each["signal"] for each in told["signals"]}
        names = {each.config.metadata.name for each in node.runtime.sandboxes}
        assert names == {"critical"}


@pytest.mark.parametrize(
    "held", ["StopContainer", "StopPodSandbox", "RemovePodSandbox", "the status"]
)
async def test_the_next_agent_finishes_what_a_killed_one_began(
    held: str, autojump_clock: MockClock, tmp_path: Path
) -> None:
    """The pod says that it was evicted, not how its container ended, and does not start anew.

    The first agent has recorded its decision, and comes as far as the step that is held.
    """
    faults, reached = ScriptedFaults(), trio.Event()

    def hold(rpc: str, request: Message) -> CallFault:
        if rpc == held:
            reached.set()
        return faults(rpc, request)

    async with one_node(tmp_path, hold) as node:
        async with node.agent(**ENOUGH):
            await node.run(asking("victim", "1Mi"))
        refused = RequestFault(verb="patch", resource="pods", code=500)
        node.server.faults.rules.append(refused)
        faults.add(held, CallFault(delay_seconds=1e6))
        records = tmp_path / "kubelet/evictions.json"
        async with node.agent(**NEVER_ENOUGH):
            if held == "the status":
                await sees(lambda: not list(node.runtime.sandboxes))
            else:
                await reached.wait()
            assert '"is_open": true' in await trio.Path(records).read_text()
        assert phase(node, "victim") == "Running"
        node.server.faults.rules.remove(refused)
        async with node.agent(**ENOUGH):
            status = await node.becomes("victim", "Failed")
            assert status.reason == "Evicted"
            assert status.message.startswith(MESSAGE)
            assert await node.hears("victim", "Evicted") == status.message
            assert any(c.type == "DisruptionTarget" for c in status.conditions)
            await sees(lambda: not list(node.runtime.sandboxes))
            await sees(lambda: '"is_open": false' in records.read_text())


async def test_the_next_agent_clears_away_what_an_evicted_pod_has_left_though_its_end_is_told(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """The first agent is killed after the last status, while it removes containers."""
    records, faults = tmp_path / "kubelet/evictions.json", ScriptedFaults()
    async with one_node(tmp_path, faults) as node:
        async with node.agent(**ENOUGH):
            await node.run(asking("victim", "1Mi"))
        faults.add("RemovePodSandbox", CallFault(delay_seconds=1e6))
        async with node.agent(**NEVER_ENOUGH):
            before = await node.becomes("victim", "Failed")
            await trio.sleep(60)
            assert '"is_open": true' in await trio.Path(records).read_text()
        assert list(node.runtime.sandboxes)
        async with node.agent(**ENOUGH):
            await sees(lambda: '"is_open": false' in records.read_text())
            assert not list(node.runtime.sandboxes)
            assert node.status("victim") == before


async def test_nobody_measures_a_node_that_has_enough_but_in_its_rhythm(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an hour of the whole agent: the node every ten seconds, its pods never."""
    measured: dict[str, list[float]] = {"read_node": [], "read": []}
    for name, times in measured.items():
        monkeypatch.setattr(CgroupReader, name, noting(getattr(CgroupReader, name), times))
    use_memory(tmp_path / "machine/proc/meminfo", percent=10)
    fields: dict[str, Any] = {
        "machine": str(tmp_path / "machine"),
        "eviction_hard": {"memory.available": "100Mi"},
    }
    async with one_node(tmp_path) as node, node.agent(**fields):
        await node.run(asking("web", "64Mi"))
        await trio.sleep(3600)
    assert len(measured["read_node"]) > 300
    assert min(later - earlier for earlier, later in pairwise(measured["read_node"])) >= 10
    assert measured["read"] == []


def noting(function: Callable[..., Any], times: list[float]) -> Callable[..., Any]:
    """The same function, whose calls are noted."""

    def call(*args: Any, **kwargs: Any) -> Any:
        times.append(trio.current_time())
        return function(*args, **kwargs)

    return call


def memory_pressure(node: OneNode) -> NodeCondition:
    """The condition as the API shows it."""
    conditions = node.server.get(NODES, "here").status.conditions
    return next(each for each in conditions if each.type == "MemoryPressure")


async def test_a_condition_lasts_and_keeps_its_transition_time_over_a_restart(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Memory is short while the first agent runs, and there is enough when the next one looks."""
    memory_file = tmp_path / "machine/proc/meminfo"
    fields: dict[str, Any] = {
        "machine": str(tmp_path / "machine"),
        "eviction_hard": {"memory.available": "50%"},
    }
    use_memory(memory_file, percent=90)
    async with one_node(tmp_path) as node:
        async with node.agent(**fields):
            await node.server.until(lambda: memory_pressure(node).status == "True")
            before = memory_pressure(node)
            await sees((tmp_path / "kubelet" / FILE).exists)
        use_memory(memory_file, percent=10)
        await trio.sleep(10)
        async with node.agent(**fields):
            await trio.sleep(270)
            after = memory_pressure(node)
            assert after.status == "True"
            assert after.last_transition_time == before.last_transition_time
            await node.server.until(lambda: memory_pressure(node).status == "False")


def use_memory(file: Path, *, percent: int) -> None:
    """Let so much of the 100 GB of a machine's memory be used from now on."""
    file.parent.mkdir(parents=True, exist_ok=True)
    free = 1_000_000 * (100 - percent)
    file.write_text(f"MemTotal: 100000000 kB\nMemFree: {free} kB\nInactive(file): 0 kB\n")
