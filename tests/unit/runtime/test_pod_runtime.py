"""Carrying out plans on the hollow runtime: what a sync leaves to be done, and when."""

import threading
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import evolve
from trio.testing import MockClock

from state_machines.container import crash_loop_policy
from tests.turns import making_test_data
from tests.unit.runtime.hollow_nodes import NO_INPUTS, POD, ImageManager, node
from trio_kubelet.errors import ConfigError
from trio_kubelet.hollow import (
    Behaviour,
    CallFault,
)
from trio_kubelet.k8s import (
    Container,
    ContainerRestartRule,
    ContainerRestartRuleOnExitCodes,
    EnvVar,
    EnvVarSource,
    EphemeralContainer,
    FileKeySelector,
    HostAlias,
    ImageVolumeSource,
    NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures,
    ObjectMeta,
    Pod,
    PodSpec,
    Volume,
    VolumeMount,
)
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.config.container_config import PodInputs
from trio_kubelet.runtime.config.dns import MISSING_CLUSTER_DNS
from trio_kubelet.runtime.config.environment import EnvironmentSources
from trio_kubelet.runtime.config.mounts import PreparedVolume
from trio_kubelet.runtime.handlers import RuntimeFeatures
from trio_kubelet.runtime.images.manager import ImageError
from trio_kubelet.runtime.observed import ObservedPod, ObservedState
from trio_kubelet.tasks.future import Future
from trio_kubelet.telemetry.events import RecordedEvent


async def test_a_sandbox_that_fails_is_no_matter_of_an_image_that_was_in_back_off(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    refusals: list[ImageError] = []
    images = ImageManager(lambda: refusals.pop() if refusals else None)
    async with node(tmp_path, images=images) as at:
        containers = at.open()
        until_ns = at.clock.now_ns() + 10_000_000_000
        refusals.append(ImageError("ImagePullBackOff", "Back-off pulling image", until_ns))
        outcome = await at.sync(POD, containers)
        assert not outcome.failed
        assert at.seconds_until(outcome.due_ns) == 10
        await at.client.stop_pod_sandbox(outcome.observed.sandboxes[0].id)
        mock_clock.jump(60)
        at.faults.add(
            "RunPodSandbox", CallFault(error=RpcError(Code.UNKNOWN, "no address is free"))
        )
        outcome = await at.sync(POD, containers)
        assert outcome.failed
        assert outcome.due_ns is None


async def test_no_container_is_to_run_again_in_a_pod_that_its_plan_gives_up(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    """A pod that never restarts gets no second sandbox, and so no successor of its container."""
    refusals: list[ImageError] = []
    images = ImageManager(lambda: refusals.pop() if refusals else None)
    pod = evolve(POD, spec=evolve(POD.spec, restart_policy="Never"))
    container = Container(name="c", image="busybox:2")
    changed = evolve(pod, spec=evolve(pod.spec, containers=(container,)))
    async with node(tmp_path, images=images) as at:
        containers = at.open()
        await at.sync(pod, containers)
        refusals.append(ImageError("ErrImagePull", "it is not there"))
        outcome = await at.sync(changed, containers)
        assert containers.restarting == {"c"}
        await at.client.stop_pod_sandbox(outcome.observed.sandboxes[0].id)
        await at.sync(changed, containers)
        assert containers.restarting == set()


async def test_the_journal_says_why_a_sandbox_was_replaced(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    async with node(tmp_path) as at:
        containers = at.open()
        outcome = await at.sync(POD, containers)
        await at.client.stop_pod_sandbox(outcome.observed.sandboxes[0].id)
        await at.sync(POD, containers)
        notes = {entry.event: entry.cause for entry in at.journal.entries(POD.metadata.key)}
        assert notes["SandboxReplaced"] == "it is not ready"


async def test_a_sandbox_is_made_with_the_handler_of_the_pods_runtime_class(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    async def handler(_pod: Pod) -> str:
        return "runc"

    async with node(tmp_path, runtime_handler=handler) as at:
        outcome = await at.sync(POD)
        assert not outcome.failed
        assert [s.runtime_handler for s in outcome.observed.sandboxes] == ["runc"]


@pytest.mark.parametrize(("able", "paths"), [("runc", {"/data"}), ("", set())])
async def test_mounts_are_recursively_read_only_where_the_sandboxes_handler_can_do_that(
    able: str, paths: set[str], mock_clock: MockClock, tmp_path: Path
) -> None:
    async def handler(_pod: Pod) -> str:
        return "runc"

    mount = VolumeMount(
        name="data", mount_path="/data", read_only=True, recursive_read_only="IfPossible"
    )
    containers = tuple(
        Container(name=name, image="busybox", volume_mounts=(mount,)) for name in ("c", "later")
    )
    features = NodeRuntimeHandlerFeatures(recursive_read_only_mounts=True)
    runtime_features = RuntimeFeatures(handlers=(NodeRuntimeHandler(name=able, features=features),))
    inputs = PodInputs(volumes={"data": PreparedVolume(host_path=str(tmp_path))})
    async with node(tmp_path, runtime_handler=handler, runtime_features=runtime_features) as at:
        for count in (1, 2):  # in a sandbox that was just made, and in one that was there
            pod = evolve(POD, spec=evolve(POD.spec, containers=containers[:count]))
            observed = await at.look(pod)
            outcome = await at.open().sync(pod, observed, Future.resolved(inputs))
            made = [c.recursively_read_only for c in outcome.observed.containers]
            assert made == [paths] * count


async def test_a_container_knows_the_digest_of_an_image_that_it_mounts(tmp_path: Path) -> None:
    mount = VolumeMount(name="tools", mount_path="/tools")
    volume = Volume(name="tools", image=ImageVolumeSource(reference="busybox"))
    mounting = Container(name="c", image="busybox", volume_mounts=(mount,))
    pod = evolve(POD, spec=evolve(POD.spec, containers=(mounting,), volumes=(volume,)))
    named = cri.ImageSpec(image="busybox", user_specified_image="busybox")
    inputs = PodInputs(volumes={"tools": PreparedVolume(image=named)})
    async with node(tmp_path) as at:
        outcome = await at.open().sync(pod, await at.look(pod), Future.resolved(inputs))
    (container,) = outcome.observed.containers
    assert container.image_mounts == {"/tools": container.image_ref}


async def test_a_sandbox_is_made_before_its_containers_have_what_they_need(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    inputs = Future[PodInputs]()

    async def fail() -> PodInputs:
        while not await at.client.list_pod_sandboxes():
            await trio.lowlevel.checkpoint()
        raise KeyError("a token")

    async with node(tmp_path) as at, trio.open_nursery() as nursery:
        nursery.start_soon(inputs.run, fail)
        seen = await at.look(POD)
        with pytest.raises(KeyError, match="a token"):
            await at.open().sync(POD, seen, inputs)
        seen = await at.look(POD)
        assert [sandbox.ready for sandbox in seen.sandboxes] == [True]
        assert seen.containers == ()
        # The next attempt goes on in the same sandbox.
        outcome = await at.sync(POD)
        assert not outcome.failed
        assert [s.id for s in outcome.observed.sandboxes] == [s.id for s in seen.sandboxes]


async def test_a_runtime_class_that_nobody_knows_makes_no_sandbox(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    async def unknown(_pod: Pod) -> str:
        raise ConfigError('runtimeclass.node.k8s.io "gvisor" not found')

    async with node(tmp_path, runtime_handler=unknown) as at:
        outcome = await at.sync(POD)
        assert outcome.failed
        assert outcome.observed.sandboxes == ()
        told = [(entry.event, entry.cause) for entry in at.journal.entries("shop/web")]
        words = 'Failed to create pod sandbox: runtimeclass.node.k8s.io "gvisor" not found'
        assert ("FailedCreatePodSandBox", words) in told


async def test_a_pod_that_cannot_be_called_what_it_asks_for_gets_no_sandbox_and_is_told(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    async with node(tmp_path) as at:
        outcome = await at.sync(evolve(POD, spec=evolve(POD.spec, subdomain="no label")))
        assert outcome.failed
        told = [(entry.event, entry.cause) for entry in at.journal.entries("shop/web")]
        words = 'Failed to create pod sandbox: pod Subdomain "no label" is not a valid DNS label'
        assert ("FailedCreatePodSandBox", words) in told


async def test_a_sandbox_whose_state_the_runtime_does_not_tell_gets_no_containers_yet(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    async with node(tmp_path) as at:
        containers = at.open()
        at.faults.add("PodSandboxStatus", CallFault(error=RpcError(Code.UNKNOWN, "it is locked")))
        outcome = await at.sync(POD, containers)
        assert outcome.failed
        assert [sandbox.ready for sandbox in outcome.observed.sandboxes] == [True]
        assert outcome.observed.containers == ()
        told = [(entry.event, entry.cause) for entry in at.journal.entries("shop/web")]
        why = "rpc error: code = Unknown desc = it is locked"
        assert ("FailedPodSandBoxStatus", f"Unable to get pod sandbox status: {why}") in told
        assert "FailedCreatePodSandBox" not in dict(told)
        outcome = await at.sync(POD, containers)
        assert not outcome.failed
        assert len(outcome.observed.sandboxes) == 1


async def test_a_container_that_exits_again_and_again_is_looked_at_when_its_back_off_is_over(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    async with node(tmp_path, Behaviour(run_seconds=0.0, exit_code=1)) as at:
        containers = at.open()
        outcome = await at.sync(POD, containers)
        while at.seconds_until(outcome.due_ns) <= 0:
            outcome = await at.sync(POD, containers)
        assert 0 < at.seconds_until(outcome.due_ns) <= 10
        assert containers.reasons["c"].reason == "CrashLoopBackOff"


async def test_the_back_off_after_the_next_start_is_that_of_other_settings(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    policies = [crash_loop_policy()]
    async with node(tmp_path, Behaviour(run_seconds=0.0, exit_code=1)) as at:
        pods = evolve(at.pods, crash_backoff=lambda: policies[-1])
        containers = pods.open(POD)
        outcome = await at.sync(POD, containers)
        while at.seconds_until(outcome.due_ns) <= 0:
            outcome = await at.sync(POD, containers)
        assert at.seconds_until(outcome.due_ns) > 5
        policies.append(crash_loop_policy(2))
        outcome = await at.sync(POD, containers)
        assert at.seconds_until(outcome.due_ns) > 5, "it waits as was decided"
        mock_clock.jump(10)
        outcome = await at.sync(POD, containers)
        while at.seconds_until(outcome.due_ns) <= 0:
            outcome = await at.sync(POD, containers)
        assert at.seconds_until(outcome.due_ns) <= 2


async def test_a_pod_that_is_given_up_has_no_container_that_is_to_run(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    init = Container(name="init", image="busybox", restart_policy="Never")
    pod = evolve(POD, spec=evolve(POD.spec, init_containers=(init,)))
    async with node(tmp_path, Behaviour(run_seconds=1)) as at:
        containers = at.open()
        first = await at.sync(pod, containers)
        await trio.sleep(2)
        at.behave(Behaviour())
        await at.sync(pod, containers)
        assert containers.restarting == frozenset()
        await at.client.stop_pod_sandbox(first.observed.sandboxes[0].id)
        at.behave(Behaviour(run_seconds=1, exit_code=1))
        await at.sync(pod, containers)
        assert "c" in containers.restarting, "its sandbox went, and a new one is there"
        await trio.sleep(2)
        last = await at.sync(pod, containers)
        assert {each.name for each in last.observed.living} == set()
        assert containers.restarting == frozenset(), "its init container has failed for good"


async def test_a_debug_container_does_not_start_without_the_processes_it_is_to_see(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    debug = EphemeralContainer(name="debug", image="busybox", target_container_name="gone")
    pod = evolve(POD, spec=evolve(POD.spec, ephemeral_containers=(debug,)))
    async with node(tmp_path) as at:
        containers = at.open()
        await at.sync(POD, containers)
        outcome = await at.sync(pod, containers)
        assert outcome.failed
        reason = containers.reasons["debug"]
        words = "unable to find target container gone"
        assert (reason.reason, reason.message) == ("CreateContainerConfigError", words)
        assert [container.name for container in outcome.observed.containers] == ["c"]


async def test_a_volume_that_hangs_holds_no_slot_that_others_start_with(tmp_path: Path) -> None:
    mount = VolumeMount(name="nfs", mount_path="/data", sub_path="part")
    mounted = Container(name="c", image="busybox", volume_mounts=(mount,))
    hanging = evolve(
        POD,
        metadata=ObjectMeta(name="hanging", namespace="shop", uid="h"),
        spec=evolve(POD.spec, containers=(mounted,)),
    )
    inputs = PodInputs(volumes={"nfs": PreparedVolume(host_path="/nfs")})
    async with node(tmp_path) as at, trio.open_nursery() as nursery:
        seen = await at.pods.open(hanging).look(hanging)
        nursery.start_soon(at.pods.open(hanging).sync, hanging, seen, Future.resolved(inputs))
        await at.sub_paths.asked.wait()
        with trio.fail_after(10):
            outcome = await at.sync(POD)
        assert outcome.observed.is_running
        nursery.cancel_scope.cancel()


CUT_OFF = (
    'failed to start containerd task "c": context canceled',
    "failed to create containerd task: failed to get task pid: context canceled: unknown",
    "failed to start shim: start failed: : signal: killed: unknown",
)


@pytest.mark.parametrize("words", CUT_OFF)
async def test_a_container_whose_start_was_cut_off_is_made_anew_and_has_not_restarted(
    mock_clock: MockClock, tmp_path: Path, words: str
) -> None:
    """Even where the policy is Never: it was not the container that failed."""
    pod = evolve(POD, spec=evolve(POD.spec, restart_policy="Never"))
    async with node(tmp_path, Behaviour(start_error=words)) as at:
        await at.sync(pod)
        at.behave(Behaviour())
        outcome = await at.sync(pod)
        (there,) = outcome.observed.containers
        assert (there.state, there.restart_count) == (ObservedState.RUNNING, 0)


async def test_a_container_that_could_not_start_by_itself_has_failed(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    pod = evolve(POD, spec=evolve(POD.spec, restart_policy="Never"))
    words = 'exec: "context canceled: unknown": executable file not found in $PATH'
    async with node(tmp_path, Behaviour(start_error=words)) as at:
        await at.sync(pod)
        at.behave(Behaviour())
        outcome = await at.sync(pod)
        assert [c.state for c in outcome.observed.containers] == [ObservedState.EXITED]


async def test_a_start_that_still_goes_on_is_not_doubled(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    """The agent that asked for it was killed, and it takes its time."""
    async with node(tmp_path) as at:
        at.faults.add("StartContainer", CallFault(error=RpcError(Code.UNAVAILABLE, "killed")))
        await at.sync(POD)
        containers = at.open()
        problem = RpcError(Code.UNKNOWN, "container is in starting state, can't be removed")
        at.faults.add("RemoveContainer", CallFault(error=problem))
        outcome = await at.sync(POD, containers)
        assert outcome.failed
        assert containers.reasons["c"].message == problem.message
        (made,) = outcome.observed.containers
        await at.client.start_container(made.id)
        last = await at.sync(POD, containers)
        assert [(c.id, c.state) for c in last.observed.containers] == [
            (made.id, ObservedState.RUNNING)
        ]


async def test_a_start_that_ended_while_its_pod_waited_for_something_is_not_doubled(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    async with node(tmp_path) as at, trio.open_nursery() as nursery:
        at.faults.add("StartContainer", CallFault(error=RpcError(Code.UNAVAILABLE, "killed")))
        await at.sync(POD)
        seen = await at.look(POD)
        inputs = Future[PodInputs]()
        nursery.start_soon(at.open().sync, POD, seen, inputs)
        await trio.testing.wait_all_tasks_blocked()
        await at.client.start_container(seen.containers[0].id)
        await inputs.run(no_inputs)
        await trio.testing.wait_all_tasks_blocked()
        (there,) = (await at.look(POD)).containers
        assert (there.id, there.state) == (seen.containers[0].id, ObservedState.RUNNING)


async def no_inputs() -> PodInputs:
    await trio.lowlevel.checkpoint()
    return NO_INPUTS


async def test_files_with_variables_are_read_at_the_start_and_in_a_thread(tmp_path: Path) -> None:
    readers: list[threading.Thread] = []

    def read(volume: str, path: str, name: str) -> str:
        assert (volume, path, name) == ("data", "app.env", "MODE")
        readers.append(threading.current_thread())
        return "fast"

    reference = FileKeySelector(volume_name="data", path="app.env", key="MODE")
    variable = EnvVar(name="MODE", value_from=EnvVarSource(file_key_ref=reference))
    container = Container(name="c", image="busybox", env=(variable,))
    pod = evolve(POD, spec=evolve(POD.spec, containers=(container,)))
    inputs = PodInputs(sources=EnvironmentSources(env_file_reader=lambda: read))
    async with node(tmp_path) as at:
        seen = await at.look(pod)
        outcome = await at.open().sync(pod, seen, Future.resolved(inputs))
        assert not outcome.failed
        assert readers
        assert threading.main_thread() not in readers


async def test_an_exit_that_restarts_all_makes_everything_anew_in_the_same_sandbox(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    rule = ContainerRestartRule(
        action="RestartAllContainers",
        exit_codes=ContainerRestartRuleOnExitCodes(operator="In", values=(42,)),
    )
    cause = Container(name="cause", image="busybox", restart_policy="Never")
    spec = PodSpec(
        init_containers=(Container(name="init", image="busybox"),),
        containers=(
            evolve(cause, restart_policy_rules=(rule,)),
            Container(name="other", image="busybox"),
        ),
        restart_policy="Never",
    )
    pod = evolve(POD, spec=spec)
    reports: list[ObservedPod] = []
    async with node(tmp_path, Behaviour(run_seconds=1)) as at:
        containers = at.open()
        await at.sync(pod, containers)
        await trio.sleep(2)
        at.behave(Behaviour(run_seconds=5, exit_code=42))
        first = await at.sync(pod, containers)
        (sandbox,) = first.observed.sandboxes
        await trio.sleep(6)
        at.behave(Behaviour(run_seconds=1))
        outcome = await containers.sync(
            pod, await containers.look(pod), Future.resolved(NO_INPUTS), reports.append
        )
        assert {each.id for each in outcome.observed.sandboxes} == {sandbox.id}
        assert [(c.name, c.restart_count) for c in outcome.observed.containers] == [("init", 1)]
        assert {c.name for c in reports[0].containers} == {"init", "cause", "other"}, "then they go"
        await trio.sleep(2)
        at.behave(Behaviour())
        last = await at.sync(pod, containers)
        counts = {c.name: c.restart_count for c in last.observed.containers}
        assert counts == {"init": 1, "cause": 1, "other": 1}


async def test_what_the_node_lacks_for_a_pod_is_told_on_account_of_the_pod(tmp_path: Path) -> None:
    async with node(tmp_path) as at:
        told: list[RecordedEvent] = []
        at.pods.recorder.on_event.add(told.append)
        await at.sync(evolve(POD, spec=evolve(POD.spec, dns_policy="ClusterFirst")))
        of_dns = [each for each in told if each.reason == MISSING_CLUSTER_DNS]
        assert [(each.pod is None, each.caused_by_pod) for each in of_dns] == [
            (True, True),
            (False, False),
        ]


async def test_a_pod_of_many_labels_and_aliases_holds_the_event_loop_for_no_long_turn(
    tmp_path: Path,
) -> None:
    """In one turn each of them would take twice as long as `tests.turns` allows."""
    with making_test_data():
        labels = {f"k{number}": "v" for number in range(200_000)}
        aliases = tuple(HostAlias(ip="1.2.3.4", hostnames=(f"h{n}",)) for n in range(200_000))
        pod = evolve(
            POD,
            metadata=evolve(POD.metadata, labels=labels),
            spec=evolve(POD.spec, host_aliases=aliases),
        )
    async with node(tmp_path) as at:
        assert not (await at.sync(pod)).failed
