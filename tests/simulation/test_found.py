"""What the simulation has found, each as a small scene of its own."""

from json import dumps
from pathlib import Path
from random import Random

import pytest
import trio
from attrs import evolve

from tests.apiserver.faults import RequestFault
from tests.simulation.health import HEALTH_ANNOTATION, behaviours_with_health, health_of
from tests.simulation.scenes import Scene, play, pod, remove_manifest, write_manifest
from trio_kubelet.hollow import (
    BEHAVIOUR_ANNOTATION,
    CallFault,
    HollowOptions,
    HollowRegistry,
    ScriptedFaults,
)
from trio_kubelet.k8s import (
    EVENTS,
    PODS,
    Container,
    IntOrString,
    Lifecycle,
    LifecycleHandler,
    Probe,
    SleepAction,
    TCPSocketAction,
)
from trio_kubelet.k8s.defaults import with_defaults
from trio_kubelet.rpc import Code, RpcError

LOST = RpcError(Code.UNAVAILABLE, "a fault")


def test_housekeeping_waits_for_the_parts_that_it_asks(tmp_path: Path) -> None:
    faults = ScriptedFaults([("Version", CallFault(delay_seconds=30))])

    async def scene(scene: Scene) -> None:
        await trio.sleep(60)

    play(tmp_path, scene, HollowOptions(faults=faults))


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_a_container_whose_image_changes_is_replaced_at_once(tmp_path: Path, policy: str) -> None:
    async def scene(scene: Scene) -> None:
        scene.put(pod(policy=policy))
        await trio.sleep(10)
        scene.put(pod(image="registry.example.com/app:2", policy=policy))
        await trio.sleep(5)
        (container,) = scene.running()
        assert container.config.image.user_specified_image == "registry.example.com/app:2"
        assert container.config.metadata.attempt == 1

    play(tmp_path, scene)


def test_a_container_that_outlives_its_sandbox_is_replaced_at_once(tmp_path: Path) -> None:
    async def scene(scene: Scene) -> None:
        scene.put(pod())
        await trio.sleep(10)
        (sandbox,) = scene.runtime.sandboxes
        scene.runtime.sandboxes.fail(sandbox.id)
        await trio.sleep(5)
        (container,) = scene.running()
        assert container.sandbox is not sandbox

    play(tmp_path, scene)


@pytest.mark.parametrize("policy", ["Always", "OnFailure"])
def test_no_status_is_refused_while_a_new_sandbox_is_initialized(
    tmp_path: Path, policy: str
) -> None:
    async def scene(scene: Scene) -> None:
        one = pod(policy=policy)
        init = Container(name="init", image="registry.example.com/app:1")
        annotations = {f"{BEHAVIOUR_ANNOTATION}.init": "{runSeconds: 2}"}
        one = evolve(
            one,
            metadata=evolve(one.metadata, annotations=annotations),
            spec=evolve(one.spec, init_containers=(init,)),
        )
        scene.put(one)
        await trio.sleep(30)
        (sandbox,) = scene.runtime.sandboxes
        scene.runtime.sandboxes.fail(sandbox.id)
        await trio.sleep(30)
        (shown,) = scene.status().init_container_statuses
        assert (shown.restart_count, scene.status().phase) == (1, "Running")
        assert "FailedStatusUpdate" not in {e.reason for e in scene.node.api.all(EVENTS)}

    play(tmp_path, scene)


def test_a_pulled_image_that_cannot_be_looked_at_is_looked_at_again(tmp_path: Path) -> None:
    faults = ScriptedFaults([("ImageStatus", CallFault()), ("ImageStatus", CallFault(error=LOST))])

    async def scene(scene: Scene) -> None:
        scene.put(pod())
        await trio.sleep(10)
        assert len(scene.running()) == 1

    play(tmp_path, scene, HollowOptions(faults=faults, registry=HollowRegistry(pull_seconds=1)))


def test_a_clock_that_is_set_back_makes_no_old_sandbox_the_newest(tmp_path: Path) -> None:
    async def scene(scene: Scene) -> None:
        scene.put(pod())
        await trio.sleep(10)
        (sandbox,) = scene.runtime.sandboxes
        scene.clock.jump(-3600)
        scene.runtime.sandboxes.fail(sandbox.id)
        await trio.sleep(10)
        (container,) = scene.running()
        await trio.sleep(600)
        assert scene.running() == [container]

    play(tmp_path, scene)


def test_a_pod_that_has_ended_takes_no_port_from_one_that_runs(tmp_path: Path) -> None:
    async def scene(scene: Scene) -> None:
        job = pod("a-job", policy="Never", host_port=7000, behaviour="{runSeconds: 1}")
        scene.put(job)
        await trio.sleep(10)
        scene.put(pod("web", host_port=7000))
        await trio.sleep(10)
        (container,) = scene.running()
        await scene.restart_agent()
        assert scene.running() == [container]

    play(tmp_path, scene)


def test_a_static_pod_that_runs_is_admitted_before_one_that_was_rejected(tmp_path: Path) -> None:
    async def scene(scene: Scene) -> None:
        write_manifest(scene.node, pod("z-first", host_port=7000))
        await trio.sleep(10)
        write_manifest(scene.node, pod("a-second", host_port=7000))
        await trio.sleep(10)
        (container,) = scene.running()
        await scene.restart_agent()
        assert scene.running() == [container]

    play(tmp_path, scene)


def test_a_clock_that_is_set_back_does_not_stop_a_crash_loop(tmp_path: Path) -> None:
    async def scene(scene: Scene) -> None:
        scene.put(pod(behaviour="{runSeconds: 1, exitCode: 1}"))
        await trio.sleep(30)
        (before,) = newest_attempts(scene)
        scene.clock.jump(-3600)
        await trio.sleep(300)
        (after,) = newest_attempts(scene)
        assert after > before

    play(tmp_path, scene)


def test_a_pod_whose_mirror_shows_an_end_is_shown_to_run(tmp_path: Path) -> None:
    """When it ran again, nobody could ask the API."""

    async def scene(scene: Scene) -> None:
        write_manifest(scene.node, pod())
        await trio.sleep(30)
        scene.node.stop_agent()
        await scene.node.agent_ended()
        ended = {"status": {"phase": "Failed"}}
        scene.node.api.patch(PODS, "web-node", "default", body=ended, subresource="status")
        scene.node.api.go_away()
        scene.node.start_agent()
        await trio.sleep(60)
        assert len(scene.running()) == 1
        scene.node.api.come_back()
        await trio.sleep(60)
        assert scene.status("web-node").phase == "Running"

    play(tmp_path, scene)


def test_the_end_of_a_pod_is_not_shown_as_that_of_the_one_that_is_put_back(
    tmp_path: Path,
) -> None:
    """Nothing but its UID is known of what an earlier agent ran: it cannot but look failed."""

    async def scene(scene: Scene) -> None:
        static = pod(behaviour="{termExitCode: 1}")
        write_manifest(scene.node, static)
        await trio.sleep(30)
        scene.node.stop_agent()
        await scene.node.agent_ended()
        remove_manifest(scene.node, static)
        in_use = scene.node.pod_folders / "uid-web" / "volumes" / "other~plugin" / "data" / "file"
        in_use.mkdir(parents=True)
        scene.node.start_agent()
        await trio.sleep(30)
        write_manifest(scene.node, static)
        await trio.sleep(30)
        assert scene.running() == []
        assert scene.status("web-node").phase == "Pending"
        in_use.rmdir()
        await trio.sleep(60)
        assert scene.status("web-node").phase == "Running"

    play(tmp_path, scene)


def test_a_mirror_that_could_not_be_deleted_at_once_goes_later(tmp_path: Path) -> None:
    async def scene(scene: Scene) -> None:
        write_manifest(scene.node, pod())
        await trio.sleep(30)
        fault = RequestFault(verb="delete", resource="pods", code=409, reason="Conflict", times=1)
        scene.node.api.faults.add(fault)
        remove_manifest(scene.node, pod())
        await trio.sleep(60)
        assert fault.times == 0
        assert scene.mirror("web") is None

    play(tmp_path, scene)


def test_a_mirror_that_shows_an_end_outlives_the_agent(tmp_path: Path) -> None:
    async def scene(scene: Scene) -> None:
        write_manifest(scene.node, pod(policy="Never", behaviour="{runSeconds: 1}"))
        await trio.sleep(30)
        before = scene.mirror("web")
        assert before is not None
        assert before.status.phase == "Succeeded"
        await scene.restart_agent()
        await trio.sleep(60)
        after = scene.mirror("web")
        assert after is not None
        assert after.metadata.uid == before.metadata.uid
        assert after.status.phase == "Succeeded"

    play(tmp_path, scene)


def newest_attempts(scene: Scene) -> list[int]:
    """The restart count of the newest container of each pod."""
    counts: dict[str, int] = {}
    for container in scene.runtime.containers:
        uid, count = container.sandbox.config.metadata.uid, container.config.metadata.attempt
        counts[uid] = max(count, counts.get(uid, 0))
    return list(counts.values())


def test_a_container_that_ends_while_another_runs_its_hook_serves_nobody(tmp_path: Path) -> None:
    action = TCPSocketAction(port=IntOrString(80))
    probe = Probe(tcp_socket=action, period_seconds=5, timeout_seconds=1, failure_threshold=1)
    nature = {"delay": 0, "period": 5, "timeout": 1, "success_threshold": 1, "failure_threshold": 1}
    natures = {
        "ill": {"Liveness": {**nature, "well_after": None}},
        "web": {"Readiness": {**nature, "well_after": 0}},
    }
    long_hook = Lifecycle(pre_stop=LifecycleHandler(sleep=SleepAction(seconds=60)))
    ill = Container(
        name="ill", image="registry.example.com/app:1", liveness_probe=probe, lifecycle=long_hook
    )
    web = Container(name="web", image="registry.example.com/app:1", readiness_probe=probe)
    base = pod()
    shape = evolve(
        base,
        metadata=evolve(
            base.metadata,
            annotations={
                f"{HEALTH_ANNOTATION}.{name}": dumps(each) for name, each in natures.items()
            },
        ),
        spec=evolve(base.spec, containers=(ill, web), termination_grace_period_seconds=90),
    )

    async def scene(scene: Scene) -> None:
        scene.put(with_defaults(shape))
        await trio.sleep(2)
        (container,) = (c for c in scene.running() if c.config.metadata.name == "web")
        health = health_of(container)
        assert health is not None
        health.started_at = trio.current_time()
        await trio.sleep(6)
        assert scene.status().container_statuses[1].ready
        scene.runtime.containers.kill(container.id)
        await trio.sleep(10)
        assert len(scene.running()) == 1, "the hook still runs"
        assert not scene.status().container_statuses[1].ready

    play(tmp_path, scene, HollowOptions(behaviours=behaviours_with_health(Random(0))))
