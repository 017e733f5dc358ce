"""Garbage collection, once a minute: dead containers, sandboxes and links that nobody else takes.

Each thing has one who removes it. Pods that no source has go whole, through housekeeping; the
surplus of a pod that is being synced goes at the end of its sync (`container_stopper.py`). What
is left is this: containers that were made and never started, because the agent was killed in
between; the dead of pods that are not synced any more; dead containers beyond what the whole
node may keep; sandboxes that were replaced; logs of containers that are gone, and links to logs,
of which those that lack are made.

What was last seen may be old, and that does no harm: nothing of this was running then, none of
it is the newest of its kind, so nobody will start it again.
"""

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog
import trio
from attrs import evolve, frozen

from trio_kubelet.clock import Clock
from trio_kubelet.foreign_text import is_path_part
from trio_kubelet.k8s import ObjectMeta, Pod
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.config import names
from trio_kubelet.runtime.gate import RuntimeGate
from trio_kubelet.runtime.inspection import inspect_pod
from trio_kubelet.runtime.lifecycle.pod_files import log_count
from trio_kubelet.runtime.node_facts import NodeFacts
from trio_kubelet.runtime.observed import (
    ObservedContainer,
    ObservedPod,
    ObservedSandbox,
    ObservedState,
)
from trio_kubelet.telemetry import EventRecorder, EventType

log = structlog.get_logger("garbage")

PERIOD_SECONDS = 60.0
YOUNG_SECONDS = 60.0
"""What was made so lately may be half done: a container that is started next, a link whose log
comes next."""

STOP_SECONDS = 10
"""What a container of unknown state gets to end, should it run after all."""


@frozen(kw_only=True)
class DeadContainerLimits:
    """How many dead containers are kept; negative: any number.

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
    share = max(1, total // max(1, len(with_dead)))
    for _ in range(sum(each.dead for each in with_dead) - total):
        removable = [(each.oldest.created_at, each) for each in with_dead if each.oldest]
        if not removable:
            return
        greedy = [(born, each) for born, each in removable if each.dead > share]
        min(greedy or removable, key=lambda candidate: candidate[0])[1].remove_oldest()


def sandboxes_to_remove(pod: ObservedPod) -> tuple[ObservedSandbox, ...]:
    """The sandboxes that were replaced: not ready, empty, and not the pod's newest one."""
    occupied = {container.sandbox_id for container in pod.containers}
    return tuple(s for s in pod.sandboxes[1:] if not s.ready and s.id not in occupied)


@frozen(kw_only=True)
class LogFile:
    """A log in a pod's folder: of which container, and of which of its incarnations."""

    path: Path
    container: str
    restart_count: int


def logs_to_remove(pod: ObservedPod, logs: Iterable[LogFile]) -> tuple[LogFile, ...]:
    """The logs of containers that are gone and have a successor, rotated ones included.

    The newest log stays though its container be gone: the next restart count is read off it.
    """
    counts: dict[str, set[int]] = {}
    for container in pod.containers:
        counts.setdefault(container.name, set()).add(container.restart_count)
    return tuple(
        file
        for file in logs
        if (present := counts.get(file.container))
        and file.restart_count not in present
        and file.restart_count < max(present)
    )


@frozen(kw_only=True)
class LogLink:
    """A link to a container's log, as log collectors read it."""

    path: Path
    target: str
    age_seconds: float
    leads_somewhere: bool


def links_to_remove(
    links: Iterable[LogLink], pods: Iterable[ObservedPod], node: NodeFacts
) -> tuple[LogLink, ...]:
    """The links into the folder of our logs that lead nowhere.

    That of a container that has not exited stays: its log is away for a moment when it is
    rotated.
    """
    directory = node.container_logs_directory
    alive = {
        Path(names.container_log_symlink(_named(pod), container.name, container.id, directory))
        for pod in pods
        for container in pod.containers
        if container.state is not ObservedState.EXITED
    }
    return tuple(
        link
        for link in links
        if not link.leads_somewhere
        and link.age_seconds > YOUNG_SECONDS
        and link.target.startswith(f"{node.pod_logs_directory}/")
        and link.path not in alive
    )


def links_to_make(
    links: Iterable[LogLink], pods: Iterable[ObservedPod], node: NodeFacts
) -> Mapping[Path, str]:
    """The links that containers lack, and the logs of ours that they lead to.

    An agent that was stopped right after it had started a container has made no link to its log.
    """
    present = {link.path for link in links}
    lacking: dict[Path, str] = {}
    for pod in pods:
        for container in pod.containers:
            name = names.container_log_symlink(
                _named(pod), container.name, container.id, node.container_logs_directory
            )
            if (
                container.state is not ObservedState.CREATED
                and container.log_path.startswith(f"{node.pod_logs_directory}/")
                and Path(name) not in present
            ):
                # The first one is the newest; names that are too long lose the id.
                lacking.setdefault(Path(name), container.log_path)
    return lacking


def with_usable_names(pods: Iterable[ObservedPod]) -> tuple[ObservedPod, ...]:
    """The pods, and of each the containers, that paths can be made of: the runtime gives the names.

    What somebody else made may be called anything.
    """
    return tuple(
        evolve(
            pod,
            containers=tuple(
                each
                for each in pod.containers
                if is_path_part(each.name) and is_path_part(each.id) and "\0" not in each.log_path
            ),
        )
        for pod in pods
        if is_path_part(pod.namespace) and is_path_part(pod.name)
    )


def _named(pod: ObservedPod) -> Pod:
    return Pod(metadata=ObjectMeta(name=pod.name, namespace=pod.namespace, uid=pod.uid))


class Cache(Protocol):
    """What is known of pods in the runtime; see `pleg/cache.py`."""

    def pods(self) -> Iterable[ObservedPod]:
        """All that have something there."""
        ...

    def put(self, observed: ObservedPod) -> ObservedPod:
        """Store a newer observation."""
        ...

    def is_inspection_suspended(self, uid: str) -> bool:
        """Whether the pod's own task acts on it right now."""
        ...


class GarbageCollector:
    """Removes what is decided above. `wanted()` gives the UIDs of the pods that sources have."""

    def __init__(
        self,
        *,
        client: RuntimeClient,
        cache: Cache,
        wanted: Callable[[], Iterable[str]],
        limits: DeadContainerLimits,
        gate: RuntimeGate,
        clock: Clock,
        node: NodeFacts,
        file_limiter: trio.CapacityLimiter,
        recorder: EventRecorder,
    ) -> None:
        self._client = client
        self._cache = cache
        self._wanted = wanted
        self._limits = limits
        self._gate = gate
        self._clock = clock
        self._node = node
        self._file_limiter = file_limiter
        self._recorder = recorder

    async def run(self) -> None:
        """Collect once a minute for ever. What fails is told of, and made up by the next round.

        It begins with the logs alone: an earlier agent may not have come to make links to them.
        """
        await self._gate.wait_up()
        await self._told(self._tidy_logs)
        while True:
            await trio.sleep(PERIOD_SECONDS)
            await self._gate.wait_up()
            await self._told(self.collect)

    async def _told(self, work: Callable[[], Awaitable[tuple[str, ...]]]) -> None:
        try:
            failures = await work()
        except Exception as error:
            log.exception("garbage collection failed")
            failures = (str(error) or type(error).__name__,)
        if failures:
            self._recorder.node(EventType.WARNING, "ContainerGCFailed", _aggregated(failures))

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
                log.warning("garbage collection listing failed", pod=_key(pod), error=str(error))
                failures.append(str(error))
        return (*failures, *await self._tidy_logs())

    async def _remove_containers(
        self, pod: ObservedPod, containers: Sequence[ObservedContainer]
    ) -> ObservedPod:
        for container in containers:
            log.info("removing dead container", pod=_key(pod), container=container.name)
            await self._attempt(container.id, partial(self._remove_container, container))
        return await self._look(pod) if containers else pod

    async def _remove_sandboxes(self, pod: ObservedPod) -> None:
        if not sandboxes_to_remove(pod):
            return
        replaced = sandboxes_to_remove(await self._look(pod))
        for sandbox in replaced:
            log.info("removing dead sandbox", pod=_key(pod), sandbox=sandbox.id)
            await self._attempt(sandbox.id, partial(self._remove_sandbox, sandbox))
        if replaced:
            await self._look(pod)

    async def _remove_container(self, container: ObservedContainer) -> None:
        if container.state is ObservedState.UNKNOWN:
            await self._client.stop_container(container.id, STOP_SECONDS)
        await self._client.remove_container(container.id)

    async def _remove_sandbox(self, sandbox: ObservedSandbox) -> None:
        # Stopped once more: its network may have been left standing.
        await self._client.stop_pod_sandbox(sandbox.id)
        await self._client.remove_pod_sandbox(sandbox.id)

    async def _attempt(self, what: str, remove: Callable[[], Awaitable[None]]) -> None:
        """One that cannot be removed keeps none of the others."""
        try:
            await remove()
        except RpcError as error:
            if error.code is not Code.NOT_FOUND:
                log.warning("removal failed, will retry", id=what, error=str(error))

    async def _look(self, pod: ObservedPod) -> ObservedPod:
        """Read the pod back, so that nobody else has to find out what changed. Raises RpcError."""
        observed = await inspect_pod(self._client, pod.uid, name=pod.name, namespace=pod.namespace)
        return self._cache.put(observed)

    async def _tidy_logs(self) -> tuple[str, ...]:
        wanted = frozenset(self._wanted())
        pods = with_usable_names(self._cache.pods())
        ours = [pod for pod in pods if pod.uid in wanted]
        return await trio.to_thread.run_sync(
            partial(_tidy_logs, ours, pods, self._node, self._clock.now_ns()),
            limiter=self._file_limiter,
        )


def _key(pod: ObservedPod) -> str:
    return f"{pod.namespace}/{pod.name}"


def _tidy_logs(
    wanted: Iterable[ObservedPod], pods: Sequence[ObservedPod], node: NodeFacts, now_ns: int
) -> tuple[str, ...]:
    """Remove logs, then the links that led to them once they are old enough; make links. Blocks.

    Returns what went wrong; a folder that cannot be read keeps none of the others.
    """
    failures: list[str] = []
    for pod in wanted:
        try:
            for file in logs_to_remove(pod, _read_logs(pod, node)):
                _unlink(file.path)
        except OSError as error:
            failures.append(str(error))
    try:
        links = tuple(_read_links(Path(node.container_logs_directory), now_ns))
        for link in links_to_remove(links, pods, node):
            _unlink(link.path)
        for path, target in links_to_make(links, pods, node).items():
            _link(path, target)
    except OSError as error:
        failures.append(str(error))
    return tuple(failures)


def _aggregated(failures: Sequence[str]) -> str:
    """The message for several errors, in the form of Go's aggregates; each is told once."""
    each = tuple(dict.fromkeys(failures))
    return each[0] if len(each) == 1 else f"[{', '.join(each)}]"


def _read_logs(pod: ObservedPod, node: NodeFacts) -> Iterable[LogFile]:
    folder = Path(names.pod_log_directory(_named(pod), node.pod_logs_directory))
    for container in {container.name for container in pod.containers}:
        for path in _entries(folder / container):
            if (count := log_count(path.name)) is not None:
                yield LogFile(path=path, container=container, restart_count=count)


def _read_links(folder: Path, now_ns: int) -> Iterable[LogLink]:
    for path in _entries(folder):
        try:
            age_seconds = (now_ns - path.lstat().st_mtime_ns) / 1e9
            target = str(path.readlink())
        except OSError:
            continue  # It is no link, or gone.
        yield LogLink(
            path=path, target=target, age_seconds=age_seconds, leads_somewhere=path.exists()
        )


def _entries(folder: Path) -> Sequence[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return ()


def _link(path: Path, target: str) -> None:
    if not Path(target).exists():
        return
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.symlink_to(target)
    except FileExistsError:
        return  # Its start was still under way.
    except OSError as error:
        log.warning("container log link failed, will retry", path=str(path), error=error.strerror)


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("removal failed, will retry", path=str(path), error=error.strerror)
