"""Reading one pod out of the runtime: CRI messages in, an `ObservedPod` out.

A pod's own task asks after it has acted, the relist asks for pods that look different. The
request always goes to the runtime, by the pod's UID: after a call whose outcome is
unknown no cache can be believed. What was seen at its end is not asked about once more: a
container that has exited, and a sandbox that has stopped, stay as they are. That the kernel killed
a container (OOMKilled) is added where the runtime did not notice.
"""

from collections.abc import Collection, Iterable
from functools import partial

import betterproto
import trio
from attrs import evolve, field, frozen

from trio_kubelet.resources.oom_kills import OomKills
from trio_kubelet.resources.oom_ledger import SeenContainer
from trio_kubelet.rpc import MOST_MESSAGE_CHARACTERS, unless_gone
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.config import names
from trio_kubelet.runtime.observed import (
    ObservedContainer,
    ObservedPod,
    ObservedResources,
    ObservedSandbox,
    ObservedState,
    ObservedUser,
)
from trio_kubelet.runtime.termination_messages import message_file, termination_messages
from trio_kubelet.tasks.concurrency import both, run_for_each
from trio_kubelet.tasks.fair_limiter import FairLimiter

STATES = {
    cri.ContainerState.CONTAINER_CREATED: ObservedState.CREATED,
    cri.ContainerState.CONTAINER_RUNNING: ObservedState.RUNNING,
    cri.ContainerState.CONTAINER_EXITED: ObservedState.EXITED,
    cri.ContainerState.CONTAINER_UNKNOWN: ObservedState.UNKNOWN,
}
ASKED_AT_ONCE = 32
"""Sandboxes and containers of one pod, which may have a thousand."""
MANY_CONTAINERS = 64
"""Of a pod. What is to be done is found out of as many in ten milliseconds."""

LOOKS = 16
LOOKS_OF_NAMESPACE = 4
"""Pods that are looked at, at once. Each look costs some milliseconds of the event loop, and the
hundreds of pods of one namespace that end at once would leave a turn to others every second."""

MAX_GROUPS_KEPT = 100
"""Supplemental groups of a container. A pod may ask for 65,536, and the runtime tells all of them
for each container."""

MESSAGE_THREADS = 8
"""Threads that read termination messages."""

OOM_KILLED = "OOMKilled"
_UNSPECIFIC = ("", "Error")
"""The reasons that runtimes give for an end whose cause they do not know."""


@frozen(kw_only=True)
class PodInspector:
    """Reads pods out of the runtime. Holds no state of any of them.

    `oom_kills` knows what the runtime may not have noticed.
    """

    client: RuntimeClient
    oom_kills: OomKills | None = None
    _looks: FairLimiter = field(init=False, factory=partial(FairLimiter, LOOKS, LOOKS_OF_NAMESPACE))
    # Threads of their own: the relist must not wait for what hangs on a volume of some pod.
    _messages: FairLimiter = field(
        init=False, factory=partial(FairLimiter, MESSAGE_THREADS, MESSAGE_THREADS // 2, 2)
    )

    async def inspect(self, known: ObservedPod) -> ObservedPod:
        """All that the runtime shows of a pod, found by the UID of what is known of it.

        What goes away between the listing and the request for its status is left out. Raises
        RpcError.
        """
        selector = {names.POD_UID_LABEL: known.uid}
        of_pod = cri.PodSandboxFilter(label_selector=selector)
        in_pod = cri.ContainerFilter(label_selector=selector)
        async with self._looks.share(known.namespace):
            observed_at = trio.current_time()
            sandboxes, containers = await both(
                partial(self.client.list_pod_sandboxes, of_pod),
                partial(self.client.list_containers, in_pod),
            )
            return await self.inspect_listed(known, sandboxes, containers, observed_at)

    async def inspect_listed(
        self,
        known: ObservedPod,
        sandboxes: Iterable[cri.PodSandbox],
        containers: Iterable[cri.Container],
        observed_at: float,
    ) -> ObservedPod:
        """The same for a pod whose sandboxes and containers were listed at `observed_at`."""
        sandboxes, containers = tuple(sandboxes), tuple(containers)
        stopped, exited = _seen_at_their_ends(sandboxes, containers, known)
        seen_sandboxes = list(stopped.values())
        statuses: list[cri.ContainerStatus] = []
        seen_containers: list[ObservedContainer] = []

        async def ask_sandbox(sandbox_id: str) -> None:
            response = await unless_gone(self.client.pod_sandbox_status(sandbox_id))
            if response is not None:
                seen_sandboxes.append(observed_sandbox(response.status))

        async def ask_container(sandbox_id: str, container_id: str) -> None:
            response = await unless_gone(self.client.container_status(container_id))
            if response is not None:
                statuses.append(response.status)
                # Here, where others have turns between the answers: there may be hundreds.
                seen_containers.append(observed_container(response.status, sandbox_id))

        running = (c for c in containers if c.id not in exited)
        requests = [
            *(partial(ask_sandbox, s.id) for s in sandboxes if s.id not in stopped),
            *(partial(ask_container, c.pod_sandbox_id, c.id) for c in running),
        ]
        await run_for_each(requests, lambda ask: ask(), min(len(requests), ASKED_AT_ONCE))
        namespace = known.namespace or next((s.metadata.namespace for s in sandboxes), "")
        share = self._messages.share(namespace, known.uid)
        messages = await termination_messages(statuses, share)
        told = (
            evolve(each, message=messages[each.id]) if each.id in messages else each
            for each in seen_containers
        )
        pod = observed_pod(known, seen_sandboxes, (*exited.values(), *told), observed_at)
        if len(pod.containers) > MANY_CONTAINERS:
            await trio.lowlevel.checkpoint()  # What follows from them takes a turn of its own.
        return await with_oom_kills(evolve(pod, answered_at=trio.current_time()), self.oom_kills)


def _seen_at_their_ends(
    sandboxes: Iterable[cri.PodSandbox],
    containers: Iterable[cri.Container],
    known: ObservedPod,
) -> tuple[dict[str, ObservedSandbox], dict[str, ObservedContainer]]:
    """The parts that a listing shows at their end and the runtime has told all about, by id.

    All of a sandbox but its state and its address is fixed when it is made.
    """
    not_ready = {s.id for s in sandboxes if s.state == cri.PodSandboxState.SANDBOX_NOTREADY}
    ended = {c.id for c in containers if c.state == cri.ContainerState.CONTAINER_EXITED}
    return (
        {s.id: evolve(s, ready=False, ips=()) for s in known.sandboxes if s.id in not_ready},
        {c.id: c for c in known.containers if c.id in ended and c.state is ObservedState.EXITED},
    )


def observed_pod(
    known: ObservedPod,
    sandboxes: Iterable[ObservedSandbox],
    containers: Iterable[ObservedContainer],
    observed_at: float,
) -> ObservedPod:
    """Put a pod together; its IPs are those of the newest sandbox, if that is ready.

    What is newest, the count of attempts and restarts tells: the time of creation is that of a
    clock which may have been set back since.
    """
    by_age = sorted(sandboxes, key=lambda s: (s.attempt, s.created_at), reverse=True)
    newest = by_age[0] if by_age else None
    return ObservedPod(
        uid=known.uid,
        name=newest.name if newest else known.name,
        namespace=newest.namespace if newest else known.namespace,
        observed_at=observed_at,
        ips=newest.ips if newest and newest.ready else (),
        sandboxes=tuple(by_age),
        containers=tuple(
            sorted(containers, key=lambda c: (c.restart_count, c.created_at), reverse=True)
        ),
    )


def observed_sandbox(status: cri.PodSandboxStatus) -> ObservedSandbox:
    """A sandbox as the runtime describes it."""
    network = status.network
    ips = (network.ip, *(extra.ip for extra in network.additional_ips))
    namespaces = status.linux.namespaces.options
    return ObservedSandbox(
        id=status.id,
        name=status.metadata.name,
        namespace=status.metadata.namespace,
        uid=status.metadata.uid,
        attempt=status.metadata.attempt,
        ready=status.state == cri.PodSandboxState.SANDBOX_READY,
        created_at=status.created_at,
        ips=tuple(ip for ip in ips if ip),
        host_network=namespaces.network == cri.NamespaceMode.NODE,
        runtime_handler=status.runtime_handler,
        labels=status.labels,
        annotations=status.annotations,
    )


def observed_container(status: cri.ContainerStatus, sandbox_id: str) -> ObservedContainer:
    """A container as the runtime describes it."""
    return ObservedContainer(
        id=status.id,
        name=status.metadata.name,
        sandbox_id=sandbox_id,
        state=_container_state(status),
        restart_count=status.metadata.attempt,
        hash=status.annotations.get(names.HASH_ANNOTATION, ""),
        created_at=status.created_at,
        started_at=status.started_at,
        finished_at=status.finished_at,
        exit_code=status.exit_code,
        reason=status.reason,
        message=status.message[:MOST_MESSAGE_CHARACTERS],
        message_file=message_file(status),
        image=status.image.user_specified_image or status.image.image,
        image_id=status.image_id or status.image.image,
        image_ref=status.image_ref,
        log_path=status.log_path,
        user=_observed_user(status),
        stop_signal=_stop_signal(status),
        recursively_read_only=frozenset(
            mount.container_path for mount in status.mounts if mount.recursive_read_only
        ),
        image_mounts={
            mount.container_path: mount.image.image_ref
            for mount in status.mounts
            if mount.image.image_ref
        },
        resources=_observed_resources(status),
        annotations=status.annotations,
    )


def _stop_signal(status: cri.ContainerStatus) -> str:
    """The signal in the API's words; empty where the runtime tells none, or an unknown one."""
    signal = status.stop_signal
    if not isinstance(signal, cri.Signal) or signal == cri.Signal.RUNTIME_DEFAULT:
        return ""
    return str(signal.name).replace("PLUS", "+").replace("MINUS", "-")


def _container_state(status: cri.ContainerStatus) -> ObservedState:
    """A container whose start was cut off has only been created: it failed at nothing.

    Where whoever asked for the start goes away, a killed agent for one, the runtime ends the
    start and shows a container that exited with StartError.
    """
    if not status.started_at and _is_cut_off(status.message):
        return ObservedState.CREATED
    return STATES.get(status.state, ObservedState.UNKNOWN)


def _is_cut_off(message: str) -> bool:
    """Tell the message of containerd (1.6 and 2.x) for a start that was cut off, by its end.

    It may repeat megabytes of the pod, in which an expression would look for long.
    """
    words = message.removesuffix(": unknown")
    return words.endswith(": context canceled") or (
        words.endswith(": signal: killed") and "failed to start shim: start failed: " in words
    )


def _observed_resources(status: cri.ContainerStatus) -> ObservedResources | None:
    if not betterproto.serialized_on_wire(status.resources.linux):
        return None
    linux = status.resources.linux
    return ObservedResources(
        cpu_shares=linux.cpu_shares,
        cpu_quota=linux.cpu_quota,
        cpu_period=linux.cpu_period,
        memory_limit_bytes=linux.memory_limit_in_bytes,
    )


def _observed_user(status: cri.ContainerStatus) -> ObservedUser | None:
    if not betterproto.serialized_on_wire(status.user.linux):
        return None
    user = status.user.linux
    return ObservedUser(
        uid=user.uid,
        gid=user.gid,
        supplemental_groups=tuple(user.supplemental_groups[:MAX_GROUPS_KEPT]),
    )


async def with_oom_kills(observed: ObservedPod, oom_kills: OomKills | None) -> ObservedPod:
    """Return the pod with the reasons that the kernel knows; None where there is no kernel."""
    if oom_kills is None:
        return observed
    seen = seen_containers(observed)
    return with_reasons(observed, await oom_kills.killed(observed.uid, seen, observed.observed_at))


def seen_containers(observed: ObservedPod) -> tuple[SeenContainer, ...]:
    """Return the containers of a pod as they are judged."""
    return tuple(
        SeenContainer(
            id=each.id,
            name=each.name,
            restart_count=each.restart_count,
            started=each.state is not ObservedState.CREATED,
            ended=each.state is ObservedState.EXITED,
            exit_code=each.exit_code,
            told_killed=each.reason == OOM_KILLED,
        )
        for each in observed.containers
    )


def with_reasons(observed: ObservedPod, killed: Collection[str]) -> ObservedPod:
    """Return the pod with OOMKilled where the runtime says nothing of its own."""
    if not killed:
        return observed
    return evolve(
        observed,
        containers=tuple(_with_reason(each, killed) for each in observed.containers),
    )


def _with_reason(container: ObservedContainer, killed: Collection[str]) -> ObservedContainer:
    if container.id not in killed or container.reason not in _UNSPECIFIC:
        return container
    return evolve(container, reason=OOM_KILLED)
