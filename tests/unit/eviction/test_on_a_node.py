"""Evictions on a whole node of a cluster: what the API shows of the pods that go."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from trio.testing import MockClock

from tests.apiserver.faults import RequestFault
from tests.unit.sync.admission.test_on_a_node import OneNode, make_pod, one_node
from trio_kubelet.k8s import EVENTS, NODES, Pod

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


@pytest.mark.parametrize("seen", ["decided", "gone"])
async def test_the_next_agent_finishes_what_a_killed_one_began(
    seen: str, autojump_clock: MockClock, tmp_path: Path
) -> None:
    """The pod says that it was evicted, not how its container ended, and does not start anew."""
    async with one_node(tmp_path) as node:
        async with node.agent(**ENOUGH):
            await node.run(asking("victim", "1Mi"))
        refused = RequestFault(verb="patch", resource="pods", code=500)
        node.server.faults.rules.append(refused)
        records = tmp_path / "kubelet/evictions.json"
        async with node.agent(**NEVER_ENOUGH):
            happened = (
                records.exists if seen == "decided" else lambda: not list(node.runtime.sandboxes)
            )
            await sees(happened)
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
