"""The runtime is not there, goes away, or has no network: the agent waits and goes on.

Each test has an agent of its own, and leaves the runtime as it found it.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.agent import LabAgent, is_running, pod_manifest
from lab.containerd import Containerd
from lab.processes import alive, wait_until
from tests.integration.pods import (
    Node,
    container_ids,
    full_name,
    phase,
    status_of,
    until_term,
    waiting_reason,
)


@pytest.fixture
def agent(containerd: Containerd, tmp_path: Path) -> Iterator[LabAgent]:
    """An agent that is not started yet; at the end the runtime is back and no pod is left."""
    agent = LabAgent(tmp_path / "node", endpoint=containerd.endpoint)
    try:
        yield agent
    finally:
        agent.end()


@pytest.fixture
def runtime(containerd: Containerd) -> Iterator[Containerd]:
    """The runtime, which a test may end; it is there again afterwards."""
    yield containerd
    if containerd.pid is None:
        containerd.restart()


@pytest.fixture
def without_network(containerd: Containerd, tmp_path: Path) -> Iterator[Path]:
    """A runtime that has no network; it comes back when the returned file is written.

    Written and not moved there: containerd overlooks a file that appears whole.
    """
    (configuration,) = (containerd.folder / "network").glob("*.conflist")
    hidden = configuration.rename(tmp_path / configuration.name)
    containerd.restart()
    yield configuration
    configuration.write_text(hidden.read_text())
    containerd.restart()


def wait_for_log(agent: LabAgent, text: str) -> None:
    wait_until(
        lambda: text in agent.log.read_text(),
        deadline_seconds=60,
        else_say=lambda: f"{text!r} is not in the log; {agent.last_words()}",
    )


def test_an_agent_waits_for_a_runtime_that_is_not_there_yet(
    agent: LabAgent, runtime: Containerd
) -> None:
    runtime.kill()
    agent.write("early.json", pod_manifest("early", until_term("c")))
    agent.launch()
    wait_for_log(agent, "waiting for the container runtime")
    assert alive(agent.pid)
    runtime.restart()
    pods = agent.wait_for(
        lambda pods: full_name("early") in pods and is_running(pods[full_name("early")])
    )
    assert status_of(pods[full_name("early")], "c")["restartCount"] == 0


def test_pods_outlive_their_runtime_and_new_ones_start_when_it_is_back(
    agent: LabAgent, runtime: Containerd
) -> None:
    node = Node(agent=agent, containerd=runtime)
    agent.start()
    before = node.run(pod_manifest("stays", until_term("c")))
    runtime.kill()
    wait_for_log(agent, "up=False")
    node.add(pod_manifest("late", until_term("c")))
    runtime.restart()
    node.wait("late", is_running)
    after = node.wait("stays", is_running)
    assert container_ids(after) == container_ids(before)
    assert status_of(after, "c")["restartCount"] == 0


def test_a_pod_that_was_to_go_while_the_runtime_was_away_goes(
    agent: LabAgent, runtime: Containerd
) -> None:
    node = Node(agent=agent, containerd=runtime)
    agent.start()
    pod = node.run(pod_manifest("goes", until_term("c")))
    runtime.kill()
    node.remove("goes")
    runtime.restart()
    node.wait_gone("goes")
    assert node.sandboxes(pod["metadata"]["uid"]) == []


def test_without_a_network_only_pods_on_the_hosts_network_start(
    agent: LabAgent, containerd: Containerd, without_network: Path, tmp_path: Path
) -> None:
    node = Node(agent=agent, containerd=containerd)
    agent.start()
    node.add(
        pod_manifest("needs-network", until_term("c")),
        pod_manifest("on-the-host", until_term("c"), hostNetwork=True),
    )
    node.wait("on-the-host", is_running)
    pod = node.wait(
        "needs-network",
        lambda _: any(reason == "NetworkNotReady" for reason, _ in node.events("needs-network")),
    )
    words = "network is not ready: container runtime network not ready: NetworkReady=false reason:"
    assert all(
        message.startswith(words)
        for reason, message in node.events("needs-network")
        if reason == "NetworkNotReady"
    )
    assert phase(pod) == "Pending"
    assert waiting_reason(pod, "c") == "ContainerCreating"
    assert node.sandboxes(pod["metadata"]["uid"]) == []
    without_network.write_text((tmp_path / without_network.name).read_text())
    node.wait("needs-network", is_running)
