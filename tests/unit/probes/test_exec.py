"""The exec probe: what succeeds, what fails, in which words, and what a large command takes."""

import pytest
import trio
from attrs import define, field

from trio_kubelet.k8s import Container, EnvVar, EnvVarSource, ExecAction
from trio_kubelet.pod_clients.result import (
    OUTPUT_LIMIT_BYTES,
    ProbeError,
    ProbeOutcome,
    ProbeResult,
)
from trio_kubelet.pod_clients.share import BYTE_SECONDS, ProbeShare, Target
from trio_kubelet.probes.exec import LARGE_BYTES, probe_exec
from trio_kubelet.rpc import Code, FieldCut, InProcess, RpcError
from trio_kubelet.rpc.messages import encode
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.config.expansion import MAX_BYTES
from trio_kubelet.tasks.fair_limiter import FairLimiter


class Shell:
    """Stands in for the runtime's ExecSync."""

    def __init__(self, result: cri.ExecSyncResponse | RpcError) -> None:
        self.result = result
        self.asked: list[tuple[str, list[str], int]] = []

    async def __call__(self, request: cri.ExecSyncRequest, cut: FieldCut) -> cri.ExecSyncResponse:
        await trio.lowlevel.checkpoint()
        assert not request.cmd, "a request that is kept while the command runs has the command"
        sent = cri.ExecSyncRequest().parse(encode(request))
        self.asked.append((sent.container_id, sent.cmd, sent.timeout))
        if isinstance(self.result, RpcError):
            raise self.result
        cut.feed(bytes(self.result))
        return cri.ExecSyncResponse().parse(cut.message())


async def run(
    shell: Shell,
    command: tuple[str, ...],
    *env: EnvVar,
    share: ProbeShare | None = None,
    slots: FairLimiter | None = None,
) -> ProbeResult:
    return await probe_exec(
        shell,
        ExecAction(command=command),
        Target(
            container=Container(name="c", env=env),
            container_id="id",
            pod_ip="",
            share=share or ProbeShare(),
        ),
        3,
        (slots or FairLimiter(1, 1)).share("namespace"),
    )


async def execute(result: cri.ExecSyncResponse | RpcError) -> tuple[ProbeResult, Shell]:
    shell = Shell(result)
    env = EnvVar(name="FILE", value="/tmp/up"), EnvVar(name="NODE", value_from=EnvVarSource())
    return await run(shell, ("cat", "$(FILE)", "$(NODE)", "$$(FILE)"), *env), shell


async def test_a_command_is_run_with_the_values_of_variables_that_stand_in_the_spec() -> None:
    came, shell = await execute(cri.ExecSyncResponse(stdout=b"fine"))
    assert (came.outcome, came.output) == (ProbeOutcome.SUCCESS, "fine")
    assert shell.asked == [("id", ["cat", "/tmp/up", "", "$(FILE)"], 3)]


async def test_a_long_command_is_expanded_beside_the_event_loop() -> None:
    shell, slots = Shell(cri.ExecSyncResponse()), FairLimiter(1, 1)
    command = ("true", *("$(A)" * 20_000 for _ in range(20)))
    for _ in range(3):  # What a turn may take is measured in every test.
        await run(shell, command, EnvVar(name="A", value="a"), slots=slots)
    assert shell.asked[-1][1] == ["true", *["a" * 20_000] * 20]
    assert not slots.held


class CountedShare(ProbeShare):
    """Adds up the work that is counted."""

    def __init__(self) -> None:
        super().__init__()
        self.used_seconds = 0.0

    def use(self, seconds: float) -> None:
        self.used_seconds += seconds


async def test_the_bytes_of_a_command_count_as_work_for_the_pod() -> None:
    share = CountedShare()
    variable = EnvVar(name="A", value="a" * 5000)
    await run(Shell(cri.ExecSyncResponse()), ("$(A)" * 1000,), variable, share=share)
    assert share.used_seconds == pytest.approx(5_000_000 * BYTE_SECONDS, rel=0.01)


async def test_a_command_that_is_too_large_counts_as_work_and_is_not_run() -> None:
    share, shell, slots = CountedShare(), Shell(cri.ExecSyncResponse()), FairLimiter(1, 1)
    variable = EnvVar(name="A", value="a" * 50_000)
    with pytest.raises(ProbeError, match="it would have more than 6291456 bytes"):
        await run(shell, ("$(A)" * 1000,), variable, share=share, slots=slots)
    assert share.used_seconds == MAX_BYTES * BYTE_SECONDS
    assert not slots.held
    assert not shell.asked


@define
class Runtime:
    """Runs commands that do not end; `arrived` are their bytes."""

    arrived: list[int] = field(factory=list)

    async def exec_sync(self, request: cri.ExecSyncRequest) -> cri.ExecSyncResponse:
        self.arrived.append(sum(map(len, request.cmd)))
        await trio.sleep_forever()
        raise AssertionError


async def test_a_large_command_has_its_slot_until_it_is_sent() -> None:
    """And not until it ends: hundreds may run at the same time."""
    runtime, slots = Runtime(), FairLimiter(1, 1)
    client = RuntimeClient(InProcess(runtime))
    variable = EnvVar(name="A", value="a" * LARGE_BYTES)
    target = Target(
        container=Container(name="c", env=(variable,)),
        container_id="id",
        pod_ip="",
        share=ProbeShare(),
    )

    async def ask() -> None:
        action = ExecAction(command=("$(A)",))
        await probe_exec(client.exec_request, action, target, 3, slots.share("namespace"))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask)
        with trio.fail_after(60):
            while len(runtime.arrived) < 3 or slots.held:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert runtime.arrived == [LARGE_BYTES] * 3


async def test_a_large_command_waits_for_those_before_it_and_a_small_one_does_not() -> None:
    shell, slots = Shell(cri.ExecSyncResponse()), FairLimiter(1, 1)
    variable = EnvVar(name="A", value="a" * LARGE_BYTES)
    async with slots.share("another namespace"):
        await run(shell, ("true",), variable, slots=slots)
        with trio.move_on_after(0.01) as waiting:
            await run(shell, ("$(A)",), variable, slots=slots)
        assert waiting.cancelled_caught
    await run(shell, ("$(A)",), variable, slots=slots)
    assert [command for _, command, _ in shell.asked] == [["true"], ["a" * LARGE_BYTES]]
    assert not slots.held


async def test_a_large_command_that_fails_gives_its_slot_back() -> None:
    shell, slots = Shell(RpcError(Code.UNAVAILABLE, "away")), FairLimiter(1, 1)
    with pytest.raises(ProbeError, match="away"):
        await run(shell, ("a" * 2 * LARGE_BYTES,), slots=slots)
    assert not slots.held


@pytest.mark.parametrize(("exit_code", "cut_off"), [(1, False), (137, True), (255, False)])
async def test_a_command_that_fails_says_what_it_printed_and_whether_it_was_killed(
    exit_code: int, cut_off: bool
) -> None:
    printed = cri.ExecSyncResponse(stdout=b"out\n", stderr=b"err\n", exit_code=exit_code)
    came, _ = await execute(printed)
    assert (came.outcome, came.output) == (ProbeOutcome.FAILURE, "out\nerr\n")
    assert came.cut_off is cut_off


async def test_what_a_command_prints_is_cut() -> None:
    came, _ = await execute(cri.ExecSyncResponse(stdout=b"x" * 20000, exit_code=1))
    assert len(came.output) == OUTPUT_LIMIT_BYTES


async def test_a_command_that_is_late_fails() -> None:
    came, _ = await execute(RpcError(Code.DEADLINE_EXCEEDED, "context deadline exceeded"))
    assert (came.outcome, came.timed_out) == (ProbeOutcome.FAILURE, True)
    said = 'command timed out: "cat /tmp/up  $(FILE)" timed out after 3s'
    assert came.output == said


async def test_a_command_that_the_runtime_cannot_run_is_an_error() -> None:
    with pytest.raises(ProbeError) as caught:
        await execute(RpcError(Code.UNKNOWN, "failed to exec in container"))
    said = "rpc error: code = Unknown desc = failed to exec in container"
    assert (str(caught.value), caught.value.outcome) == (said, ProbeOutcome.UNKNOWN)
