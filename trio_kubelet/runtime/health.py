"""The runtime's health: one place that knows it, and one task that asks.

The consumers of the sync loop wait until it is up, and a change of its state wakes whoever asked to
be told. `check_runtime` asks the runtime every five seconds. While it does not answer it is
asked again after 100 ms, then more and more rarely up to five seconds, with one line in the log
a minute: a runtime that is not there yet is waited for.
"""

import structlog
import trio
from attrs import evolve, field, frozen

from state_machines.backoff import BackoffPolicy
from trio_kubelet.rpc import RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.handlers import RuntimeFeatures, features_of
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.retries import Retries

log = structlog.get_logger("runtime")

CHECK_SECONDS = 5.0
RETRY = BackoffPolicy(initial_seconds=0.1, cap_seconds=CHECK_SECONDS)
STATUS_DEADLINE_SECONDS = 10.0


@frozen(kw_only=True)
class RuntimeState:
    """The last word of the runtime. `reason` says why it is not up, or its network not ready.

    `answered` is False while it does not answer, None before it was asked. The network's state
    and `runtime_features` are those of its last answer: a runtime that does not answer says nothing
    of its network.
    """

    answered: bool | None = None
    up: bool = False
    network_ready: bool = False
    reason: str = "container runtime status check may not have completed yet"
    network_reason: str = ""
    runtime_features: RuntimeFeatures = field(factory=RuntimeFeatures)

    @property
    def network_error(self) -> str:
        """Why the network is not ready, in the Go kubelet's words; empty if it is."""
        if self.network_ready:
            return ""
        if self.answered is None:
            return "network state unknown"
        return f"container runtime network not ready: {self.network_reason}"


class RuntimeHealth:
    """The last word of the runtime, for all who wait for it. Written by the runtime check alone.

    `on_change` is called with the state before and the new one.
    """

    def __init__(self) -> None:
        self.state = RuntimeState()
        self._up = trio.Event()
        self.on_change: Callbacks[[RuntimeState, RuntimeState]] = Callbacks()

    def update(self, state: RuntimeState) -> None:
        """Take over what the runtime said."""
        before, self.state = self.state, state
        if state.up and not self._up.is_set():
            self._up.set()
        elif not state.up and self._up.is_set():
            self._up = trio.Event()
        if before != state:
            self.on_change.call(before, state)

    def runtime_features(self) -> RuntimeFeatures:
        """The handlers and features that the runtime told of last."""
        return self.state.runtime_features

    def mark_down(self, reason: str) -> None:
        """The runtime did not answer."""
        self.update(evolve(self.state, answered=False, up=False, reason=reason))

    async def wait_up(self) -> None:
        """Return as soon as the runtime is up, at once if it is."""
        await self._up.wait()


async def check_runtime(client: RuntimeClient, health: RuntimeHealth) -> None:
    """Ask the runtime for ever, and keep `health` true."""
    retries = Retries(RETRY)
    while True:
        try:
            is_up = await _check_once(client, health, retries)
        except Exception:
            log.exception("runtime status check failed, will retry")
            is_up = False
        if is_up:
            retries.reset()
            await trio.sleep(CHECK_SECONDS if health.state.network_ready else 1.0)
        else:
            await retries.wait()


async def _check_once(client: RuntimeClient, health: RuntimeHealth, retries: Retries) -> bool:
    """Ask the runtime once; True if there was an answer."""
    try:
        with trio.fail_after(STATUS_DEADLINE_SECONDS):
            response = await client.status()
    except (RpcError, trio.TooSlowError) as error:
        reason = error.message if isinstance(error, RpcError) else "it does not answer"
        retries.warn(log, "waiting for the container runtime", reason=reason)
        health.mark_down(f"container runtime is down: {reason}")
        return False
    health.update(runtime_state(response))
    return True


def runtime_state(response: cri.StatusResponse) -> RuntimeState:
    """The state that the runtime's conditions tell."""
    conditions = {condition.type: condition for condition in response.status.conditions}
    ready, network = conditions.get("RuntimeReady"), conditions.get("NetworkReady")
    return RuntimeState(
        answered=True,
        up=ready is not None and ready.status,
        network_ready=network is not None and network.status,
        reason=_why(ready, "RuntimeReady"),
        network_reason=_why(network, "NetworkReady"),
        runtime_features=features_of(response),
    )


def _why(condition: cri.RuntimeCondition | None, name: str) -> str:
    if condition is None:
        return f"container runtime status has no {name} condition"
    if condition.status:
        return ""
    return f"{name}=false reason:{condition.reason} message:{condition.message}"
