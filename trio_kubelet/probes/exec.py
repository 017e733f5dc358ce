"""The exec probe: a command in the container, through the runtime.

A command of a kilobyte may be megabytes once it is expanded, and may run for as long as its probe
allows. So one that is large is expanded, encoded and sent while nobody else's is, and nothing of a
command is kept while it runs.
"""

from contextlib import ExitStack
from functools import partial
from typing import Protocol

from attrs import frozen

from trio_kubelet.k8s import ExecAction
from trio_kubelet.pod_clients.result import (
    OUTPUT_LIMIT_BYTES,
    ProbeError,
    ProbeOutcome,
    ProbeResult,
    failure,
)
from trio_kubelet.pod_clients.share import BYTE_SECONDS, Target
from trio_kubelet.rpc import Code, FieldCut, RpcError, encode_ahead, rpc_words, when_sent
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.config.environment import LARGE
from trio_kubelet.runtime.config.expansion import (
    MAX_BYTES,
    TooLargeError,
    expand_all,
    shown_command,
)
from trio_kubelet.tasks.fair_limiter import Share
from trio_kubelet.tasks.threads import run_in_thread

KILLED = 137
"""The exit code of what SIGKILL has ended, as it ends commands with their container."""
LARGE_BYTES = 16 * 1024
"""Of a command, expanded: thousands may be sent in the same moment."""


class ExecRequest(Protocol):
    """Runs commands in containers; see `RuntimeClient.exec_request`."""

    async def __call__(self, request: cri.ExecSyncRequest, cut: FieldCut) -> cri.ExecSyncResponse:
        """Run a command to its end. Raises RpcError, DEADLINE_EXCEEDED when its time is over."""
        ...


async def probe_exec(
    exec_request: ExecRequest,
    action: ExecAction,
    target: Target,
    timeout_seconds: int,
    large_commands: Share,
) -> ProbeResult:
    """Run the command; exit code 0 is success. Raises ProbeError where it could not be run.

    Variables are expanded from the spec alone, where those that come from elsewhere are empty. A
    large command waits for one of the slots of `large_commands`, and has it until it is sent. The
    bytes of a command and of what it prints count as work for the pod.
    """
    prepare = partial(_prepared, action, target, timeout_seconds)
    command = None if _is_much_work(action, target) else prepare(LARGE_BYTES)
    cut = FieldCut(OUTPUT_LIMIT_BYTES)
    with ExitStack() as slot:
        if command is None:
            await large_commands.acquire_on_behalf_of(slot)
            slot.callback(large_commands.release_on_behalf_of, slot)
            command = await run_in_thread(prepare, MAX_BYTES)
        target.share.use((MAX_BYTES if command is None else command.size_bytes) * BYTE_SECONDS)
        if command is None:
            problem = f"command is too large: expanded it would have more than {MAX_BYTES} bytes"
            raise ProbeError(problem)
        try:
            with when_sent(slot.close):
                result = await exec_request(command.request, cut)
        except RpcError as error:
            if error.code is Code.DEADLINE_EXCEEDED:
                late = f"timed out after {timeout_seconds}s"
                output = f'command timed out: "{command.shown}" {late}'
                return ProbeResult(outcome=ProbeOutcome.FAILURE, output=output, timed_out=True)
            raise ProbeError(rpc_words(error.code, error.message)) from error
    target.share.use(cut.received * BYTE_SECONDS)
    output = (result.stdout + result.stderr)[:OUTPUT_LIMIT_BYTES].decode(errors="replace")
    if result.exit_code != 0:
        return failure(output, cut_off=result.exit_code == KILLED)
    return ProbeResult(outcome=ProbeOutcome.SUCCESS, output=output, by_container=True)


@frozen
class _Command:
    """A command that is expanded and encoded; `shown` is how messages show it."""

    request: cri.ExecSyncRequest
    size_bytes: int
    shown: str


def _prepared(
    action: ExecAction, target: Target, timeout_seconds: int, most_bytes: int
) -> _Command | None:
    """Expand and encode a command; None if it would have more bytes. Raises ProbeError."""
    environment = {each.name: each.value for each in target.container.env}
    try:
        command = expand_all(action.command, environment, most_bytes)
    except TooLargeError:
        return None
    request = cri.ExecSyncRequest(
        container_id=target.container_id, cmd=command, timeout=timeout_seconds
    )
    try:
        size_bytes = encode_ahead(request)
    except RpcError as error:
        raise ProbeError(rpc_words(error.code, error.message)) from error
    request.cmd = []  # It is encoded, and the transports keep the request until the command ends.
    return _Command(request, size_bytes, shown_command(command))


def _is_much_work(action: ExecAction, target: Target) -> bool:
    """True if it takes milliseconds to find out how large the expanded command is."""
    return (
        len(target.container.env) > LARGE
        or len(action.command) > LARGE
        or sum(map(len, action.command)) > LARGE_BYTES
    )
