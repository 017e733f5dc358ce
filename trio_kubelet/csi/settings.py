"""The cluster's settings of its CSI drivers: CSIDriver objects, followed by list-and-watch."""

import trio

from trio_kubelet.k8s import CSI_DRIVERS, CSIDriver, CSIDriverSpec
from trio_kubelet.k8s.client import Api, ListSynced, ObjectChanged, WatchEvent, reflect
from trio_kubelet.tasks.callbacks import Callbacks

FIRST_LIST_SECONDS = 5.0
"""A volume waits so long for the objects, after a start of the agent."""


class UnknownSettingsError(Exception):
    """The cluster's settings of a driver are not known, or there are none."""


class NoSettingsError(UnknownSettingsError):
    """The cluster has no settings of a driver: there is no object, and what is usual holds."""


class DriverSettings:
    """The settings of all drivers of the cluster. `on_change` is called after each change."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._specs: dict[str, CSIDriverSpec] = {}
        self._synced = trio.Event()
        self.on_change: Callbacks[[]] = Callbacks()

    async def run(self) -> None:
        """Follow the objects, until cancelled."""
        await reflect(self._api, CSI_DRIVERS, self._take)

    def known(self, name: str) -> CSIDriverSpec | None:
        """Return what the cluster is known to say of a driver; None if that is nothing."""
        return self._specs.get(name)

    async def get(self, name: str) -> CSIDriverSpec:
        """Return what the cluster says of a driver; waits a little for the first list.

        Raises UnknownSettingsError, NoSettingsError.
        """
        with trio.move_on_after(FIRST_LIST_SECONDS):
            await self._synced.wait()
        if name in self._specs:
            return self._specs[name]
        if not self._synced.is_set():
            raise UnknownSettingsError("the CSIDriver objects have not been read yet")
        raise NoSettingsError("no CSIDriver object")

    async def _take(self, event: WatchEvent[CSIDriver]) -> None:
        match event:
            case ListSynced():
                self._synced.set()
            case ObjectChanged(object=known):
                self._specs[known.metadata.name] = known.spec
            case _:
                self._specs.pop(event.object.metadata.name, None)
        self.on_change.call()


class NoDriverSettings:
    """A node without an API server: nobody says anything of drivers."""

    async def get(self, _name: str) -> CSIDriverSpec:
        """Raise UnknownSettingsError."""
        await trio.lowlevel.checkpoint()
        raise UnknownSettingsError("there is no API server with CSIDriver objects")
