"""Runs a probe once, by whichever of the four ways it asks for, and says what users are told.

What could not be run is tried again at once, as by the Go kubelet; what the container answers
counts as it is.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio
from attrs import field, frozen

from state_machines.probe import ProbeKind
from trio_kubelet.k8s import Probe
from trio_kubelet.pod_clients.dial import Dialer, probe_tcp
from trio_kubelet.pod_clients.grpc import probe_grpc
from trio_kubelet.pod_clients.http import HttpProber
from trio_kubelet.pod_clients.result import ProbeError, ProbeOutcome, ProbeResult
from trio_kubelet.pod_clients.share import Target
from trio_kubelet.probes.exec import probe_exec
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.telemetry import EventType

MOST_TRIES = 3
LARGE_COMMANDS = 1
"""Expanded, encoded and sent at a time: one may take 40 MiB meanwhile."""
LOOK_SECONDS = 1.0
"""A runtime that takes longer to say whether a container runs is not waited for."""


AskOverNetwork = Callable[[Probe, Target, int], Awaitable[ProbeResult]]
"""Runs a probe of another kind than exec, in some seconds at most. Raises ProbeError."""


class NodeNetwork:
    """Runs probes over the network of the node."""

    def __init__(self) -> None:
        self._dialer = Dialer()
        self._http = HttpProber(self._dialer)

    async def ask(self, probe: Probe, target: Target, seconds: int) -> ProbeResult:
        """Run a probe that is no command. Raises ProbeError."""
        dialer, container, ip, share = (
            self._dialer,
            target.container,
            target.pod_ip,
            target.share,
        )
        if probe.http_get is not None:
            return await self._http.probe(probe.http_get, container, ip, seconds, share)
        if probe.tcp_socket is not None:
            return await probe_tcp(dialer, probe.tcp_socket, container, ip, seconds, share)
        if probe.grpc is not None:
            return await probe_grpc(dialer, probe.grpc, ip, seconds, share)
        raise ProbeError(f"missing probe handler for container {container.name}")


async def answer_for_all(_probe: Probe, _target: Target, _seconds: int) -> ProbeResult:
    """Answer in place of containers: for a runtime without a kernel, whose pods have no network."""
    await trio.lowlevel.checkpoint()
    return ProbeResult(outcome=ProbeOutcome.SUCCESS, by_container=True)


@frozen(kw_only=True)
class ProbeRunner:
    """Runs probes. `exec_timeouts` is the gate ExecProbeTimeout: a late command has failed."""

    client: RuntimeClient
    ask_over_network: AskOverNetwork
    exec_timeouts: bool = True
    _large_commands: FairLimiter = field(
        init=False, factory=lambda: FairLimiter(LARGE_COMMANDS, LARGE_COMMANDS)
    )

    async def run(self, probe: Probe, target: Target) -> ProbeResult:
        """Run a probe, for which the pod's share was waited for.

        Raises ProbeError if it could not be run, however often it was tried.
        """
        for _ in range(MOST_TRIES - 1):
            with suppress(ProbeError):
                return await self._run(probe, target)
            await target.share.wait()
        return await self._run(probe, target)

    async def _run(self, probe: Probe, target: Target) -> ProbeResult:
        seconds = probe.timeout_seconds or 1
        if probe.exec is None:
            return await self.ask_over_network(probe, target, seconds)
        result = await probe_exec(
            self.client.exec_request,
            probe.exec,
            target,
            seconds,
            self._large_commands.share_of(target.share),
        )
        if result.timed_out and not self.exec_timeouts:
            raise ProbeError(result.output)
        return result

    async def runs(self, container_id: str) -> bool:
        """True if a container still runs, as far as the runtime tells in time."""
        with trio.move_on_after(LOOK_SECONDS):
            try:
                response = await self.client.container_status(container_id)
            except RpcError as error:
                return error.code is not Code.NOT_FOUND
            return response.status.state is cri.ContainerState.CONTAINER_RUNNING
        return True


@frozen(kw_only=True)
class ProbeMessage:
    """The message of a run's event."""

    reason: str
    message: str
    type: EventType = EventType.WARNING


def message_of(kind: ProbeKind, result: ProbeResult) -> ProbeMessage | None:
    """Return what users are told of a run; nothing of a plain success."""
    if result.outcome is ProbeOutcome.WARNING:
        return ProbeMessage(reason="ProbeWarning", message=f"{kind} probe warning: {result.output}")
    if result.outcome is ProbeOutcome.FAILURE:
        return ProbeMessage(reason="Unhealthy", message=f"{kind} probe failed: {result.output}")
    return None


def message_of_error(kind: ProbeKind, error: ProbeError) -> ProbeMessage:
    """Return what users are told of a probe that could not be run."""
    resulted = f"probe errored and resulted in {error.outcome} state"
    return ProbeMessage(reason="Unhealthy", message=f"{kind} {resulted}: {error}")
