"""Tells the runtime from which range its pods get their addresses.

The range is the Node object's, or `podCIDR` on a node without an API server. A runtime whose
network is made from a template (containerd's `conf_template`) has none before it was told. One
that begins anew is told again.
"""

from collections.abc import Callable

import structlog
import trio

from state_machines.backoff import BackoffPolicy
from trio_kubelet.k8s import Node
from trio_kubelet.rpc import RpcError
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.health import RuntimeHealth, RuntimeState
from trio_kubelet.tasks.retries import Retries

log = structlog.get_logger("node")

RETRY = BackoffPolicy(initial_seconds=1.0, cap_seconds=60.0, jitter=0.1)


def pod_cidr_of(node: Node | None) -> str:
    """The ranges of a node, as the runtime is told them: IPv4 and IPv6 with a comma between."""
    if node is None:
        return ""
    return ",".join(node.spec.pod_cidrs) or node.spec.pod_cidr


class PodCidr:
    """Owner of what the runtime was told. `cidr()` is the range now, empty if there is none."""

    def __init__(
        self, client: RuntimeClient, runtime_health: RuntimeHealth, cidr: Callable[[], str]
    ) -> None:
        self._client = client
        self._runtime_health = runtime_health
        self._cidr = cidr
        self._told = ""
        self._wake = trio.Event()
        runtime_health.on_change.add(self._on_runtime)

    def look(self, *_: object) -> None:
        """The range may be another."""
        self._wake.set()

    async def run(self) -> None:
        """Tell the runtime of each new range until cancelled."""
        retries = Retries(RETRY)
        while True:
            self._wake = trio.Event()
            cidr = self._cidr()
            if cidr and cidr != self._told and self._runtime_health.state.up:
                # Noted before it is done: a runtime that begins anew meanwhile is told again.
                before, self._told = self._told, cidr
                try:
                    await self._client.set_pod_cidr(cidr)
                except RpcError as error:
                    self._told = ""
                    retries.warn(log, "pod CIDR update failed", cidr=cidr, error=str(error))
                    await retries.wait()
                    continue
                log.info("pod CIDR updated", before=before, now=cidr)
                retries.reset()
            await self._wake.wait()

    def _on_runtime(self, before: RuntimeState, after: RuntimeState) -> None:
        if after.up and not before.up:
            self._told = ""
            self._wake.set()
