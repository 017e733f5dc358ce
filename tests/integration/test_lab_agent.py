"""The end of the lab's agent: its pods go, and what went wrong before is what is told."""

from pathlib import Path

import pytest

from lab.agent import LabAgent, is_running, pod_manifest

POD = pod_manifest("web", {"name": "main", "image": "busybox", "command": ["sleep", "1000"]})


def fail_with_a_killed_agent(agent: LabAgent, **settings: object) -> None:
    """A test that fails between two agents; `settings` are what the second would start with."""
    with agent:
        agent.write("web.json", POD)
        agent.wait_for(lambda pods: bool(pods) and all(map(is_running, pods.values())))
        agent.kill()
        agent.settings.update(settings)
        raise ZeroDivisionError


def test_an_agent_that_was_killed_is_started_again_to_take_its_pods_away(tmp_path: Path) -> None:
    agent = LabAgent(tmp_path / "node")
    with pytest.raises(ZeroDivisionError) as raised:
        fail_with_a_killed_agent(agent)
    assert not list((agent.root / "pods").iterdir())
    assert not hasattr(raised.value, "__notes__")


def test_an_agent_that_cannot_be_ended_well_does_not_hide_what_went_wrong(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        fail_with_a_killed_agent(LabAgent(tmp_path / "node"), maxPods=-1)
    (note,) = raised.value.__notes__
    assert note.startswith("And then: the agent does not run: ")
