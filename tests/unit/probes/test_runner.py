"""One run of a probe: how often it is tried, what a gate changes, whether the container runs."""

from typing import cast

import pytest
import trio
from attrs import define, field, frozen
from trio.testing import MockClock

from state_machines.probe import ProbeKind
from trio_kubelet.k8s import Container, ExecAction, HTTPGetAction, Probe
from trio_kubelet.pod_clients.result import ProbeError, ProbeOutcome, ProbeResult
from trio_kubelet.pod_clients.share import ProbeShare, Target
from trio_kubelet.probes import NodeNetwork, ProbeRunner, answer_for_all
from trio_kubelet.probes.runner import ProbeMessage, message_of, message_of_error
from trio_kubelet.rpc import Code, FieldCut, RpcError, rpc_words
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.telemetry import EventType

TARGET = Target(
    container=Container(name="c"), container_id="c-0", pod_ip="10.0.0.2", share=ProbeShare()
)
COMMAND = Probe(exec=ExecAction(command=("check",)))
WELL = ProbeResult(outcome=ProbeOutcome.SUCCESS, by_container=True)
ERROR = ProbeError("no port")
RUNNING, EXITED, UNKNOWN = (
    cri.ContainerState.CONTAINER_RUNNING,
    cri.ContainerState.CONTAINER_EXITED,
    cri.ContainerState.CONTAINER_UNKNOWN,
)


@define
class Runtime:
    """Answers commands and requests for the status of containers; None: it does not answer."""

    command: RpcError | int = 0
    state: RpcError | int | None = RUNNING
    seconds: list[int] = field(factory=list)

    async def exec_request(
        self, request: cri.ExecSyncRequest, _cut: FieldCut
    ) -> cri.ExecSyncResponse:
        await trio.lowlevel.checkpoint()
        self.seconds.append(request.timeout)
        if isinstance(self.command, RpcError):
            raise self.command
        return cri.ExecSyncResponse(exit_code=self.command)

    async def container_status(self, _container_id: str) -> cri.ContainerStatusResponse:
        if self.state is None:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        if isinstance(self.state, RpcError):
            raise self.state
        return cri.ContainerStatusResponse(
            status=cri.ContainerStatus(state=cri.ContainerState(self.state))
        )


@frozen
class Network:
    """Gives its answers one after the other."""

    answers: list[ProbeResult | ProbeError]

    async def ask(self, _probe: Probe, _target: Target, _seconds: int) -> ProbeResult:
        await trio.lowlevel.checkpoint()
        answer = self.answers.pop(0)
        if isinstance(answer, ProbeError):
            raise answer
        return answer


def runner(runtime: Runtime, *, exec_timeouts: bool = True) -> ProbeRunner:
    client = cast("RuntimeClient", runtime)
    return ProbeRunner(client=client, ask_over_network=answer_for_all, exec_timeouts=exec_timeouts)


@pytest.mark.parametrize("errors", [0, 1, 2])
async def test_a_probe_that_cannot_be_run_is_tried_again_at_once(errors: int) -> None:
    network = Network([*[ERROR] * errors, WELL])
    client = cast("RuntimeClient", Runtime())
    once = ProbeRunner(client=client, ask_over_network=network.ask)
    assert await once.run(Probe(http_get=HTTPGetAction()), TARGET) is WELL


async def test_a_probe_is_tried_three_times_at_most() -> None:
    network = Network([ERROR, ERROR, ERROR, WELL])
    client = cast("RuntimeClient", Runtime())
    once = ProbeRunner(client=client, ask_over_network=network.ask)
    with pytest.raises(ProbeError):
        await once.run(Probe(http_get=HTTPGetAction()), TARGET)
    assert network.answers == [WELL]


LATE = RpcError(Code.DEADLINE_EXCEEDED, "context deadline exceeded")


async def test_a_late_command_has_failed() -> None:
    answer = await runner(Runtime(command=LATE)).run(COMMAND, TARGET)
    assert (answer.outcome, answer.timed_out) == (ProbeOutcome.FAILURE, True)


async def test_without_the_gate_a_late_command_proves_nothing() -> None:
    with pytest.raises(ProbeError, match="timed out after 1s"):
        await runner(Runtime(command=LATE), exec_timeouts=False).run(COMMAND, TARGET)


@pytest.mark.parametrize(("seconds", "given"), [(None, 1), (1, 1), (7, 7)])
async def test_a_command_has_the_timeout_of_its_probe(seconds: int | None, given: int) -> None:
    runtime = Runtime()
    probe = Probe(exec=ExecAction(command=("check",)), timeout_seconds=seconds)
    await runner(runtime).run(probe, TARGET)
    assert runtime.seconds == [given]


async def test_a_probe_that_asks_for_nothing_is_an_error() -> None:
    with pytest.raises(ProbeError, match="missing probe handler for container c"):
        await NodeNetwork().ask(Probe(), TARGET, 1)


@pytest.mark.parametrize(
    ("state", "runs"),
    [
        (RUNNING, True),
        (EXITED, False),
        (UNKNOWN, False),
        (RpcError(Code.NOT_FOUND, "gone"), False),
        (RpcError(Code.UNAVAILABLE, "away"), True),
        (None, True),
    ],
)
async def test_a_container_is_taken_to_run_unless_the_runtime_says_that_it_does_not(
    autojump_clock: MockClock, state: RpcError | int | None, runs: bool
) -> None:
    assert await runner(Runtime(state=state)).runs("c-0") is runs


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (ProbeOutcome.SUCCESS, None),
        (
            ProbeOutcome.WARNING,
            ProbeMessage(reason="ProbeWarning", message="Liveness probe warning: so it is"),
        ),
        (
            ProbeOutcome.FAILURE,
            ProbeMessage(reason="Unhealthy", message="Liveness probe failed: so it is"),
        ),
    ],
)
def test_what_users_are_told_of_a_run(outcome: ProbeOutcome, message: ProbeMessage | None) -> None:
    answer = ProbeResult(outcome=outcome, output="so it is")
    assert message_of(ProbeKind.LIVENESS, answer) == message
    assert message is None or message.type is EventType.WARNING


@pytest.mark.parametrize("outcome", [ProbeOutcome.UNKNOWN, ProbeOutcome.FAILURE])
def test_what_users_are_told_of_a_probe_that_could_not_be_run(outcome: ProbeOutcome) -> None:
    told = message_of_error(ProbeKind.STARTUP, ProbeError("no port", outcome))
    words = f"Startup probe errored and resulted in {outcome} state: no port"
    assert told == ProbeMessage(reason="Unhealthy", message=words)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (Code.UNKNOWN, "Unknown"),
        (Code.NOT_FOUND, "NotFound"),
        (Code.DEADLINE_EXCEEDED, "DeadlineExceeded"),
        (Code.RESOURCE_EXHAUSTED, "ResourceExhausted"),
        (Code.CANCELLED, "Canceled"),
    ],
)
def test_errors_of_calls_are_worded_as_by_go(code: Code, name: str) -> None:
    assert rpc_words(code, "why") == f"rpc error: code = {name} desc = why"
