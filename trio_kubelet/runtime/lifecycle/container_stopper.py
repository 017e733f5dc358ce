"""Stopping containers with grace and hooks, and sandboxes.

All preStop hooks of a pod begin at once, and its containers are stopped side by side, except that
sidecars go after the regular ones, in reverse order of their start (KEP-753). A stop that is
cancelled (a shorter grace period was asked for) is simply made again: the runtime takes the
shorter of the two.

A pod may have hundreds of containers. Their grace counts from the same moment, but hooks and stops
are called for in turns, a few in each round of the event loop, so that others go on between them.
"""

from collections.abc import Iterable, Sequence
from functools import partial

import structlog
import trio
from attrs import frozen

from trio_kubelet.k8s import Container, Pod
from trio_kubelet.k8s.totals import is_sidecar
from trio_kubelet.rpc import RpcError, unless_gone
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.lifecycle.hooks import HookError, Hooks
from trio_kubelet.runtime.lifecycle.plan import StopContainer
from trio_kubelet.runtime.node_facts import NodeFacts
from trio_kubelet.runtime.observed import (
    ObservedContainer,
    ObservedPod,
    ObservedSandbox,
)
from trio_kubelet.tasks.concurrency import run_all, run_concurrently
from trio_kubelet.tasks.turns import Turns
from trio_kubelet.telemetry import EventRecorder, EventType

log = structlog.get_logger("runtime")

LEAST_GRACE_SECONDS = 2
"""The seconds that a process gets at least, however short its grace is or its preStop hook took."""


@frozen(kw_only=True)
class Stop:
    """The stop of one container: `name` in its pod, `id` in the runtime.

    Its process gets `grace_seconds`, less what its preStop hook takes, which may use `pod_ips`.
    `message` is what the event `Killing` says.
    """

    name: str
    id: str
    pod_ips: Sequence[str]
    grace_seconds: int
    message: str


@frozen(kw_only=True)
class ContainerStopper:
    """Stops containers and sandboxes of all pods. Holds no state of any of them.

    Namespaces share the `turns`, which somebody must give.
    """

    _client: RuntimeClient
    _recorder: EventRecorder
    _node: NodeFacts
    _hooks: Hooks
    _turns: Turns

    async def stop_containers(
        self, pod: Pod, observed: ObservedPod, orders: Iterable[StopContainer]
    ) -> None:
        """Stop some containers side by side, each with its own grace or the pod's. Raises RpcError.

        A failure to stop one interrupts neither the hooks nor the grace of the others.
        """
        await run_all(
            *(
                partial(
                    self.stop_container,
                    pod,
                    Stop(
                        name=o.container.name,
                        id=o.container.id,
                        pod_ips=observed.ips,
                        grace_seconds=0 if o.at_once else own_grace_seconds(pod, o.grace_seconds),
                        message=o.message,
                    ),
                )
                for o in orders
            )
        )

    async def stop_pod(self, pod: Pod, observed: ObservedPod, grace_seconds: int) -> None:
        """Stop all containers of a pod, then its sandboxes. Raises RpcError.

        Sandboxes that died by themselves are stopped too: their network is only given back then.
        They are stopped even if a container could not be, which ends with its sandbox.
        """
        groups = _stop_order(pod, observed)
        stopped = [trio.Event() for _ in range(len(groups) + 1)]

        async def stop_group(position: int) -> None:
            try:
                await run_all(
                    *(
                        partial(
                            self.stop_container,
                            pod,
                            Stop(
                                name=c.name,
                                id=c.id,
                                pod_ips=observed.ips,
                                grace_seconds=grace_seconds,
                                message=f"Stopping container {c.name}",
                            ),
                            stopped[position],
                        )
                        for c in groups[position]
                    )
                )
            finally:
                stopped[position + 1].set()

        stopped[0].set()
        failure: RpcError | None = None
        try:
            await run_all(*(partial(stop_group, p) for p in range(len(groups))))
        except RpcError as error:
            failure = error
        await run_concurrently(*(partial(self._stop_sandbox, s) for s in observed.sandboxes))
        if failure is not None:
            raise failure

    async def stop_container(
        self, pod: Pod, stop: Stop, others_stopped: trio.Event | None = None
    ) -> None:
        """Run the preStop hook, wait until its time has come, stop it. Raises RpcError.

        All of it takes as long as the grace lasts, and the process gets what is left of that, or
        the least grace. Without any of its own there is no hook.
        """
        began = trio.current_time()
        await self._turns.wait(pod.metadata.namespace)
        self._recorder.pod(pod, EventType.NORMAL, "Killing", stop.message, container=stop.name)
        with trio.move_on_at(began + stop.grace_seconds):
            if stop.grace_seconds > 0:
                await self._run_pre_stop(pod, stop)
            if others_stopped is not None:
                await others_stopped.wait()
        await self._turns.wait(pod.metadata.namespace)
        spent = round(trio.current_time() - began)
        remaining = max(stop.grace_seconds - spent, LEAST_GRACE_SECONDS)
        await unless_gone(self._client.stop_container(stop.id, remaining))

    async def _run_pre_stop(self, pod: Pod, stop: Stop) -> None:
        spec = container_spec(pod, stop.name)
        if spec is None or spec.lifecycle is None or spec.lifecycle.pre_stop is None:
            return
        ip = self._node.address_of(pod, stop.pod_ips)
        try:
            await self._hooks.run(pod, spec, stop.id, spec.lifecycle.pre_stop, ip)
        except HookError as error:
            log.warning("preStop hook failed", container=stop.name, error=error.message)
            self._recorder.pod(
                pod,
                EventType.WARNING,
                "FailedPreStopHook",
                "PreStopHook failed",
                container=stop.name,
            )

    async def _stop_sandbox(self, sandbox: ObservedSandbox) -> None:
        await unless_gone(self._client.stop_pod_sandbox(sandbox.id))


def own_grace_seconds(pod: Pod, grace_seconds: int | None = None) -> int:
    """The grace of a container that is replaced: its own or the pod's, but never a kill at once."""
    if grace_seconds is None:
        grace_seconds = pod.spec.termination_grace_period_seconds or 0
    return max(grace_seconds, LEAST_GRACE_SECONDS)


def container_spec(pod: Pod, name: str) -> Container | None:
    """The container of that name, of whatever kind, in the pod's spec."""
    return next((each for each in pod.spec.all_containers if each.name == name), None)


def _stop_order(pod: Pod, observed: ObservedPod) -> Sequence[Sequence[ObservedContainer]]:
    """The containers that run or may run, in groups that are stopped one after another."""
    alive = observed.living
    sidecars = [c.name for c in reversed(pod.spec.init_containers) if is_sidecar(c)]
    groups = [[c for c in alive if c.name not in sidecars]]
    groups += [[c for c in alive if c.name == name] for name in sidecars]
    return [group for group in groups if group]
