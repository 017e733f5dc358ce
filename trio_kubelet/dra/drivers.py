"""The drivers that are registered on this node: the handler of plugins of type DRAPlugin.

A driver that is killed leaves its sockets behind and stays registered. So a connection to each is
held: when it ends and there is no new one the driver is away, as if it had deregistered, until its
socket takes connections again.

Of several sockets of one driver (an upgrade that lets old and new run side by side) the one that
registered last and is not away serves; when it goes, the one before it does.
"""

from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager

import structlog
import trio
from attrs import define

from state_machines.backoff import BackoffPolicy
from trio_kubelet.dra.driver import VERSIONS, DRADriver
from trio_kubelet.k8s.validation.formats import dns_subdomain
from trio_kubelet.plugins import Plugin, PluginRefused
from trio_kubelet.rpc.held_connection import hold_connection
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.retries import Retries

log = structlog.get_logger("dra")

MAX_DRIVER_NAME = 63
SHOWN_VERSIONS = 16
"""Of the versions of a driver in an error."""


AGAIN_SECONDS = 0.1
"""From the end of a connection to the next one: a driver may end those that are idle."""
RETRY = BackoffPolicy(initial_seconds=0.5, cap_seconds=10.0)
"""Between two attempts to connect to a driver that is away."""


@define(eq=False)
class _Registered:
    """A driver at one socket; whether it is away is not known before the first attempt."""

    driver: DRADriver
    is_away: bool = False


class DRADrivers:
    """The registered drivers by name. `on_change(name)` is called when one came or went."""

    def __init__(self) -> None:
        self.on_change: Callbacks[[str]] = Callbacks()
        self._registered: dict[str, list[_Registered]] = {}

    def get(self, name: str) -> DRADriver | None:
        """Return the driver of a name that is registered now, and not away."""
        there = (each for each in reversed(self._registered.get(name, ())) if not each.is_away)
        return next((each.driver for each in there), None)

    def is_away(self, name: str) -> bool:
        """True if a driver is registered, and nobody takes connections at its socket."""
        return name in self._registered and self.get(name) is None

    def names(self) -> Collection[str]:
        """The names of the drivers that are registered now, and not away."""
        return [name for name in self._registered if self.get(name) is not None]

    @asynccontextmanager
    async def handle(self, plugin: Plugin) -> AsyncIterator[None]:
        """Register a driver for as long as the block lasts. Raises PluginRefused."""
        driver = registered_driver(plugin)
        async with trio.open_nursery() as nursery:
            with self._entered(driver) as entry:
                nursery.start_soon(self._stay_connected, entry, name=f"DRA driver {driver.name}")
                yield
            nursery.cancel_scope.cancel()

    @contextmanager
    def registered(self, driver: DRADriver) -> Iterator[None]:
        """Have a driver that is never away among those of the node while the block lasts."""
        with self._entered(driver):
            yield

    @contextmanager
    def _entered(self, driver: DRADriver) -> Iterator[_Registered]:
        entry = _Registered(driver)
        self._registered.setdefault(driver.name, []).append(entry)
        self.on_change.call(driver.name)
        try:
            yield entry
        finally:
            entries = self._registered[driver.name]
            entries.remove(entry)
            if not entries:
                del self._registered[driver.name]
            self.on_change.call(driver.name)

    async def _stay_connected(self, entry: _Registered) -> None:
        """Hold a connection to a driver; while there is none, it is away."""
        retries, name = Retries(RETRY), entry.driver.name

        def opened() -> None:
            retries.reset()
            self._set_away(entry, is_away=False)

        while True:
            try:
                await hold_connection(entry.driver.endpoint, opened)
            except OSError as error:
                words = "driver takes no connections, and counts as away"
                retries.warn(log, words, driver=name, error=str(error))
                self._set_away(entry, is_away=True)
                await retries.wait()
            else:
                await trio.sleep(AGAIN_SECONDS)

    def _set_away(self, entry: _Registered, *, is_away: bool) -> None:
        if entry.is_away is not is_away:
            entry.is_away = is_away
            self.on_change.call(entry.driver.name)


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
