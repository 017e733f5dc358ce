"""Stopping what runs of a pod: hooks, graces and what fails, on the hollow runtime."""

from collections import Counter
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import evolve
from structlog.testing import capture_logs
from trio.testing import MockClock

from state_machines.pod import seen_stopped
from tests.unit.runtime.hollow_nodes import POD, node
from trio_kubelet.hollow import (
    Behaviour,
    CallFault,
    ExecResult,
)
from trio_kubelet.k8s import (
    Container,
    ExecAction,
    Lifecycle,
    LifecycleHandler,
    Pod,
    SleepAction,
)
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.observed import ObservedState
from trio_kubelet.tasks.turns import TURNS_IN_A_ROUND
from trio_kubelet.telemetry.events import RecordedEvent


def with_failing_hook(pod: Pod, grace_seconds: int) -> Pod:
    handler = LifecycleHandler(exec=ExecAction(command=("false",)))
    container = evolve(pod.spec.containers[0], lifecycle=Lifecycle(post_start=handler))
    spec = evolve(pod.spec, containers=(container,), termination_grace_period_seconds=grace_seconds)
    return evolve(pod, spec=spec)


STUBBORN = Behaviour(obeys_term=None, execs={"false": ExecResult(exit_code=1)})


async def test_the_stop_after_a_failed_hook_does_not_outlast_the_sync(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with node(tmp_path, STUBBORN) as at:
        began = trio.current_time()
        with trio.move_on_after(5):
            await at.sync(with_failing_hook(POD, grace_seconds=3600))
        assert trio.current_time() - began == 5


async def test_a_stop_that_fails_after_a_failed_hook_hides_no_hook(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with node(tmp_path, STUBBORN) as at:
        at.faults.add("StopContainer", CallFault(error=RpcError(Code.UNKNOWN, "not now")))
        containers = at.open()
        assert (await at.sync(with_failing_hook(POD, grace_seconds=1), containers)).failed
        assert containers.reasons["c"].reason == "PostStartHookError"


async def test_a_sandbox_that_died_by_itself_is_stopped_with_its_pod_to_give_back_its_network(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    async with node(tmp_path) as at:
        containers = at.open()
        sandbox = (await at.sync(POD, containers)).observed.sandboxes[0].id
        await at.client.stop_pod_sandbox(sandbox)
        at.faults.add("StopPodSandbox", CallFault(error=RpcError(Code.UNKNOWN, "asked for")))
        with pytest.raises(RpcError, match="asked for"):
            await containers.stop(POD, 1)


async def test_what_a_late_call_of_an_earlier_agent_started_is_stopped_before_it_is_removed(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with node(tmp_path) as at:
        await at.sync(POD)
        at.faults.add("StopContainer", CallFault(error=RpcError(Code.UNKNOWN, "asked for")))
        with pytest.raises(RpcError, match="asked for"):
            await at.open().remove(POD)
        await at.open().remove(POD)
        observed = await at.look(POD)
        assert (observed.sandboxes, observed.containers) == ((), ())


async def test_a_container_that_cannot_be_stopped_cuts_no_others_grace_short(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    two = evolve(
        POD.spec,
        containers=(Container(name="c", image="busybox"), Container(name="d", image="busybox")),
    )
    pod = evolve(POD, spec=two)
    async with node(tmp_path, Behaviour(obeys_term=5.0)) as at:
        containers = at.open()
        await at.sync(pod, containers)
        at.faults.add("StopContainer", CallFault(error=RpcError(Code.UNKNOWN, "not now")))
        began = trio.current_time()
        with pytest.raises(RpcError, match="not now"):
            await containers.stop(pod, 30)
        assert trio.current_time() - began == 5, "the other had its grace"
        observed = await at.look(pod)
        assert {c.state for c in observed.containers} == {ObservedState.EXITED}
        assert not any(sandbox.ready for sandbox in observed.sandboxes)


@pytest.mark.parametrize("grace_seconds", [0, 1, 2])
async def test_a_process_has_two_seconds_to_end_however_short_its_grace_is(
    autojump_clock: MockClock, tmp_path: Path, grace_seconds: int
) -> None:
    async with node(tmp_path, Behaviour(obeys_term=1.5, term_exit_code=0)) as at:
        containers = at.open()
        await at.sync(POD, containers)
        evidence = await containers.stop(POD, grace_seconds)
        assert evidence.running == ()
        (container,) = (await at.look(POD)).containers
        assert container.exit_code == 0, "it was not killed"


def slept_before(seconds: int) -> Lifecycle:
    return Lifecycle(pre_stop=LifecycleHandler(sleep=SleepAction(seconds=seconds)))


async def test_the_hooks_of_sidecars_begin_with_all_others_and_only_their_stop_waits_its_turn(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    main = Container(name="main", image="busybox", lifecycle=slept_before(6))
    sidecar = Container(
        name="sidecar", image="busybox", restart_policy="Always", lifecycle=slept_before(10)
    )
    pod = evolve(POD, spec=evolve(POD.spec, containers=(main,), init_containers=(sidecar,)))
    async with node(tmp_path, Behaviour(obeys_term=1.0)) as at:
        containers = at.open()
        await at.sync(pod, containers)
        began = trio.current_time()
        await containers.stop(pod, 60)
        assert trio.current_time() - began == 11, "ten for the longer hook, one for the stop"


async def test_a_container_whose_start_hook_fails_has_its_stop_hook_run(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    pod = with_failing_hook(POD, grace_seconds=30)
    (container,) = pod.spec.containers
    assert container.lifecycle is not None
    both = evolve(container.lifecycle, pre_stop=slept_before(7).pre_stop)
    pod = evolve(pod, spec=evolve(pod.spec, containers=(evolve(container, lifecycle=both),)))
    async with node(tmp_path, evolve(STUBBORN, obeys_term=0.0)) as at:
        began = trio.current_time()
        assert (await at.sync(pod)).failed
        assert trio.current_time() - began == 7


async def test_what_the_table_refuses_is_told_and_holds_up_no_removal(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    """The runtime says of a container that ran that it was never started."""
    async with node(tmp_path) as at:
        containers = at.open()
        outcome = await at.sync(POD, containers)
        await at.client.stop_pod_sandbox(outcome.observed.sandboxes[0].id)
        (made,) = at.runtime.containers
        made.started_at = made.finished_at = 0
        await containers.look(POD)
        with capture_logs() as told:
            await containers.remove(POD)
        assert list(at.runtime.containers) == []
        errors = [line["event"] for line in told if line["log_level"] == "error"]
        assert errors == ["container event refused"] * 2
        noted = [
            entry.cause for entry in at.journal.entries("shop/web") if entry.event == "Refused"
        ]
        assert ["Created is illegal in Running" in noted[0], "Removed" in noted[1]] == [True, True]


async def test_a_pod_of_which_there_is_nothing_is_looked_at_once(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with node(tmp_path) as at:
        at.faults.add("ListPodSandbox", CallFault(delay_seconds=5))
        at.faults.add("ListPodSandbox", CallFault(delay_seconds=50))
        evidence = await at.open().stop(POD, 1)
        assert trio.current_time() == 5
        assert seen_stopped(evidence)


class Rounds(trio.abc.Instrument):
    """Counts the rounds of the event loop."""

    count = 0

    def after_io_wait(self, timeout: float) -> None:
        self.count += 1


async def test_hundreds_of_containers_stop_in_turns_within_the_same_grace(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    containers = tuple(
        Container(name=f"c{number}", image="busybox", lifecycle=slept_before(20))
        for number in range(200)
    )
    pod = evolve(POD, spec=evolve(POD.spec, containers=containers))
    rounds, begun, stopped = Rounds(), Counter[int](), Counter[int]()
    stop_container = RuntimeClient.stop_container

    async def stop(client: RuntimeClient, container_id: str, grace_seconds: int) -> None:
        stopped[rounds.count] += 1
        assert grace_seconds == 10, "what the hook has left of it"
        await stop_container(client, container_id, grace_seconds)

    def note(event: RecordedEvent) -> None:
        begun[rounds.count] += event.reason == "Killing"

    async with node(tmp_path, Behaviour(obeys_term=None)) as at:
        incarnation = at.open()
        await at.sync(pod, incarnation)
        monkeypatch.setattr(RuntimeClient, "stop_container", stop)
        at.pods.recorder.on_event.add(note)
        trio.lowlevel.add_instrument(rounds)
        began = trio.current_time()
        await incarnation.stop(pod, 30)
        assert trio.current_time() - began == 30, "all had the same grace"
    for each in (begun, stopped):
        assert each.total() == 200
        # Tasks run in any order within a round, so neighbours may see the same number.
        assert max(each.values()) <= 2 * TURNS_IN_A_ROUND
