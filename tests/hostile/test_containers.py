"""What containers that end at once, and dead ones that are left, do to nobody else."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lab.agent import Json, LabAgent, is_running, pod_manifest
from tests.hostile.served_runtime import CRASHING, make_dead_containers, served_runtime
from tests.hostile.victims import Victims

CONTAINERS = 100
RESTARTS = 1
DEADLINE_SECONDS = 600
DEAD_CONTAINERS = 2000
"""At the agent's start, and as many more while it runs."""


@pytest.fixture(scope="module")
def victims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victims]:
    folder = tmp_path_factory.mktemp("containers")
    with (
        served_runtime(has_events=True) as runtime,
        LabAgent(folder, endpoint=f"unix://{runtime.socket}") as agent,
    ):
        yield Victims.of(agent, {"name": "c", "image": "good"})


def crashing(name: str, count: int) -> Json:
    """A pod whose containers all end at once, with a message as long as one may be."""
    each = {"image": CRASHING, "imagePullPolicy": "IfNotPresent"}
    return pod_manifest(name, *({"name": f"c{n}", **each} for n in range(count)))


def restarts(name: str, pods: dict[str, Json]) -> int:
    """How often the containers of a pod were restarted together, in rounds of all."""
    found = [pod["status"] for full, pod in pods.items() if full.startswith(f"{name}-")]
    counts = [
        each["restartCount"] for status in found for each in status.get("containerStatuses", ())
    ]
    return min(counts, default=0)


@pytest.mark.parametrize("pods", [1, 10])
def test_many_containers_that_end_at_once_again_and_again(victims: Victims, pods: int) -> None:
    names = [f"hostile-{number}" for number in range(pods)]
    with victims.undisturbed():
        for name in names:
            victims.agent.write(f"{name}.json", crashing(name, CONTAINERS // pods))
        victims.agent.wait_for(
            lambda found: all(restarts(name, found) >= RESTARTS for name in names),
            deadline_seconds=DEADLINE_SECONDS,
        )
        for name in names:
            victims.agent.remove(f"{name}.json")
    victims.agent.wait_for(
        lambda found: not any(name.startswith("hostile") for name in found),
        deadline_seconds=DEADLINE_SECONDS,
    )


def test_thousands_of_dead_containers_in_the_lists_of_the_runtime(tmp_path: Path) -> None:
    """Those of no pod stay, those of pods that nobody knows are removed.

    A runtime without events is asked for its lists each second.
    """
    fill = partial(make_dead_containers, count=DEAD_CONTAINERS)
    with served_runtime(has_events=False) as runtime:
        runtime.do(partial(fill, prefix="before", of_pods=False))
        with LabAgent(tmp_path, endpoint=f"unix://{runtime.socket}") as agent:
            victims = Victims.of(agent, {"name": "c", "image": "good"})
            with victims.undisturbed():
                runtime.do(partial(fill, prefix="meanwhile", of_pods=True))
                victims.wait_relist(DEADLINE_SECONDS)


def test_the_end_of_hundreds_of_containers_with_hooks(victims: Victims) -> None:
    hook = {"preStop": {"exec": {"command": ["true"]}}}
    one = {"image": "one", "imagePullPolicy": "IfNotPresent", "lifecycle": hook}
    manifest = pod_manifest("hostile", *({"name": f"c{n}", **one} for n in range(250)))
    with victims.undisturbed():
        victims.agent.write("attack.yaml", manifest)
        victims.wait_pod("hostile", is_running)
        victims.agent.remove("attack.yaml")
        victims.agent.wait_for(lambda pods: not any(name.startswith("hostile") for name in pods))
