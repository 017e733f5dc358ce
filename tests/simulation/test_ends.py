"""The ends of pods: what users wait for goes first, for all pods, and nothing is left at last."""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
import trio
from betterproto import Message

from tests.simulation.scenes import Scene, play, pod, remove_manifest, write_manifest
from trio_kubelet.hollow import CallFault, HollowOptions
from trio_kubelet.k8s import PODS
from trio_kubelet.rpc import Code, RpcError

PODS_AT_ONCE = 20
REMOVALS = ("RemoveContainer", "RemovePodSandbox")
FOR_THE_NODE = ("Status", "Version", "ListImages", "ImageFsInfo")
REFUSED = RpcError(Code.UNKNOWN, "not now")
SLOW_SECONDS = 8.0
SLOW = f"{{obeysTerm: {SLOW_SECONDS}}}"


class Calls:
    """Faults that write down which call came when, and that some calls meet."""

    def __init__(self, broken: Mapping[str, CallFault] | None = None) -> None:
        self.broken = dict(broken or {})
        self.made: list[str] = []

    def __call__(self, rpc: str, _request: Message) -> CallFault:
        self.made.append(rpc)
        return self.broken.get(rpc, CallFault())

    def last(self, *rpcs: str) -> int:
        """Where the last of these calls is among all that were made; -1 without one."""
        return max((n for n, rpc in enumerate(self.made) if rpc in rpcs), default=-1)

    def first(self, *rpcs: str) -> int:
        """Where the first of these calls is among all that were made."""
        return min(n for n, rpc in enumerate(self.made) if rpc in rpcs)


def names(count: int) -> list[str]:
    return [f"web-{number}" for number in range(count)]


def delete(scene: Scene, name: str, grace_seconds: int = 30) -> None:
    scene.node.api.delete(PODS, name, "default", grace_seconds=grace_seconds)


async def gone(scene: Scene, name: str) -> None:
    """Wait until the API has no such pod."""
    await scene.node.api.until(lambda: scene.node.api.find(PODS, name, "default") is None)


async def mirror_gone(scene: Scene, name: str) -> None:
    await scene.node.api.until(lambda: scene.mirror(name) is None)


def leftovers(scene: Scene) -> list[object]:
    """What there is on the node of any pod."""
    folders = (scene.node.pod_folders, scene.node.logs, scene.node.log_links)
    return [
        *scene.runtime.containers,
        *scene.runtime.sandboxes,
        *(path.name for folder in folders for path in folder.glob("*")),
    ]


def test_nothing_is_removed_before_the_last_of_many_pods_is_gone(tmp_path: Path) -> None:
    calls = Calls()

    async def scene(scene: Scene) -> None:
        for name in names(PODS_AT_ONCE):
            scene.put(pod(name, behaviour=SLOW if name == "web-0" else "{}"))
        await trio.sleep(60)
        calls.made.clear()
        for name in names(PODS_AT_ONCE):
            delete(scene, name)
        for name in names(PODS_AT_ONCE):
            await gone(scene, name)
        stopped = calls.last("StopContainer", "StopPodSandbox")
        assert not set(REMOVALS) & set(calls.made)
        assert leftovers(scene)
        await trio.sleep(30)
        assert calls.first(*REMOVALS) > stopped
        assert leftovers(scene) == []

    play(tmp_path, scene, HollowOptions(faults=calls))


@pytest.mark.parametrize("rpc", REMOVALS)
def test_the_object_of_a_pod_goes_though_the_runtime_removes_nothing(
    tmp_path: Path, rpc: str
) -> None:
    calls = Calls({rpc: CallFault(error=REFUSED)})

    async def scene(scene: Scene) -> None:
        scene.put(pod())
        write_manifest(scene.node, pod("static"))
        await trio.sleep(20)
        delete(scene, "web")
        remove_manifest(scene.node, pod("static"))
        with trio.fail_after(25):
            await gone(scene, "web")
            await mirror_gone(scene, "static")
        await trio.sleep(60)
        assert leftovers(scene)
        calls.broken.clear()
        await trio.sleep(60)
        assert leftovers(scene) == []

    play(tmp_path, scene, HollowOptions(faults=calls))


def test_what_a_killed_agent_had_no_time_to_remove_the_next_one_removes(tmp_path: Path) -> None:
    async def scene(scene: Scene) -> None:
        for name in names(3):
            scene.put(pod(name))
        write_manifest(scene.node, pod("static"))
        await trio.sleep(20)
        for name in names(3):
            delete(scene, name)
        remove_manifest(scene.node, pod("static"))
        for name in names(3):
            await gone(scene, name)
        await mirror_gone(scene, "static")
        scene.node.kill_agent()
        await scene.node.agent_ended()
        assert len(list(scene.runtime.containers)) == 4
        scene.node.start_agent()
        await trio.sleep(60)
        assert leftovers(scene) == []

    play(tmp_path, scene)


def test_the_end_of_a_pod_takes_no_more_calls_and_requests_than_it_must(tmp_path: Path) -> None:
    """Half of what many ends cost is the runtime's and the API server's."""
    calls = Calls()
    ends = {
        "StopContainer": 1,
        "StopPodSandbox": 1,
        "ListPodSandbox": 1,
        "ListContainers": 1,
        "ContainerStatus": 1,
        "RemoveContainer": 1,
        "RemovePodSandbox": 1,
    }

    async def scene(scene: Scene) -> None:
        for name in names(PODS_AT_ONCE):
            scene.put(pod(name))
        await trio.sleep(400)
        calls.made.clear()
        scene.node.api.requests.clear()
        for name in names(PODS_AT_ONCE):
            delete(scene, name)
        await trio.sleep(30)
        assert leftovers(scene) == []
        made = Counter(rpc for rpc in calls.made if rpc not in FOR_THE_NODE)
        assert made == {rpc: count * PODS_AT_ONCE for rpc, count in ends.items()}
        asked = Counter(each.verb for each in scene.node.api.requests if each.resource == "pods")
        del asked["watch"]  # One that is over after five to ten minutes begins anew.
        assert asked == {"patch": PODS_AT_ONCE, "delete": PODS_AT_ONCE}

    play(tmp_path, scene, HollowOptions(faults=calls))


def test_while_others_end_for_long_what_is_left_of_a_pod_goes_all_the_same(
    tmp_path: Path,
) -> None:
    """A process may ignore its signal for an hour: that is no reason to keep everything."""

    async def scene(scene: Scene) -> None:
        deaf = pod("deaf", behaviour="{obeysTerm: 3600}")
        scene.put(pod())
        scene.put(deaf)
        await trio.sleep(20)
        delete(scene, "deaf", grace_seconds=3600)
        delete(scene, "web")
        await trio.sleep(40)
        assert {c.sandbox.config.metadata.name for c in scene.runtime.containers} == {"deaf"}

    play(tmp_path, scene)


def test_a_static_pod_that_is_put_back_while_others_end_starts_at_once(tmp_path: Path) -> None:
    """Its UID is the same: nothing may be in the way of its former incarnation's end."""

    async def scene(scene: Scene) -> None:
        static = pod("static")
        write_manifest(scene.node, static)
        scene.put(pod("slow", behaviour=SLOW))
        await trio.sleep(30)
        remove_manifest(scene.node, static)
        await mirror_gone(scene, "static")
        delete(scene, "slow")
        write_manifest(scene.node, static)
        await scene.node.api.until(partial(is_running, scene, "static-node"))
        await trio.sleep(1)
        running = {c.sandbox.config.metadata.name for c in scene.running()}
        assert running == {"slow", "static-node"}

    play(tmp_path, scene)


def test_a_static_pod_that_is_put_back_at_once_counts_on_and_keeps_its_last_log(
    tmp_path: Path,
) -> None:
    async def scene(scene: Scene) -> None:
        static = pod("static")
        write_manifest(scene.node, static)
        await trio.sleep(30)
        remove_manifest(scene.node, static)
        await trio.sleep(0.2)
        write_manifest(scene.node, static)
        await trio.sleep(30)
        (present,) = scene.running()
        assert present.config.metadata.attempt == 1
        shown = scene.node.api.get(PODS, "static-node", "default")
        (status,) = shown.status.container_statuses
        assert status.restart_count == 1
        (former,) = [c for c in scene.runtime.containers if c is not present]
        assert former.sandbox.config.metadata.uid == present.sandbox.config.metadata.uid

    play(tmp_path, scene)


def test_a_pod_of_the_same_name_starts_beside_what_is_left_of_the_last(tmp_path: Path) -> None:
    """As a pod of a StatefulSet: the removal of the last one is waited for by nobody."""
    calls = Calls({"RemoveContainer": CallFault(error=REFUSED)})

    async def scene(scene: Scene) -> None:
        for _ in range(3):
            scene.put(pod("db-0"))
            await scene.node.api.until(partial(is_running, scene, "db-0"))
            delete(scene, "db-0")
            await gone(scene, "db-0")
        assert len({c.sandbox.config.metadata.uid for c in scene.runtime.containers}) == 3
        calls.broken.clear()
        await trio.sleep(60)
        assert leftovers(scene) == []

    play(tmp_path, scene, HollowOptions(faults=calls))


def is_running(scene: Scene, name: str) -> bool:
    shown = scene.node.api.find(PODS, name, "default")
    return shown is not None and shown.status.phase == "Running"
