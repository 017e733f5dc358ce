"""The drivers that are registered on this node: the handler of plugins of type DRAPlugin.

Of several sockets of one driver (an upgrade that lets old and new run side by side) the one that
registered last serves; when it goes, the one before it does.
"""

from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio

from trio_kubelet.dra.driver import VERSIONS, DRADriver
from trio_kubelet.k8s.validation.formats import dns_subdomain
from trio_kubelet.plugins import Plugin, PluginRefused
from trio_kubelet.tasks.callbacks import Callbacks

MAX_DRIVER_NAME = 63
SHOWN_VERSIONS = 16
"""Of the versions of a driver in an error."""


class DRADrivers:
    """The registered drivers by name. `on_change(name)` is called when one came or went."""

    def __init__(self) -> None:
        self.on_change: Callbacks[[str]] = Callbacks()
        self._registered: dict[str, list[DRADriver]] = {}

    def get(self, name: str) -> DRADriver | None:
        """Return the driver of a name that is registered now."""
        entries = self._registered.get(name)
        return entries[-1] if entries else None

    def names(self) -> Collection[str]:
        """The names of the drivers that are registered now."""
        return self._registered.keys()

    @asynccontextmanager
    async def handle(self, plugin: Plugin) -> AsyncIterator[None]:
        """Register a driver for as long as the block lasts. Raises PluginRefused."""
        await trio.lowlevel.checkpoint()
        with self.registered(registered_driver(plugin)):
            yield

    @contextmanager
    def registered(self, driver: DRADriver) -> Iterator[None]:
        """Have a driver among those of the node for as long as the block lasts."""
        self._registered.setdefault(driver.name, []).append(driver)
        self.on_change.call(driver.name)
        try:
            yield
        finally:
            entries = self._registered[driver.name]
            entries.remove(driver)
            if not entries:
                del self._registered[driver.name]
            self.on_change.call(driver.name)


def registered_driver(plugin: Plugin) -> DRADriver:
    """Return the driver that a plugin is. Raises PluginRefused."""
    words = f"plugin validation failed with err: DRA driver {plugin.name!r}"
    if len(plugin.name) > MAX_DRIVER_NAME or (wrong := next(iter(dns_subdomain(plugin.name)), "")):
        wrong = wrong if len(plugin.name) <= MAX_DRIVER_NAME else "it is too long"
        raise PluginRefused(
            f"{words}: the name must be a domain of at most {MAX_DRIVER_NAME} characters: {wrong}"
        )
    version = next((each for each in VERSIONS if each in plugin.versions), "")
    if not version:
        raise PluginRefused(
            f"{words}: none of its services {list(plugin.versions[:SHOWN_VERSIONS])} is among "
            f"those of this node {list(VERSIONS)}"
        )
    return DRADriver(name=plugin.name, endpoint=plugin.endpoint, version=version)
