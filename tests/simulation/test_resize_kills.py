"""A resize whose agent is killed at any of its steps ends as one that nobody disturbed.

Steps are what others can see of an agent: calls that change the runtime, before and after they
have their effect, files that it replaces, and what it writes to the API server.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import trio
from attrs import define, frozen

from tests.apiserver.storage import Change
from tests.simulation.scenes import Scene, play, pod
from trio_kubelet.hollow import CallFault, HollowOptions
from trio_kubelet.hollow.faults import NO_FAULT
from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.codec import decode, encode
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.runtime.lifecycle.allocations import ACTUATED, ALLOCATED
from trio_kubelet.runtime.lifecycle.resource_records import parsed

NAME = "web"
STARTING_SECONDS, RESIZING_SECONDS, AGAIN_SECONDS = 15.0, 5.0, 30.0
CHANGES = frozenset(
    {"UpdateContainerResources", "StopContainer", "CreateContainer", "StartContainer"}
)
DEAD = RpcError(Code.UNAVAILABLE, "the agent is dead")


@frozen(kw_only=True)
class Resize:
    """What each container has before and after, and the pod as a whole."""

    before: Mapping[str, Mapping[str, str]]
    after: Mapping[str, Mapping[str, str]]
    pod_before: Mapping[str, str] | None = None
    pod_after: Mapping[str, str] | None = None
    policy: str = "NotRequired"

    def pod(self, *, resized: bool) -> Pod:
        """The pod as its owner wants it first, and then."""
        made = encode(pod(NAME))
        limits = self.after if resized else self.before
        whole = self.pod_after if resized else self.pod_before
        made["spec"]["initContainers"] = [
            {**_container(name, limits[name], self.policy), "restartPolicy": "Always"}
            for name in limits
            if name.startswith("sidecar")
        ]
        made["spec"]["containers"] = [
            _container(name, limits[name], self.policy)
            for name in limits
            if not name.startswith("sidecar")
        ]
        if whole is not None:
            made["spec"]["resources"] = {"limits": dict(whole), "requests": dict(whole)}
        return decode(Pod, made)


def _container(name: str, limits: Mapping[str, str], policy: str) -> dict[str, Any]:
    return {
        "name": name,
        "image": "registry.example.com/app:1",
        "resources": {"limits": dict(limits), "requests": {"cpu": "50m", "memory": "8Mi"}},
        "resizePolicy": [
            {"resourceName": "cpu", "restartPolicy": "NotRequired"},
            {"resourceName": "memory", "restartPolicy": policy},
        ],
    }


SMALL = {"cpu": "200m", "memory": "40Mi"}
LARGE = {"cpu": "500m", "memory": "64Mi"}
RESIZES = {
    "grow": Resize(before={"a": SMALL, "b": SMALL}, after={"a": LARGE, "b": SMALL}),
    "shrink": Resize(before={"a": LARGE, "b": SMALL}, after={"a": SMALL, "b": SMALL}),
    "exchange": Resize(before={"a": LARGE, "b": SMALL}, after={"a": SMALL, "b": LARGE}),
    "a sidecar, and the pod": Resize(
        before={"sidecar": SMALL, "a": SMALL},
        after={"sidecar": LARGE, "a": SMALL},
        pod_before={"cpu": "1", "memory": "128Mi"},
        pod_after={"cpu": "2", "memory": "192Mi"},
    ),
    "restart": Resize(
        before={"a": SMALL, "b": SMALL}, after={"a": LARGE, "b": SMALL}, policy="RestartContainer"
    ),
}


@define(eq=False)
class Killer:
    """Kills an agent at the step of that number; counts them from `arm` on."""

    kill: Callable[[], None]
    at_step: int
    steps: int = 0
    is_armed: bool = False
    is_dead: bool = False

    def arm(self) -> None:
        self.is_armed = True

    def step(self) -> bool:
        """One more step; True if the agent dies at it."""
        if not self.is_armed or self.is_dead:
            return False
        self.steps += 1
        if self.steps == self.at_step:
            self.is_dead = True
            self.kill()
        return self.is_dead

    def on_call(self, rpc: str) -> CallFault:
        """The fault of a call: the agent dies before it takes effect, or right after."""
        if rpc not in CHANGES:
            return NO_FAULT
        if self.step():
            return CallFault(error=DEAD)
        return CallFault(outlives_cancel=True) if self.step() else NO_FAULT

    def on_write(self, _change: Change) -> None:
        """The agent dies when it has written to the API server."""
        self.step()

    def replacing(self) -> AbstractContextManager[object]:
        """While this is held, the agent may die before it replaces a file."""
        replace = Path.replace

        def replaced(source: Path, target: Path) -> Path:
            if self.step():
                raise OSError("the agent is dead")
            return replace(source, target)

        return patch.object(Path, "replace", new=replaced)


def outcome(scene: Scene, root: Path) -> Mapping[str, Any]:
    """All that is left of a resize, without what differs from run to run."""
    status = scene.status(NAME)
    containers = [each for each in scene.runtime.containers if not each.finished_at]
    return {
        "containers": {
            each.config.metadata.name: (
                each.config.metadata.attempt,
                each.resources.cpu_shares,
                each.resources.cpu_quota,
                each.resources.memory_limit_in_bytes,
            )
            for each in containers
        },
        "told": {
            each.name: (each.restart_count, each.resources, each.allocated_resources)
            for each in (*status.init_container_statuses, *status.container_statuses)
        },
        "whole": (status.resources, status.allocated_resources),
        "conditions": {(each.type, each.status, each.reason) for each in status.conditions},
        "phase": status.phase,
        "records": [
            [*parsed((root / "kubelet" / name).read_text()).values()]
            for name in (ALLOCATED, ACTUATED)
        ],
    }


def resize_once(root: Path, resize: Resize, at_step: int) -> tuple[bool, Mapping[str, Any]]:
    """Resize a pod, and kill the agent at a step; returns whether it came to that, and the end."""
    found: dict[str, Any] = {}
    killer = Killer(kill=lambda: None, at_step=at_step)

    async def scene(scene: Scene) -> None:
        killer.kill = scene.node.kill_agent
        scene.put(resize.pod(resized=False))
        await trio.sleep(STARTING_SECONDS)
        started = {each.id: each.started_at for each in scene.running()}
        assert len(started) == len(resize.before)
        scene.node.api.storage.observers.append(killer.on_write)
        scene.put(resize.pod(resized=True))
        killer.arm()
        await trio.sleep(RESIZING_SECONDS)
        if killer.is_dead:
            await scene.node.agent_ended()
            scene.node.start_agent()
            await trio.sleep(AGAIN_SECONDS)
        found.update(outcome(scene, root))
        if resize.policy == "NotRequired":
            assert {each.id: each.started_at for each in scene.running()} == started

    options = HollowOptions(faults=lambda rpc, _request: killer.on_call(rpc))
    with killer.replacing():
        play(root, scene, options)
    return killer.is_dead, found


@pytest.mark.parametrize("name", RESIZES)
def test_a_resize_ends_in_the_same_state_wherever_its_agent_was_killed(
    tmp_path: Path, name: str
) -> None:
    was_killed, right = resize_once(tmp_path / "undisturbed", RESIZES[name], 0)
    assert not was_killed
    assert right["phase"] == "Running"
    step = 0
    while True:
        step += 1
        was_killed, found = resize_once(tmp_path / str(step), RESIZES[name], step)
        assert found == right, f"step {step}"
        if not was_killed:
            break
    assert step > 8
