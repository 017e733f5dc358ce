"""What the attackers find: a real agent with the hollow runtime, ten good pods, the node's port.

Each attack is a test of its own. That of a pod puts a manifest beside those of the good pods, and
waits until the agent has said what it makes of it; that of a client opens connections to the node's
port.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.agent import LabAgent
from tests.hostile.node_port import NodePort
from tests.hostile.victims import Victims


def log_of(agent: LabAgent, name: str) -> tuple[Path, str]:
    """A pod's log, and its path at the port; what writes it elsewhere is the runtime's shim."""
    meta = next(pod["metadata"] for full, pod in agent.pods().items() if full.startswith(name))
    folder = agent.pod_logs / f"default_{meta['name']}_{meta['uid']}" / "c"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "0.log"
    file.write_text("2026-01-31T12:00:00.000000000Z stdout F said\n")
    return file, f"/containerLogs/default/{meta['name']}/c"


@pytest.fixture(scope="session")
def node_port(tmp_path_factory: pytest.TempPathFactory) -> NodePort:
    """The port of the agent that the victims run on."""
    return NodePort(tmp_path_factory.mktemp("port"))


@pytest.fixture(scope="session")
def victims(node_port: NodePort, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victims]:
    """Ten good pods on the hollow runtime."""
    folder: Path = tmp_path_factory.mktemp("hostile")
    settings = {**node_port.settings, "featureGates": {"PodsAPI": True}}
    with LabAgent(folder, endpoint="", settings=settings) as agent:
        yield Victims.of(agent, {"name": "c", "image": "good"})
