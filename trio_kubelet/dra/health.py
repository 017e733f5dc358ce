"""The health of claims' devices, told by drivers that have the service DRAResourceHealth.

Every driver is asked when it registers, for nothing else says whether it has the service; one that
has is followed until it goes. What it says of a device counts until the time that it names has
passed without its saying anything of that device again: then nobody knows. So it is when the driver
has gone.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from itertools import islice
from typing import Any

import structlog
import trio
from attrs import define, field, frozen

from state_machines.backoff import BackoffPolicy
from trio_kubelet.dra.driver import MAX_ANSWER_BYTES, MAX_NAME_BYTES, MAX_WORDS, DRADriver
from trio_kubelet.dra.drivers import DRADrivers
from trio_kubelet.k8s import ResourceHealthStatus
from trio_kubelet.rpc import Channel, Code, RpcError, rpc_words
from trio_kubelet.rpc.stubs import v1 as wire
from trio_kubelet.rpc.stubs import v1alpha1 as wire_v1alpha1
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.retries import Retries
from trio_kubelet.tasks.threads import run_in_thread

log = structlog.get_logger("dra")

METHODS: tuple[Any, ...] = (
    wire.DraResourceHealthStub.node_watch_resources,
    wire_v1alpha1.DraResourceHealthStub.node_watch_resources,
)
"""The newest first; their messages are the same."""
TIMEOUT_SECONDS = 30.0
"""The time for which health counts whose driver names none, as in the Go kubelet."""
MAX_DEVICES = 4096
"""Of a driver."""
MAX_ANSWER_FIELDS = 16 * MAX_DEVICES
"""Of an answer: a device has eight at most, and of some more than there may be the first count."""
MANY_DEVICES = 256
"""More are looked at in a thread."""
PACE_SECONDS = 0.1
"""Between two answers of a driver: one that goes on and on costs ten a second."""
PACE_SECONDS_OF_DEVICE = 0.0002
"""More for each device of the answer."""
TELL_SECONDS = 1.0
"""Between two tellings of what is another at a driver: the statuses of its pods are made anew."""
RETRY = BackoffPolicy(initial_seconds=0.5, cap_seconds=60.0, forget_after_seconds=10.0)
"""A driver that answers, and soon breaks off each time, fails as one that does not answer."""

STATUSES: Mapping[int, ResourceHealthStatus] = {
    wire.HealthStatus.HEALTHY: ResourceHealthStatus.HEALTHY,
    wire.HealthStatus.UNHEALTHY: ResourceHealthStatus.UNHEALTHY,
}

PoolDevice = tuple[str, str]
"""Names of pool and device."""


@frozen
class DeviceHealth:
    """The health of a device, with the driver's words, and for how long it counts."""

    status: ResourceHealthStatus
    message: str = ""
    seconds: float = field(default=TIMEOUT_SECONDS, eq=False)


UNKNOWN = DeviceHealth(ResourceHealthStatus.UNKNOWN)


@define(eq=False)
class _Followed:
    """A driver that is followed; what it said of each device, and until when that counts."""

    driver: DRADriver
    known: dict[PoolDevice, tuple[DeviceHealth, float]] = field(factory=dict)
    changed: trio.Event = field(factory=trio.Event)
    untold: set[PoolDevice] = field(factory=set)
    has_untold: trio.Event = field(factory=trio.Event)
    scope: trio.CancelScope = field(factory=trio.CancelScope)


class ClaimDeviceHealth:
    """Owner of what drivers say of their devices.

    `on_health(driver, devices)` is called when the health of devices is another, once a second for
    a driver.
    """

    def __init__(self, drivers: DRADrivers) -> None:
        self.on_health: Callbacks[[str, Collection[PoolDevice]]] = Callbacks()
        self._drivers = drivers
        self._followed: dict[str, _Followed] = {}
        self._with_messages = True

    def get(self, driver: str, pool: str, device: str) -> DeviceHealth:
        """Return the health of a device, UNKNOWN if nobody knows it."""
        followed = self._followed.get(driver)
        known = followed.known.get((pool, device)) if followed is not None else None
        return UNKNOWN if known is None else known[0]

    async def run(self, *, with_messages: bool = True) -> None:
        """Follow the drivers until cancelled. Without messages other words are no other health."""
        self._with_messages = with_messages
        async with trio.open_nursery() as nursery:

            def changed(name: str) -> None:
                self._driver_changed(name, nursery)

            self._drivers.on_change.add(changed)
            for name in tuple(self._drivers.names()):
                changed(name)
            await trio.sleep_forever()

    def _driver_changed(self, name: str, nursery: trio.Nursery) -> None:
        driver, before = self._drivers.get(name), self._followed.get(name)
        if before is not None:
            if before.driver is driver:
                return
            before.scope.cancel()
            del self._followed[name]
        if driver is not None:
            # What an earlier version of it said counts on.
            known, untold = (before.known, before.untold) if before is not None else ({}, set())
            followed = self._followed[name] = _Followed(driver, known)
            self._note(followed, untold)
            nursery.start_soon(self._follow, followed, name=f"health of devices of {name}")
        elif before is not None and (before.known or before.untold):
            self.on_health.call(name, before.known.keys() | before.untold)

    async def _follow(self, followed: _Followed) -> None:
        """Take what a driver says until it goes."""
        retries, driver = Retries(RETRY), followed.driver
        with followed.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._expire, followed)
                nursery.start_soon(self._tell, followed)
                while True:
                    try:
                        problem = await self._read(followed)
                    except Exception:
                        log.exception("health of devices could not be taken", driver=driver.name)
                        problem = "it could not be taken"
                    if problem is None:
                        break
                    words = "driver tells no more how its devices are, will ask again"
                    retries.warn(log, words, driver=driver.name, problem=problem)
                    await retries.wait()

    async def _read(self, followed: _Followed) -> str | None:
        """Take a driver's answers; returns why they ended, None if there is no such service."""
        for method in METHODS:
            try:
                with closing(_channel(followed.driver)) as channel:
                    async with channel.stream(method, wire.NodeWatchResourcesRequest()) as answers:
                        async for answer in answers:
                            await self._take(followed, answer)
            except RpcError as error:
                if error.code is Code.UNIMPLEMENTED:
                    continue
                return rpc_words(error.code, error.message[:MAX_WORDS])
            return "it ended its answers"
        return None

    async def _take(self, followed: _Followed, answer: wire.NodeWatchResourcesResponse) -> None:
        """Take over what is said of some devices, and give others their time."""
        count = len(answer.devices)
        told = (
            await run_in_thread(told_health, answer.devices)
            if count > MANY_DEVICES
            else told_health(answer.devices)
        )
        known, now, changed = followed.known, trio.current_time(), list[PoolDevice]()
        for device, health in told.items():
            before = known.get(device)
            if before is None and len(known) >= MAX_DEVICES:
                continue
            if self._is_other(UNKNOWN if before is None else before[0], health):
                changed.append(device)
            known[device] = health, now + health.seconds
        followed.changed.set()
        self._note(followed, changed)
        await trio.sleep(PACE_SECONDS + PACE_SECONDS_OF_DEVICE * count)

    def _is_other(self, before: DeviceHealth, health: DeviceHealth) -> bool:
        return before != health if self._with_messages else before.status != health.status

    def _note(self, followed: _Followed, changed: Collection[PoolDevice]) -> None:
        """Have it told that the health of devices is another."""
        if changed:
            followed.untold.update(changed)
            followed.has_untold.set()

    async def _tell(self, followed: _Followed) -> None:
        """Tell of devices whose health is another, now and then."""
        while True:
            await followed.has_untold.wait()
            changed, followed.untold = followed.untold, set()
            followed.has_untold = trio.Event()
            self.on_health.call(followed.driver.name, changed)
            await trio.sleep(TELL_SECONDS)

    async def _expire(self, followed: _Followed) -> None:
        """Forget what counts no longer."""
        known = followed.known
        while True:
            followed.changed = trio.Event()
            first = min((until for _, until in known.values()), default=float("inf"))
            if first > trio.current_time():
                with trio.move_on_at(first):
                    await followed.changed.wait()
                continue
            now = trio.current_time()
            expired = [device for device, (_, until) in known.items() if until <= now]
            for device in expired:
                del known[device]
            self._note(followed, expired)


def told_health(told: Iterable[wire.DeviceHealth]) -> Mapping[PoolDevice, DeviceHealth]:
    """Return what a driver says of its devices, as far as it is usable."""
    found: dict[PoolDevice, DeviceHealth] = {}
    for each in islice(told, MAX_DEVICES):
        device = each.device.pool_name, each.device.device_name
        if all(len(name.encode()) <= MAX_NAME_BYTES for name in device):
            found[device] = DeviceHealth(
                STATUSES.get(each.health, ResourceHealthStatus.UNKNOWN),
                each.message[:MAX_WORDS],
                float(each.health_check_timeout_seconds)
                if each.health_check_timeout_seconds > 0
                else TIMEOUT_SECONDS,
            )
    return found


def _channel(driver: DRADriver) -> Channel:
    return Channel(
        driver.endpoint, max_answer_bytes=MAX_ANSWER_BYTES, max_answer_fields=MAX_ANSWER_FIELDS
    )
