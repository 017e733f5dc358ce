"""The exec probe: a command in the container, through the runtime."""

from collections.abc import Sequence
from typing import Protocol

from trio_kubelet.k8s import ExecAction
from trio_kubelet.pod_clients.result import (
    OUTPUT_LIMIT_BYTES,
    ProbeError,
    ProbeOutcome,
    ProbeResult,
    failure,
)
from trio_kubelet.pod_clients.share import BYTE_SECONDS, Target
from trio_kubelet.rpc import Code, FieldCut, RpcError, rpc_words
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.config.environment import LARGE, LARGE_BYTES
from trio_kubelet.runtime.config.expansion import (
    MAX_BYTES,
    TooLargeError,
    expand_all,
    shown_command,
)
from trio_kubelet.tasks.fair_limiter import Share

KILLED = 137
"""The exit code of what SIGKILL has ended, as it ends commands with their container."""


class ExecSync(Protocol):
    """Runs commands in containers; see `RuntimeClient.exec_sync`."""

    async def __call__(
        self, container_id: str, command: Sequence[str], timeout_seconds: int, cut: FieldCut
    ) -> cri.ExecSyncResponse:
        """Run a command to its end. Raises RpcError, DEADLINE_EXCEEDED when its time is over."""
        ...


async def probe_exec(
    exec_sync: ExecSync,
    action: ExecAction,
    target: Target,
    timeout_seconds: int,
    threads: Share,
) -> ProbeResult:
    """Run the command; exit code 0 is success. Raises ProbeError where it could not be run.

    Variables are expanded from the spec alone, where those that come from elsewhere are empty; with
    one of the `threads` where the command is long. What it prints counts as work for the pod.
    """
    env = target.container.env

    def expanded() -> Sequence[str]:
        return expand_all(action.command, {each.name: each.value for each in env})

    is_long = len(action.command) > LARGE or sum(map(len, action.command)) > LARGE_BYTES
    try:
        command = await threads.run_sync(expanded) if len(env) > LARGE or is_long else expanded()
    except TooLargeError:
        problem = f"command is too large: expanded it would have more than {MAX_BYTES} bytes"
        raise ProbeError(problem) from None
    cut = FieldCut(OUTPUT_LIMIT_BYTES)
    try:
        result = await exec_sync(target.container_id, command, timeout_seconds, cut)
    except RpcError as error:
        if error.code is Code.DEADLINE_EXCEEDED:
            late = f"timed out after {timeout_seconds}s"
            output = f'command timed out: "{shown_command(command)}" {late}'
            return ProbeResult(outcome=ProbeOutcome.FAILURE, output=output, timed_out=True)
        raise ProbeError(rpc_words(error.code, error.message)) from error
    target.share.use(cut.received * BYTE_SECONDS)
    output = (result.stdout + result.stderr)[:OUTPUT_LIMIT_BYTES].decode(errors="replace")
    if result.exit_code != 0:
        return failure(output, cut_off=result.exit_code == KILLED)
    return ProbeResult(outcome=ProbeOutcome.SUCCESS, output=output, by_container=True)
