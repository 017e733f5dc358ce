"""An ephemeral container that has ended stays so in the API, whatever becomes of its remains."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from attrs import evolve

from tests.simulation.scenes import Scene, play, pod
from trio_kubelet.hollow import BEHAVIOUR_ANNOTATION
from trio_kubelet.hollow.records import HollowContainer
from trio_kubelet.k8s import ContainerState, EphemeralContainer
from trio_kubelet.rpc.stubs.runtime import v1 as cri

NAME = "debug"
EXIT_CODE = 3
Trouble = Callable[[Scene, HollowContainer], Awaitable[None]]


async def restart_the_agent(scene: Scene, ended: HollowContainer) -> None:
    await scene.restart_agent()


async def remove_it(scene: Scene, ended: HollowContainer) -> None:
    request = cri.RemoveContainerRequest(container_id=ended.id)
    await scene.runtime.containers.remove(request)


async def remove_it_while_no_agent_runs(scene: Scene, ended: HollowContainer) -> None:
    scene.node.stop_agent()
    await scene.node.agent_ended()
    await remove_it(scene, ended)
    scene.node.start_agent()


async def lose_its_sandbox(scene: Scene, ended: HollowContainer) -> None:
    scene.runtime.sandboxes.fail(ended.sandbox.id)


async def lose_its_sandbox_while_no_agent_runs(scene: Scene, ended: HollowContainer) -> None:
    scene.node.stop_agent()
    await scene.node.agent_ended()
    scene.runtime.sandboxes.fail(ended.sandbox.id)
    scene.node.start_agent()


async def lose_both_while_no_agent_runs(scene: Scene, ended: HollowContainer) -> None:
    scene.node.stop_agent()
    await scene.node.agent_ended()
    await remove_it(scene, ended)
    scene.runtime.sandboxes.fail(ended.sandbox.id)
    scene.node.start_agent()


TROUBLES = (
    restart_the_agent,
    remove_it,
    remove_it_while_no_agent_runs,
    lose_its_sandbox,
    lose_its_sandbox_while_no_agent_runs,
    lose_both_while_no_agent_runs,
)

FORGETTABLE = (remove_it_while_no_agent_runs, lose_both_while_no_agent_runs)
"""After these nothing on the node tells that it has run; another one may, as on a Go kubelet."""


def shown(scene: Scene) -> ContainerState | None:
    (status,) = scene.status().ephemeral_container_statuses
    return status.state


@pytest.mark.parametrize("trouble", TROUBLES)
def test_an_ephemeral_container_that_has_ended_is_shown_so(
    tmp_path: Path, trouble: Trouble
) -> None:
    async def scene(scene: Scene) -> None:
        web = pod()
        behaviour = f"{{runSeconds: 2, exitCode: {EXIT_CODE}}}"
        annotations = {**web.metadata.annotations, f"{BEHAVIOUR_ANNOTATION}.{NAME}": behaviour}
        scene.put(evolve(web, metadata=evolve(web.metadata, annotations=annotations)))
        await trio.sleep(10)
        debugging = EphemeralContainer(name=NAME, image="registry.example.com/debug:1")
        scene.put(evolve(web, spec=evolve(web.spec, ephemeral_containers=(debugging,))))
        await trio.sleep(30)
        (ended,) = (c for c in scene.runtime.containers if c.config.metadata.name == NAME)
        state = shown(scene)
        assert state is not None
        assert state.terminated is not None
        assert state.terminated.exit_code == EXIT_CODE
        await trouble(scene, ended)
        for _ in range(60):
            await trio.sleep(10)
            later = shown(scene)
            assert later is not None
            assert later.terminated is not None
        instances = [c for c in scene.runtime.containers if c.config.metadata.name == NAME]
        assert trouble in FORGETTABLE or {each.id for each in instances} <= {ended.id}
        assert scene.running()

    play(tmp_path, scene)
