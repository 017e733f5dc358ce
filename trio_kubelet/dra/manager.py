"""The resource claims of pods: prepared before the first container, unprepared after the last.

A pod's task has its claims prepared (`prepare`): what they are is read from the API, that drivers
are to be asked is written down, then the drivers are asked, all of the pod's claims of a driver in
one call. Containers get their CDI devices from the records (`added`). Once nothing of the pod runs,
`release` has the claims that no other pod uses unprepared; that needs the record alone, for the
object may be gone. A driver that is not registered is waited for.

A claim is one pod's at a time: while one has it prepared, another that shares it waits.
"""

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial

import trio
from attrs import define, evolve, field

from state_machines.claim import CLAIM, ClaimEvent, ClaimState
from trio_kubelet.devices.allocation import ContainerAllocation
from trio_kubelet.dra.checkpoint import ClaimRecord
from trio_kubelet.dra.claims import (
    ClaimProblem,
    claim_names,
    container_uses,
    devices_for,
    drivers_of,
    has_claims,
)
from trio_kubelet.dra.driver import ClaimIdentity, DRADriver, DriverAnswer
from trio_kubelet.dra.drivers import DRADrivers
from trio_kubelet.dra.health import ClaimDeviceHealth, DeviceHealth
from trio_kubelet.dra.records import ClaimRecords
from trio_kubelet.dra.statuses import claim_resource_statuses
from trio_kubelet.errors import ConfigError, PreparationError
from trio_kubelet.k8s import Container, Pod, ResourceStatus
from trio_kubelet.references import NoReferences, References
from trio_kubelet.references.object_references import ObjectError
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.concurrency import run_concurrently
from trio_kubelet.telemetry import Journal
from trio_kubelet.telemetry.journal import Walk

RETRY_SECONDS = 10.0
"""Until the API or a driver is asked again for a pod that waits."""
WAITING_FOR_CLAIMS = "WaitingForResourceClaims"
"""Why a container waits whose claims are not prepared; none of the Go kubelet's reasons."""
FAILED_PREPARE = "FailedPrepareDynamicResources"
"""The reason of the event of that."""
MAX_TOLD = 4096
"""Characters of what all claims of a pod wait for together."""
ANY_DRIVER = "<any>"
"""All drivers together, in the metrics."""
PREPARE, UNPREPARE = "PrepareResources", "UnprepareResources"
"""The operations, as the metrics name them."""

Key = tuple[str, str]
"""Namespace and name of a claim."""
Call = Callable[[DRADriver, Collection[ClaimIdentity]], Awaitable[DriverAnswer]]
"""`DRADriver.prepare` or `DRADriver.unprepare`."""


class ClaimsAwaitedError(Exception):
    """Claims are not prepared yet. `containers` need them; try again after `seconds`."""

    def __init__(self, why: str, containers: Collection[str], seconds: float) -> None:
        super().__init__(why)
        self.containers = containers
        self.seconds = seconds


@define(eq=False)
class _Claim:
    """A claim on its way. Who changes anything of it has the lock; `users` want it, or have it."""

    walk: Walk[ClaimState, ClaimEvent, None]
    lock: trio.Lock = field(factory=trio.Lock)
    users: int = 0


@define
class _PodWait:
    why: str
    drivers: frozenset[str] = frozenset()
    is_told: bool = False


class _DriversMissing(ClaimProblem):
    """Drivers are not registered, or those that `are_away` do not take connections."""

    def __init__(self, drivers: Collection[str], are_away: Collection[str]) -> None:
        self.drivers = frozenset(drivers)
        super().__init__(
            "; ".join(
                f"DRA driver {name} "
                f"{'takes no connections' if name in are_away else 'is not registered'}"
                for name in sorted(drivers)
            )
        )


class ClaimManager:
    """Owner of the claims of this node's pods.

    `on_pods(uids)` is called when a driver came that pods wait for, `on_health(uids)` when the
    health of devices of pods is another; `on_operation(operation, is_error, seconds)` after each
    attempt to prepare or unprepare claims of a pod; `on_use` when the claims in use are others.
    `health` has to be run for statuses to tell how devices are.
    """

    def __init__(
        self,
        drivers: DRADrivers,
        records: ClaimRecords,
        references: References | NoReferences,
        journal: Journal,
    ) -> None:
        self.on_pods: Callbacks[[Collection[str]]] = Callbacks()
        self.on_health: Callbacks[[Collection[str]]] = Callbacks()
        self.on_operation: Callbacks[[str, bool, float]] = Callbacks()
        self.on_use: Callbacks[[]] = Callbacks()
        self.records = records
        self._drivers = drivers
        self._references = references
        self._journal = journal
        self._claims: dict[Key, _Claim] = {}
        self._waits: dict[str, _PodWait] = {}
        drivers.on_change.add(self._driver_changed)
        self.health = ClaimDeviceHealth(drivers)
        self.health.on_health.add(self._health_changed)

    async def prepare(self, pod: Pod, *, is_running: bool) -> None:
        """Have the claims of a pod prepared. Drivers are not asked again for a pod that runs.

        Raises ClaimsAwaitedError. Cancelled, it may be called again.
        """
        if not has_claims(pod):
            return
        uid, namespace = pod.metadata.uid, pod.metadata.namespace
        try:
            wanted = {(namespace, name): place for place, name in claim_names(pod).items()}
            unready = [key for key in wanted if not self._is_ready(uid, key, is_running=is_running)]
            if unready:
                with self._timed(PREPARE):
                    await self._prepare(pod, {key: wanted[key] for key in unready})
        except ClaimProblem as problem:
            missing = problem.drivers if isinstance(problem, _DriversMissing) else frozenset()
            self._wait(uid, str(problem), missing)
            containers = [
                each.name
                for each in pod.spec.admitted_containers
                if next(container_uses(pod, each), None) is not None
            ]
            raise ClaimsAwaitedError(str(problem), containers, RETRY_SECONDS) from problem
        self._waits.pop(uid, None)

    def is_new_wait(self, uid: str) -> bool:
        """True once for each reason for which a pod waits: it is to be told of."""
        wait = self._waits.get(uid)
        if wait is None or wait.is_told:
            return False
        wait.is_told = True
        return True

    def added(
        self, pod: Pod, container: Container, allocation: ContainerAllocation
    ) -> ContainerAllocation:
        """Return what a container gets with the devices of its claims. Raises ConfigError."""
        found: dict[str, None] = dict.fromkeys(allocation.cdi_devices)
        try:
            names = claim_names(pod) if has_claims(pod) else {}
        except ClaimProblem as problem:
            raise ConfigError(str(problem), WAITING_FOR_CLAIMS) from problem
        for use in container_uses(pod, container):
            name = names.get(use.place)
            if name is None:
                continue
            record = self.records.get(pod.metadata.namespace, name)
            if record is None or pod.metadata.uid not in record.pods or not record.is_answered:
                shown = f"{pod.metadata.namespace}/{name}"
                raise ConfigError(f"ResourceClaim {shown} is not prepared", WAITING_FOR_CLAIMS)
            for _, device in devices_for(record, [use.request]):
                found.update(dict.fromkeys(device.cdi_ids))
        return evolve(allocation, cdi_devices=tuple(found))

    async def release(self, uid: str) -> None:
        """Give up the claims of a pod of which nothing runs. Raises PreparationError."""
        keys = [(each.namespace, each.name) for each in self.records.of_pod(uid)]
        if not keys:
            self._waits.pop(uid, None)
            return
        async with self._held(keys):
            mine = self.records.of_pod(uid)
            self.records.withdraw(uid, [each for each in mine if len(each.pods) > 1])
            try:
                with self._timed(UNPREPARE):
                    await self._unprepare([each for each in mine if len(each.pods) == 1])
            except ClaimProblem as problem:
                missing = problem.drivers if isinstance(problem, _DriversMissing) else frozenset()
                self._wait(uid, str(problem), missing)
                message = f"unprepare dynamic resources: {problem}"
                raise PreparationError("FailedSync", message) from problem
            finally:
                with trio.CancelScope(shield=True):
                    await self.records.keep()
        self._waits.pop(uid, None)

    def resource_statuses(
        self, pod: Pod, *, with_messages: bool
    ) -> Mapping[str, tuple[ResourceStatus, ...]]:
        """Return the health of the devices of a pod's claims, by container."""

        def health(driver: str, pool: str, device: str) -> DeviceHealth:
            known = self.health.get(driver, pool, device)
            return known if with_messages else evolve(known, message="")

        return claim_resource_statuses(pod, self.records.get, health)

    def in_use(self) -> Mapping[str, int]:
        """The number of claims that pods use, by driver, and of all drivers under ANY_DRIVER."""
        counts = {ANY_DRIVER: len(self.records.all())}
        for record in self.records.all():
            for driver in record.drivers:
                counts[driver] = counts.get(driver, 0) + 1
        return counts

    def _is_ready(self, uid: str, key: Key, *, is_running: bool) -> bool:
        record, claim = self.records.get(*key), self._claims.get(key)
        if record is None or uid not in record.pods or not record.is_answered:
            return False
        is_prepared = claim is not None and claim.walk.state is ClaimState.PREPARED
        return is_running or is_prepared

    async def _prepare(self, pod: Pod, places: Mapping[Key, str]) -> None:
        """Prepare claims, by their places in the pod. Raises ClaimProblem."""
        async with self._held(places):
            recorded = [await self._recorded(pod, *each) for each in places.items()]
            known = self.records.get
            # A record says that drivers may have been asked: who takes it back needs all of them.
            self._registered(each for each in recorded if known(each.namespace, each.name) is None)
            for record in recorded:
                self._put(record)
            self.on_use.call()
            await self._keep()
            records = [self.records.get(*key) for key in places]
            await self._ask_to_prepare(
                [
                    each
                    for each in records
                    if each is not None
                    and not (self._state(each) is ClaimState.PREPARED and each.is_answered)
                ]
            )
            await self._keep()

    async def _recorded(self, pod: Pod, key: Key, place: str) -> ClaimRecord:
        """Return the record of a claim with this pod among its users. Raises ClaimProblem."""
        uid, known = pod.metadata.uid, self.records.get(*key)
        if known is not None and uid in known.pods:
            return known
        try:
            claim = await self._references.resource_claim(*key)
        except ObjectError as error:
            raise ClaimProblem(str(error)) from error
        drivers = drivers_of(pod, place, claim)
        if known is not None and known.uid == claim.metadata.uid:
            return evolve(known, pods=known.pods | {uid})
        if known is not None:
            raise ClaimProblem(
                f"an earlier ResourceClaim {'/'.join(key)} with UID {known.uid} is still in use"
            )
        return ClaimRecord(
            uid=claim.metadata.uid,
            namespace=key[0],
            name=key[1],
            pods=frozenset({uid}),
            drivers=dict.fromkeys(sorted(drivers)),
        )

    def _put(self, record: ClaimRecord) -> None:
        """Record a claim if there is room. Raises ClaimProblem."""
        if lack := self.records.lack_of_room(record):
            raise ClaimProblem(lack)
        self.records.put(record)

    async def _keep(self) -> None:
        if not await self.records.keep():
            raise ClaimProblem("the claims cannot be written down")

    async def _ask_to_prepare(self, records: Sequence[ClaimRecord]) -> None:
        """Have claims prepared by all their drivers. Raises ClaimProblem."""
        drivers = self._registered(records)
        with self._called(records, ClaimEvent.PREPARE) as failed:
            answers = await _asked(drivers, records, DRADriver.prepare)
            failed.update(_problems(records, answers))
            for record in records:
                prepared = {
                    name: answers[name].devices.get(record.uid, devices)
                    for name, devices in record.drivers.items()
                }
                told = evolve(record, drivers=prepared)
                if lack := self.records.lack_of_room(told):
                    failed[record.uid] = lack
                else:
                    self.records.put(told)
        if failed:
            raise ClaimProblem(_in_words(failed.values()))

    async def _unprepare(self, records: Sequence[ClaimRecord]) -> None:
        """Have claims unprepared that nobody uses any more. Raises ClaimProblem."""
        asked = [each for each in records if self._state(each) is not ClaimState.UNPREPARED]
        drivers = self._registered(asked)
        with self._called(asked, ClaimEvent.UNPREPARE) as failed:
            answers = await _asked(drivers, asked, DRADriver.unprepare)
            failed.update(_problems(asked, answers))
        for record in records:
            if record.uid not in failed:
                self.records.drop(record)
        self.on_use.call()
        if failed:
            raise ClaimProblem(_in_words(failed.values()))

    @contextmanager
    def _called(self, records: Sequence[ClaimRecord], call: ClaimEvent) -> Iterator[dict[str, str]]:
        """Walk claims through a call; the block says which of them failed, by UID, and why.

        A block that is left by an error or by cancellation leaves all of them uncertain.
        """
        walks = {each.uid: self._claims[each.namespace, each.name].walk for each in records}
        for walk in walks.values():
            walk.step(call)
        failed = dict.fromkeys(walks, "nobody knows what the drivers have done")
        try:
            told: dict[str, str] = {}
            yield told
            failed = told
        finally:
            for uid, walk in walks.items():
                problem = failed.get(uid, "")
                walk.step(ClaimEvent.FAILED if problem else ClaimEvent.SUCCEEDED, cause=problem)

    def _registered(self, records: Iterable[ClaimRecord]) -> Mapping[str, DRADriver]:
        """Return the drivers of claims. Raises ClaimProblem if some are not there."""
        names = {name for record in records for name in record.drivers}
        found = {name: driver for name in names if (driver := self._drivers.get(name)) is not None}
        if missing := names - found.keys():
            raise _DriversMissing(missing, list(filter(self._drivers.is_away, missing)))
        return found

    def _state(self, record: ClaimRecord) -> ClaimState:
        return self._claims[record.namespace, record.name].walk.state

    @asynccontextmanager
    async def _held(self, keys: Iterable[Key]) -> AsyncIterator[None]:
        """Have claims to oneself, in an order in which no two pods wait for one another."""
        held = [(key, self._claim(key)) for key in sorted(keys)]
        for _, claim in held:
            claim.users += 1
        try:
            async with AsyncExitStack() as stack:
                for _, claim in held:
                    await stack.enter_async_context(claim.lock)
                yield
        finally:
            for key, claim in held:
                claim.users -= 1
                if not claim.users and self.records.get(*key) is None:
                    del self._claims[key]

    def _claim(self, key: Key) -> _Claim:
        if key not in self._claims:
            is_known = self.records.get(*key) is not None
            state = ClaimState.UNCERTAIN if is_known else ClaimState.UNPREPARED
            walk = Walk(CLAIM, state, self._journal, "/".join(key), entered_at=trio.current_time())
            walk.begin("Known" if is_known else "Needed")
            self._claims[key] = _Claim(walk)
        return self._claims[key]

    @contextmanager
    def _timed(self, operation: str) -> Iterator[None]:
        began_at, is_error = trio.current_time(), True
        try:
            yield
            is_error = False
        finally:
            self.on_operation.call(operation, is_error, trio.current_time() - began_at)

    def _wait(self, uid: str, why: str, drivers: frozenset[str]) -> None:
        known = self._waits.get(uid)
        is_told = known is not None and known.is_told and known.why == why
        self._waits[uid] = _PodWait(why, drivers, is_told)

    def _health_changed(self, driver: str, devices: Collection[tuple[str, str]]) -> None:
        if uids := self.records.pods_with((driver, *device) for device in devices):
            self.on_health.call(uids)

    def _driver_changed(self, name: str) -> None:
        if waiting := {uid for uid, wait in self._waits.items() if name in wait.drivers}:
            self.on_pods.call(waiting)


async def _asked(
    drivers: Mapping[str, DRADriver],
    records: Sequence[ClaimRecord],
    call: Call,
) -> Mapping[str, DriverAnswer]:
    """Make one call to each driver, for all its claims; returns what each answered."""
    answers: dict[str, DriverAnswer] = {}

    async def ask(name: str, driver: DRADriver) -> None:
        claims = [
            ClaimIdentity(each.namespace, each.name, each.uid)
            for each in records
            if name in each.drivers
        ]
        answers[name] = await call(driver, claims)

    await run_concurrently(*(partial(ask, *each) for each in drivers.items()))
    return answers


def _in_words(problems: Iterable[str]) -> str:
    """The words for what claims wait for, in statuses and events; words of many stand once."""
    words = "; ".join(dict.fromkeys(problems))
    return words if len(words) <= MAX_TOLD else f"{words[:MAX_TOLD]}…"


def _problems(
    records: Sequence[ClaimRecord], answers: Mapping[str, DriverAnswer]
) -> Mapping[str, str]:
    """Return what drivers could not do, by the UIDs of claims."""
    found: dict[str, str] = {}
    for record in records:
        told = [answers[name].problems.get(record.uid) for name in record.drivers]
        if problems := [each for each in told if each is not None]:
            found[record.uid] = "; ".join(problems)
    return found
