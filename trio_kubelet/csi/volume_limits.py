"""The number of volumes that this node can have of each driver, as it changes.

A driver tells it when it registers. Where the cluster's settings of the driver say so
(`nodeAllocatableUpdatePeriodSeconds`, KEP-4876), the driver is asked again every so often, and at
once when a volume could not be attached because the node is full. A driver that fails or hangs
keeps its last number, and no other waits for it.
"""

from collections.abc import Mapping
from functools import partial

import structlog
import trio
from attrs import define, field

from state_machines.backoff import BackoffPolicy
from trio_kubelet.csi.drivers import CSIDrivers
from trio_kubelet.csi.settings import DriverSettings
from trio_kubelet.rpc import RpcError
from trio_kubelet.tasks.retries import Retries

log = structlog.get_logger("csi")

MIN_PERIOD_SECONDS = 10.0
"""The shortest period that the API server takes."""


@define(eq=False)
class _Followed:
    """A driver that is asked again; `hurry` is set if that is not to wait for its time."""

    period_seconds: float
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    hurry: trio.Event = field(factory=trio.Event)


@define(eq=False)
class VolumeLimits:
    """Asks drivers for the number of volumes that they can have here, and has it known."""

    _drivers: CSIDrivers
    _settings: DriverSettings
    _followed: dict[str, _Followed] = field(init=False, factory=dict)
    _changed: trio.Event = field(init=False, factory=trio.Event)

    async def run(self) -> None:
        """Ask until cancelled."""
        self._drivers.on_change.add(self._wake)
        self._settings.on_change.add(self._wake)
        async with trio.open_nursery() as nursery:
            while True:
                self._changed = trio.Event()
                periods = self._periods()
                for name, followed in tuple(self._followed.items()):
                    if periods.get(name) != followed.period_seconds:
                        del self._followed[name]
                        followed.scope.cancel()
                for name in sorted(periods.keys() - self._followed.keys()):
                    followed = self._followed[name] = _Followed(periods[name])
                    nursery.start_soon(partial(self._follow, name, followed))
                await self._changed.wait()

    def may_change(self, name: str) -> bool:
        """True if the cluster wants to be told of a driver's number again."""
        return name in self._followed

    def ask(self, name: str) -> None:
        """Ask a driver soon; one that need not be asked is fine."""
        if name in self._followed:
            self._followed[name].hurry.set()

    def _wake(self) -> None:
        self._changed.set()

    def _periods(self) -> Mapping[str, float]:
        """Return how often each registered driver is to be asked that is to be."""
        periods = {}
        for name in self._drivers.nodes():
            spec = self._settings.known(name)
            if spec is not None and spec.node_allocatable_update_period_seconds is not None:
                wanted = float(spec.node_allocatable_update_period_seconds)
                periods[name] = max(wanted, MIN_PERIOD_SECONDS)
        return periods

    async def _follow(self, name: str, followed: _Followed) -> None:
        retries = Retries(BackoffPolicy())
        with followed.scope:
            while True:
                with trio.move_on_after(followed.period_seconds):
                    await followed.hurry.wait()
                followed.hurry = trio.Event()
                try:
                    await self._ask(name)
                except RpcError as error:
                    words = "CSI driver volume limit request failed"
                    retries.warn(log, words, driver=name, error=str(error))
                except Exception:
                    log.exception("CSI driver volume limit request failed", driver=name)
                else:
                    retries.reset()

    async def _ask(self, name: str) -> None:
        driver = self._drivers.get(name)
        if driver is not None:
            node = await driver.node_info()
            self._drivers.set_limit(driver, node.max_volumes)
