"""The space that volumes of drivers have and use, as the drivers tell it.

Every so often the volumes of a driver are asked for one after the other, those of different
drivers side by side, so a driver that hangs leaves the figures of others alone. Readers get what
was told last; of a volume whose last question failed there is nothing.
"""

from collections import defaultdict
from collections.abc import Sequence

import structlog
import trio
from attrs import define, field, frozen

from state_machines.backoff import BackoffPolicy
from trio_kubelet.csi.driver import MEASURES, DriverClient, VolumeUsage
from trio_kubelet.csi.drivers import CSIDrivers
from trio_kubelet.rpc import RpcError
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.retries import Retries

log = structlog.get_logger("volumes")

DEFAULT_PERIOD_SECONDS = 60.0


@frozen(kw_only=True)
class VolumeOfPod:
    """A volume that a driver has published for a pod at `path`.

    `name` is its name in the pod, `claim` that of the claim that it is bound to, empty if the
    driver has made it for the pod alone. `staging_path` is empty if it was not staged.
    """

    driver: str
    volume_id: str
    path: str
    pod_uid: str
    namespace: str
    name: str
    staging_path: str = ""
    claim: str = ""


@frozen(kw_only=True)
class MeasuredVolume:
    """A volume with its figures, as they were told at `time_ns`."""

    volume: VolumeOfPod
    usage: VolumeUsage
    time_ns: int


@define(eq=False)
class VolumeUsages:
    """Owner of what is known of the space of drivers' volumes.

    `period_seconds` is how often it is asked for; 0: each minute, negative: never.
    """

    _drivers: CSIDrivers
    _clock: Clock
    _period_seconds: float
    _volumes: dict[tuple[str, str], VolumeOfPod] = field(init=False, factory=dict)
    """By the pod's UID and the path."""
    _measured: dict[tuple[str, str], MeasuredVolume] = field(init=False, factory=dict)
    _asked: set[str] = field(init=False, factory=set)
    """The drivers that are being asked."""

    def published(self, volume: VolumeOfPod) -> None:
        """Ask for a volume from now on; one that is known already is fine."""
        self._volumes[volume.pod_uid, volume.path] = volume

    def unpublished(self, pod_uid: str, path: str = "") -> None:
        """Forget a volume of a pod, or all; unknown ones are fine."""
        for key in [key for key in self._volumes if key[0] == pod_uid and path in ("", key[1])]:
            del self._volumes[key]
            self._measured.pop(key, None)

    def measured(self) -> Sequence[MeasuredVolume]:
        """Return the figures of all volumes that have some."""
        return tuple(self._measured.values())

    async def run(self) -> None:
        """Ask for the volumes until cancelled."""
        if self._period_seconds < 0:
            return
        period_seconds = self._period_seconds or DEFAULT_PERIOD_SECONDS
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(period_seconds)
                by_driver = defaultdict(list)
                for key, volume in self._volumes.items():
                    by_driver[volume.driver].append(key)
                for name, keys in by_driver.items():
                    driver = self._drivers.get(name)
                    if driver is None:
                        self._forget(keys)
                    elif name not in self._asked:
                        self._asked.add(name)
                        nursery.start_soon(self._ask_driver, driver, keys)

    async def _ask_driver(self, driver: DriverClient, keys: Sequence[tuple[str, str]]) -> None:
        """Ask a driver for volumes, if it tells of any. A failure is logged once."""
        retries = Retries(BackoffPolicy())
        try:
            if MEASURES not in await driver.capabilities():
                self._forget(keys)
                return
            for key in keys:
                if key in self._volumes:
                    await self._ask(driver, key, retries)
        except RpcError as error:
            self._forget(keys)
            log.debug(
                "CSI driver capabilities request failed", driver=driver.name, error=str(error)
            )
        except Exception:
            log.exception("CSI volume measurement failed", driver=driver.name)
        finally:
            self._asked.discard(driver.name)

    async def _ask(self, driver: DriverClient, key: tuple[str, str], retries: Retries) -> None:
        volume = self._volumes[key]
        try:
            usage = await driver.volume_usage(volume.volume_id, volume.path, volume.staging_path)
        except RpcError as error:
            self._forget([key])
            words = "CSI volume measurement failed"
            retries.warn(log, words, driver=driver.name, volume=volume.volume_id, error=str(error))
            return
        if self._volumes.get(key) == volume:
            now_ns = self._clock.now_ns()
            self._measured[key] = MeasuredVolume(volume=volume, usage=usage, time_ns=now_ns)

    def _forget(self, keys: Sequence[tuple[str, str]]) -> None:
        for key in keys:
            self._measured.pop(key, None)
