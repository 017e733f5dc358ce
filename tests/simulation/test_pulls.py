"""What is seen of a pod while the image of one of its containers is pulled for minutes."""

from pathlib import Path

import trio
from attrs import evolve

from tests.simulation.scenes import Scene, play, pod
from trio_kubelet.hollow import BEHAVIOUR_ANNOTATION, HollowOptions, HollowRegistry
from trio_kubelet.k8s import PODS, ContainerState, Pod

PRESENT = "registry.example.com/app:1"
PULL_SECONDS = 300


def with_slow_sibling() -> Pod:
    """Its first container starts at once; the image of the second takes its time."""
    first = pod(image=PRESENT)
    second = evolve(first.spec.containers[0], name="slow", image="registry.example.com/large:1")
    return evolve(first, spec=evolve(first.spec, containers=(*first.spec.containers, second)))


def with_sidecar() -> Pod:
    """Its sidecar starts at once; the image of its container takes its time."""
    first = pod(image=PRESENT)
    main = first.spec.containers[0]
    sidecar = evolve(main, name="sidecar", restart_policy="Always")
    slow = evolve(main, name="slow", image="registry.example.com/large:1")
    spec = evolve(first.spec, init_containers=(sidecar,), containers=(slow,))
    return evolve(first, spec=spec)


def with_quick_init_container() -> Pod:
    """Its init container ends as soon as it has started; the image of its container is slow."""
    first = pod(image=PRESENT)
    main = first.spec.containers[0]
    key = f"{BEHAVIOUR_ANNOTATION}.init"
    metadata = evolve(first.metadata, annotations={key: "{runSeconds: 0}"})
    slow = evolve(main, name="slow", image="registry.example.com/large:1")
    init = evolve(main, name="init")
    spec = evolve(first.spec, init_containers=(init,), containers=(slow,))
    return evolve(first, metadata=metadata, spec=spec)


def states(scene: Scene) -> dict[str, ContainerState]:
    statuses = scene.status().container_statuses
    return {each.name: each.state for each in statuses if each.state is not None}


def test_a_container_is_shown_running_and_ended_while_its_sibling_is_pulled(
    tmp_path: Path,
) -> None:
    async def scene(scene: Scene) -> None:
        scene.put(with_slow_sibling())
        await trio.sleep(10)
        shown = states(scene)
        assert shown["main"].running is not None
        assert shown["slow"].waiting is not None
        (main,) = scene.running()
        scene.runtime.containers.kill(main.id)
        await trio.sleep(10)
        shown = states(scene)
        assert shown["main"].terminated is not None
        await trio.sleep(PULL_SECONDS + 60)
        assert {each.config.metadata.name for each in scene.running()} == {"main", "slow"}
        assert scene.status().phase == "Running"

    registry = HollowRegistry(pull_seconds=PULL_SECONDS)
    play(tmp_path, scene, HollowOptions(images=(PRESENT,), registry=registry))


def test_a_sidecar_is_shown_running_while_a_container_is_pulled(tmp_path: Path) -> None:
    async def scene(scene: Scene) -> None:
        scene.put(with_sidecar())
        await trio.sleep(30)
        (sidecar,) = scene.status().init_container_statuses
        assert sidecar.state is not None
        assert sidecar.state.running is not None
        scene.runtime.containers.kill(scene.running()[0].id)
        await trio.sleep(30)
        (sidecar,) = scene.status().init_container_statuses
        assert sidecar.state is not None
        assert sidecar.state.running is None
        await trio.sleep(PULL_SECONDS)
        assert {each.config.metadata.name for each in scene.running()} == {"sidecar", "slow"}

    registry = HollowRegistry(pull_seconds=PULL_SECONDS)
    play(tmp_path, scene, HollowOptions(images=(PRESENT,), registry=registry))


def test_an_init_container_that_was_quick_is_shown_ended_while_a_container_is_pulled(
    tmp_path: Path,
) -> None:
    async def scene(scene: Scene) -> None:
        scene.put(with_quick_init_container())
        await trio.sleep(30)
        (init,) = scene.status().init_container_statuses
        assert init.state is not None
        assert init.state.terminated is not None
        assert scene.status().phase == "Pending"

    registry = HollowRegistry(pull_seconds=PULL_SECONDS)
    play(tmp_path, scene, HollowOptions(images=(PRESENT,), registry=registry))


def test_an_end_is_shown_while_an_agent_that_was_restarted_pulls(tmp_path: Path) -> None:
    async def scene(scene: Scene) -> None:
        scene.put(with_slow_sibling())
        await trio.sleep(10)
        await scene.restart_agent()
        (main,) = scene.running()
        scene.runtime.containers.kill(main.id)
        await trio.sleep(30)
        shown = states(scene)
        assert shown["main"].terminated is not None

    registry = HollowRegistry(pull_seconds=PULL_SECONDS)
    play(tmp_path, scene, HollowOptions(images=(PRESENT,), registry=registry))


def test_a_pod_is_deleted_in_the_middle_of_a_pull(tmp_path: Path) -> None:
    async def scene(scene: Scene) -> None:
        scene.put(with_slow_sibling())
        await trio.sleep(10)
        scene.node.api.delete(PODS, "web", grace_seconds=1)
        await trio.sleep(20)
        assert scene.running() == []

    registry = HollowRegistry(pull_seconds=PULL_SECONDS)
    play(tmp_path, scene, HollowOptions(images=(PRESENT,), registry=registry))


def test_a_container_that_was_stopped_is_shown_so_while_its_new_image_is_pulled(
    tmp_path: Path,
) -> None:
    async def scene(scene: Scene) -> None:
        scene.put(pod(image=PRESENT))
        await trio.sleep(10)
        assert states(scene)["main"].running is not None
        scene.put(pod(image="registry.example.com/large:1"))
        await trio.sleep(30)
        assert states(scene)["main"].running is None
        conditions = {each.type: each.status for each in scene.status().conditions}
        assert conditions["Ready"] == "False"
        await trio.sleep(PULL_SECONDS)
        assert states(scene)["main"].running is not None

    registry = HollowRegistry(pull_seconds=PULL_SECONDS)
    play(tmp_path, scene, HollowOptions(images=(PRESENT,), registry=registry))
