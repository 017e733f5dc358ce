"""Garbage collection, once a minute: dead containers, sandboxes and links that nobody else takes.

Each thing has one who decides about it; all of it leaves through `removal.py`. Pods that no source
has go whole, through housekeeping; the surplus of a pod that is being synced goes at the end of
its sync. What is left is this: containers that were made and never started, because the agent was
killed in between; the dead of pods that are not synced any more; dead containers beyond what the
whole node may keep; sandboxes that were replaced; logs and links (`logs.py`); and what ended pods
have left, where it makes the runtime's list of sandboxes long.

What was last seen may be old, and that does no harm: nothing of this was running then, none of
it is the newest of its kind, so nobody will start it again.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from heapq import heapify, heappop, heapreplace

import structlog
import trio
from attrs import define, frozen

from trio_kubelet.errors import CollectionError, aggregated
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.runtime.cache import RuntimeCache
from trio_kubelet.runtime.garbage.logs import tidy_logs, with_usable_names
from trio_kubelet.runtime.garbage.removal import ContainerRemover
from trio_kubelet.runtime.health import RuntimeHealth
from trio_kubelet.runtime.inspection import PodInspector
from trio_kubelet.runtime.observed import (
    ObservedContainer,
    ObservedPod,
    ObservedSandbox,
    ObservedState,
)
from trio_kubelet.runtime.pod_files import remove_pod_logs
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.fair_limiter import ALL_PODS
from trio_kubelet.telemetry import EventRecorder, EventType

log = structlog.get_logger("garbage")

PERIOD_SECONDS = 60.0
YOUNG_SECONDS = 60.0
"""A container that was made so lately may be started next."""

ENDED_PODS_BYTES = 4 << 20
"""Of the sandboxes of ended pods in the list of all, of which runtimes send no more than 16 MiB.
Without its list the node is not ready. A sandbox has 33 KiB at most, an ordinary one about one; in
a round's time others of a third of this can end."""


@frozen(kw_only=True)
class DeadContainerLimits:
    """The dead containers that are kept; negative: any number.

    `per_container` of each container of a pod (--maximum-dead-containers-per-container), `total`
    on the node (--maximum-dead-containers). What is younger than `minimum_age` is not removed
    (--minimum-container-ttl-duration).
    """

    per_container: int = 1
    total: int = -1
    minimum_age: timedelta = timedelta()


def dead_containers_to_remove(
    pods: Iterable[ObservedPod], limits: DeadContainerLimits, now_ns: int
) -> frozenset[str]:
    """The ids of the dead containers of these pods that are too many.

    The newest container of a name is never one of them, whatever the limits: what became of the
    pod is read off it, and without it a finished container would run again. One that was never
    started tells nothing once there is a newer one. `now_ns` is nanoseconds since the epoch.
    """
    series = [_Series(each, limits, now_ns) for pod in pods for each in _by_name(pod)]
    if limits.per_container >= 0:
        for each in series:
            each.keep(limits.per_container)
    if limits.total >= 0:
        _keep_total(series, limits.total)
    return frozenset(container.id for each in series for container in each.removed)


class _Series:
    """The incarnations of one container: how many dead ones stay, and which go."""

    def __init__(
        self, newest_first: Sequence[ObservedContainer], limits: DeadContainerLimits, now_ns: int
    ) -> None:
        older = newest_first[1:]
        dead = (ObservedState.EXITED, ObservedState.UNKNOWN)
        self.dead = sum(c.state in dead for c in newest_first)
        self.removed = [
            c
            for c in older
            if c.state is ObservedState.CREATED and _age_seconds(c, now_ns) > YOUNG_SECONDS
        ]
        minimum = limits.minimum_age.total_seconds()
        self._removable = [
            c for c in older if c.state in dead and _age_seconds(c, now_ns) >= minimum
        ]

    @property
    def oldest(self) -> ObservedContainer | None:
        """The one that goes next, if any may."""
        return self._removable[-1] if self._removable else None

    def remove_oldest(self) -> None:
        """Let it go."""
        self.removed.append(self._removable.pop())
        self.dead -= 1

    def keep(self, number: int) -> None:
        """Let the oldest go until so many dead ones are left, or none may go."""
        while self.dead > number and self._removable:
            self.remove_oldest()


def _age_seconds(container: ObservedContainer, now_ns: int) -> float:
    return (now_ns - container.created_at) / 1e9


def _by_name(pod: ObservedPod) -> Iterable[Sequence[ObservedContainer]]:
    """The containers of a pod by name, newest first."""
    named: dict[str, list[ObservedContainer]] = {}
    for container in pod.containers:
        named.setdefault(container.name, []).append(container)
    return named.values()


def _keep_total(series: Iterable[_Series], total: int) -> None:
    """Let the oldest go until so many dead are left, first those beyond their equal share."""
    with_dead = [each for each in series if each.dead]
    surplus = sum(each.dead for each in with_dead) - total
    for share in (max(1, total // max(1, len(with_dead))), 0):
        oldest = [
            (each.oldest.created_at, number)
            for number, each in enumerate(with_dead)
            if each.oldest and each.dead > share
        ]
        heapify(oldest)
        while oldest and surplus > 0:
            number = oldest[0][1]
            each = with_dead[number]
            each.remove_oldest()
            surplus -= 1
            if each.oldest and each.dead > share:
                heapreplace(oldest, (each.oldest.created_at, number))
            else:
                heappop(oldest)


def sandboxes_to_remove(pod: ObservedPod) -> tuple[ObservedSandbox, ...]:
    """The sandboxes that were replaced: not ready, empty, and not the pod's newest one."""
    occupied = {container.sandbox_id for container in pod.containers}
    return tuple(s for s in pod.sandboxes[1:] if not s.ready and s.id not in occupied)


def crowding_pods(ended: Iterable[ObservedPod]) -> Sequence[ObservedPod]:
    """Return the ended pods whose remains are too many beside those of the others.

    Of the namespace whose sandboxes take most of the list the pod goes that is the oldest.
    """
    by_namespace: dict[str, list[tuple[int, int, ObservedPod]]] = {}
    for pod in ended:
        size = sum(sandbox.size_bytes for sandbox in pod.sandboxes)
        made_at = max((sandbox.created_at for sandbox in pod.sandboxes), default=0)
        by_namespace.setdefault(pod.namespace, []).append((made_at, size, pod))
    held = []
    for namespace, pods in by_namespace.items():
        pods.sort(key=lambda each: each[0], reverse=True)
        held.append((-sum(size for _, size, _ in pods), namespace))
    heapify(held)
    crowding, total = [], -sum(size for size, _ in held)
    while total > ENDED_PODS_BYTES:
        most, namespace = held[0]
        _, size, pod = by_namespace[namespace].pop()
        heapreplace(held, (most + size, namespace))
        total -= size
        crowding.append(pod)
    return crowding


@define(kw_only=True)
class GarbageCollector:
    """Removes what is decided above.

    `wanted()` gives the UIDs of the pods that sources have, `ended()` those of them that have
    ended for good, as the API server knows, too.
    """

    _remover: ContainerRemover
    _inspector: PodInspector
    _cache: RuntimeCache
    _wanted: Callable[[], Iterable[str]]
    _ended: Callable[[], Iterable[str]]
    _limits: DeadContainerLimits
    _runtime_health: RuntimeHealth
    _clock: Clock
    _recorder: EventRecorder

    async def run(self) -> None:
        """Collect once a minute for ever. What fails is told of, and made up by the next round.

        It begins with the logs alone: an earlier agent may not have come to make links to them.
        """
        await self._runtime_health.wait_up()
        await self._told(self._tidy_logs)
        while True:
            await trio.sleep(PERIOD_SECONDS)
            await self._runtime_health.wait_up()
            await self._told(self.collect)

    async def _told(self, work: Callable[[], Awaitable[tuple[str, ...]]]) -> None:
        try:
            failures = await work()
        except Exception as error:
            log.exception("garbage collection failed")
            failures = (str(error) or type(error).__name__,)
        if failures:
            self._recorder.node(EventType.WARNING, "ContainerGCFailed", aggregated(failures))

    async def collect(self) -> tuple[str, ...]:
        """One round; what a pod's own task works on is left to the next.

        Returns why it is not known of some pods what there is to collect. A thing that is known
        and cannot be removed is no failure of the round, as in the Go kubelet; it is logged.
        """
        failures: list[str] = []
        wanted = frozenset(self._wanted())
        pods = [
            pod
            for pod in self._cache.pods()
            if pod.uid in wanted and not self._cache.is_inspection_suspended(pod.uid)
        ]
        surplus = dead_containers_to_remove(pods, self._limits, self._clock.now_ns())
        for pod in pods:
            try:
                left = await self._remove_containers(
                    pod, [c for c in pod.containers if c.id in surplus]
                )
                await self._remove_sandboxes(left)
            except RpcError as error:
                log.warning("garbage collection listing failed", pod=pod.key, error=str(error))
                failures.append(str(error))
        ended = frozenset(self._ended())
        for pod in crowding_pods(pod for pod in pods if pod.uid in ended):
            try:
                log.info("list of sandboxes is long, removing an ended pod from it", pod=pod.key)
                await self._remove_ended(pod)
            except (RpcError, OSError) as error:
                log.warning("removal of ended pod failed", pod=pod.key, error=str(error))
        return (*failures, *await self._tidy_logs())

    async def delete_all_unused_containers(self) -> None:
        """Remove what a round would, and all that pods have left which ended, logs included.

        The pods of the API that have ended are shown to users until somebody deletes them; their
        containers go when the node needs room. Raises CollectionError, after all that could be
        removed has been.
        """
        ended = frozenset(self._ended())
        failures: list[str] = []
        for pod in self._cache.pods():
            if pod.uid not in ended or self._cache.is_inspection_suspended(pod.uid):
                continue
            try:
                await self._remove_ended(pod)
            except (RpcError, OSError) as error:
                log.warning("removal of ended pod failed", pod=pod.key, error=str(error))
                failures.append(str(error))
        if failures := [*failures, *await self.collect()]:
            raise CollectionError(aggregated(failures))

    async def _remove_ended(self, pod: ObservedPod) -> None:
        await self._attempt(pod, partial(self._remover.remove_pod, pod))
        if (await self._look(pod)).is_empty:
            remove_logs = partial(remove_pod_logs, pod.uid, self._remover.node)
            await self._remover.logs.share_of(pod).run_sync(remove_logs)

    async def _remove_containers(
        self, pod: ObservedPod, containers: Sequence[ObservedContainer]
    ) -> ObservedPod:
        if not containers:
            return pod
        await self._attempt(pod, partial(self._remover.remove_containers, pod, containers))
        return await self._look(pod)

    async def _remove_sandboxes(self, pod: ObservedPod) -> None:
        if not sandboxes_to_remove(pod):
            return
        replaced = sandboxes_to_remove(await self._look(pod))
        for sandbox in replaced:
            log.info("removing dead sandbox", pod=pod.key, sandbox=sandbox.id)
            await self._attempt(pod, partial(self._remove_sandbox, sandbox))
        if replaced:
            await self._look(pod)

    async def _remove_sandbox(self, sandbox: ObservedSandbox) -> None:
        # Stopped once more: its network may have been left standing.
        await self._remover.client.stop_pod_sandbox(sandbox.id)
        await self._remover.remove_sandbox(sandbox.id)

    async def _attempt(self, pod: ObservedPod, remove: Callable[[], Awaitable[None]]) -> None:
        """Remove a thing; one that cannot be removed keeps nothing else."""
        try:
            await remove()
        except RpcError as error:
            if error.code is not Code.NOT_FOUND:
                log.warning("garbage removal failed, will retry", pod=pod.key, error=str(error))

    async def _look(self, pod: ObservedPod) -> ObservedPod:
        """Read the pod back, so that nobody else has to find out what changed. Raises RpcError."""
        observed = await self._inspector.inspect(pod)
        return self._cache.put(observed)

    async def _tidy_logs(self) -> tuple[str, ...]:
        wanted = frozenset(self._wanted())
        pods = with_usable_names(self._cache.pods())
        ours = [pod for pod in pods if pod.uid in wanted]
        tidy = partial(tidy_logs, ours, pods, self._remover.node, self._clock.now_ns())
        return await self._remover.logs.share(ALL_PODS).run_sync(tidy)
