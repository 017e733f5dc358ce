"""A running agent that is told to read its configuration anew, and by mischief, a hundred times."""

import json
import os
import signal
from itertools import count
from pathlib import Path
from time import monotonic

from lab.agent import Json, LabAgent, is_running, pod_manifest
from lab.processes import wait_until

DEADLINE_SECONDS = 60
STORM_SECONDS = float(os.environ.get("TRIO_KUBELET_RELOAD_SECONDS", "10"))
BROKEN = ("{", "", "maxPods: [", '{"kind": "Pod"}', '{"maxPods": -1}', "\0", "[]")
PODS = 5


def pod(name: str) -> Json:
    return pod_manifest(name, {"name": "main", "image": "busybox", "command": ["sleep", "1000"]})


def says(agent: LabAgent, words: str, times: int = 1) -> None:
    """Wait until the agent's log has these words so many times."""
    wait_until(
        lambda: agent.log.read_text().count(words) >= times,
        deadline_seconds=DEADLINE_SECONDS,
        else_say=agent.last_words,
    )


def reload(agent: LabAgent, text: str) -> None:
    (agent.folder / "config.json").write_text(text)
    os.kill(agent.pid, signal.SIGHUP)


def containers(pods: dict[str, Json]) -> dict[str, tuple[str, int]]:
    """Id and restarts of the container of each pod that stays."""
    return {
        name: (status["containerID"], status["restartCount"])
        for name, each in pods.items()
        if name.startswith("stays")
        for status in each["status"]["containerStatuses"]
    }


def test_an_agent_takes_over_what_it_can_and_names_the_rest(tmp_path: Path) -> None:
    with LabAgent(tmp_path / "node") as agent:
        agent.write("web.json", pod("stays-web"))
        before = containers(agent.wait_for(lambda pods: any(map(is_running, pods.values()))))
        new = {**agent.configuration, "registryBurst": 20, "maxPods": 20, "cgroupRoot": "/other"}
        reload(agent, json.dumps(new))
        says(agent, "on a drained node")
        log = agent.log.read_text()
        assert "registryBurst: 10 -> 20" in log
        assert "maxPods: 110 -> 20" in log
        reload(agent, "{")
        says(agent, "configuration reload failed, keeping the previous settings")
        assert containers(agent.pods()) == before


def test_a_storm_of_reloads_disturbs_no_pod(tmp_path: Path) -> None:
    """Each tenth of a second another file, good or broken, while pods come and go."""
    with LabAgent(tmp_path / "node") as agent:
        for number in range(PODS):
            agent.write(f"stays-{number}.json", pod(f"stays-{number}"))
        before = containers(
            agent.wait_for(lambda pods: len(pods) == PODS and all(map(is_running, pods.values())))
        )
        good, end = agent.configuration, monotonic() + STORM_SECONDS
        for number in count():
            reload(agent, BROKEN[number % len(BROKEN)])
            agent.write("goes.json", pod(f"goes-{number}"))
            agent.pods()
            reload(agent, json.dumps({**good, "registryBurst": 100 + number}))
            agent.pods()
            if monotonic() > end:
                break
        says(agent, f"-> {100 + number}")
        agent.remove("goes.json")
        after = agent.wait_for(lambda pods: len(pods) == PODS)
        assert containers(after) == before
