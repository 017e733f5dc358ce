"""kill -9, again and again, in the middle of a churn of pods: of the agent, then of the runtime.

Pods that stay must not notice: the same containers run, with the same restart counts. Pods that
go must go wholly, whoever was killed while they went.
"""

import json
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
import trio

from lab.agent import Json, LabAgent, is_running, pod_manifest
from lab.containerd import Containerd
from lab.host import cgroups_named
from lab.images import BUSYBOX, SLEEPER
from lab.processes import wait_until
from trio_kubelet.rpc import Channel, open_rpc_loop
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.config.names import POD_UID_LABEL

STAYING = 4
SETTLE_SECONDS = 30
SEED = int(os.environ.get("TRIO_KUBELET_SEED", "0")) or random.SystemRandom().randrange(2**32)


@pytest.fixture
def agent(containerd: Containerd, tmp_path: Path) -> Iterator[LabAgent]:
    with LabAgent(tmp_path / "node", endpoint=containerd.endpoint) as agent:
        yield agent


def staying_pod(number: int) -> Json:
    """A pod that stays: with a volume, an init container, and two containers that run."""
    mount = {"name": "data", "mountPath": "/data"}
    return pod_manifest(
        f"stay-{number}",
        {"name": "first", "image": SLEEPER, "volumeMounts": [mount]},
        {"name": "second", "image": SLEEPER},
        initContainers=[
            {
                "name": "init",
                "image": BUSYBOX,
                "command": ["sh", "-c", "echo once >> /data/runs"],
                "volumeMounts": [mount],
            }
        ],
        volumes=[{"name": "data", "emptyDir": {}}],
    )


def passing_pod(name: str, restart_policy: str) -> Json:
    """A pod that comes and goes, and obeys at once."""
    volumes = [{"name": "memory", "emptyDir": {"medium": "Memory"}}]
    mount = {"name": "memory", "mountPath": "/memory"}
    return pod_manifest(
        name,
        {"name": "c", "image": SLEEPER, "volumeMounts": [mount]},
        volumes=volumes,
        restartPolicy=restart_policy,
        terminationGracePeriodSeconds=2,
    )


class Churn:
    """Adds and removes pods in a thread of its own until it is stopped."""

    def __init__(self, agent: LabAgent, chance: random.Random) -> None:
        self._agent = agent
        self._chance = chance
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.present: set[str] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._over.wait(self._chance.uniform(0.05, 0.4)):
            if self.present and (len(self.present) > 5 or self._chance.random() < 0.5):
                name = self._chance.choice(sorted(self.present))
                self.present.discard(name)
                self._agent.remove(name)
            else:
                number += 1
                name = f"pass-{number}"
                policy = self._chance.choice(("Always", "Never"))
                self._agent.write(name, passing_pod(name, policy))
                self.present.add(name)


def running_containers(containerd: Containerd) -> dict[str, str]:
    """Ids of containers in containerd → their tasks' states."""
    lines = containerd.ctr("tasks", "list").splitlines()[1:]
    return {words[0]: words[2] for words in (line.split() for line in lines) if len(words) > 2}


def identities(pods: dict[str, Json]) -> dict[str, tuple[tuple[str, str, int], ...]]:
    """Name, id and restart count of every container of the pods that stay."""
    return {
        name: tuple(
            (each["name"], each.get("containerID", ""), each["restartCount"])
            for each in (
                *pod["status"].get("initContainerStatuses", ()),
                *pod["status"]["containerStatuses"],
            )
        )
        for name, pod in pods.items()
        if name.startswith("stay-")
    }


def restarted(pods: dict[str, Json]) -> dict[str, Json]:
    """The pods that count a restart. A start that was cut off is none."""
    return {
        name: pod["status"]
        for name, pod in pods.items()
        if any(each["restartCount"] for each in pod["status"]["containerStatuses"])
    }


def all_stay(pods: dict[str, Json]) -> bool:
    staying = [pod for name, pod in pods.items() if name.startswith("stay-")]
    return len(staying) == STAYING and all(map(is_running, staying))


def leftovers(agent: LabAgent) -> dict[str, set[str]]:
    """What there is on the node of pods, by their UIDs, place by place."""
    folders = agent.root / "pods"
    kubepods = cgroups_named(f"{agent.cgroup_root}/kubepods")
    return {
        "folders": {each.name for each in folders.iterdir()},
        "logs": {each.name.rpartition("_")[2] for each in agent.pod_logs.iterdir()},
        "cgroups": {
            each.name.removeprefix("pod")
            for folder in kubepods
            for each in folder.glob("**/pod*")
            if each.is_dir()
        },
        "mounts": {
            part
            for line in Path("/proc/self/mountinfo").read_text().splitlines()
            if str(folders) in line
            for part in [line.split(str(folders) + "/")[1].split("/")[0]]
        },
    }


def in_runtime(containerd: Containerd) -> set[str]:
    """The UIDs of the pods that containerd tells kubelets of, or that something runs of.

    A record that containerd keeps to itself does not count: when the agent is killed while a
    sandbox starts, it may forget the sandbox and keep the record until it is started again.
    """
    tasks = (line.split() for line in containerd.ctr("tasks", "list").splitlines()[1:])
    running = {
        json.loads(containerd.ctr("containers", "info", words[0]))["Labels"][POD_UID_LABEL]
        for words in tasks
        if words[2] != "STOPPED"
    }
    return running | trio.run(_listed, containerd.endpoint)


async def _listed(endpoint: str) -> set[str]:
    async with open_rpc_loop():
        client = RuntimeClient(Channel(endpoint))
        sandboxes, containers = await client.list_pod_sandboxes(), await client.list_containers()
        return {each.metadata.uid for each in sandboxes} | {
            each.labels[POD_UID_LABEL] for each in containers
        }


def agrees(agent: LabAgent, containerd: Containerd, expected: set[str]) -> str:
    """Why node and manifests do not agree, empty if they do. `expected` are names of pods."""
    pods = agent.pods()
    names = {name.removesuffix(f"-{os.uname().nodename.lower()}") for name in pods}
    if names != expected:
        return f"pods are {sorted(names)}, manifests {sorted(expected)}"
    if not all(map(is_running, pods.values())):
        return "not all pods run"
    uids = {pod["metadata"]["uid"] for pod in pods.values()}
    for place, found in leftovers(agent).items():
        if found - uids:
            return f"{place} are left of {sorted(found - uids)}"
        # Each pod has one of each but of mounts: a search that finds none would find no leftover.
        if place != "mounts" and uids - found:
            return f"{sorted(uids - found)} have no {place}"
    if (present := in_runtime(containerd)) != uids:
        return f"the runtime has pods {sorted(present)}, wanted {sorted(uids)}"
    return ""


def wait_until_agreed(agent: LabAgent, containerd: Containerd, expected: set[str]) -> None:
    why = ""

    def agreed() -> bool:
        nonlocal why
        try:
            why = agrees(agent, containerd, expected)
        except OSError as error:
            why = f"looked while it changed: {error}"
        return not why

    wait_until(
        agreed,
        deadline_seconds=SETTLE_SECONDS,
        else_say=lambda: f"seed {SEED}: {why}; {agent.last_words()}",
    )


def start_staying(agent: LabAgent) -> dict[str, tuple[tuple[str, str, int], ...]]:
    for number in range(STAYING):
        agent.write(f"stay-{number}", staying_pod(number))
    return identities(agent.wait_for(all_stay))


def test_an_agent_that_is_killed_thirty_times_restarts_no_container(
    agent: LabAgent, containerd: Containerd
) -> None:
    chance = random.Random(SEED)
    before = start_staying(agent)
    with Churn(agent, chance) as churn:
        for _ in range(30):
            time.sleep(chance.uniform(0.05, 1.5))
            agent.kill()
            agent.start()
            pods = agent.wait_for(all_stay, deadline_seconds=SETTLE_SECONDS)
            assert identities(pods) == before, f"seed {SEED}"
    expected = churn.present | {f"stay-{number}" for number in range(STAYING)}
    wait_until_agreed(agent, containerd, expected)
    assert not restarted(agent.pods()), f"seed {SEED}"


def test_a_runtime_that_is_killed_ten_times_restarts_no_container(
    agent: LabAgent, containerd: Containerd
) -> None:
    chance = random.Random(SEED)
    before = start_staying(agent)
    with Churn(agent, chance) as churn:
        for _ in range(10):
            time.sleep(chance.uniform(0.2, 2))
            containerd.kill()
            time.sleep(chance.uniform(0, 1))
            containerd.restart()
            pods = agent.wait_for(all_stay, deadline_seconds=SETTLE_SECONDS)
            assert identities(pods) == before, f"seed {SEED}"
    expected = churn.present | {f"stay-{number}" for number in range(STAYING)}
    wait_until_agreed(agent, containerd, expected)
