"""The CSI drivers that are registered on this node: the handler of plugins of type CSIPlugin.

A driver is asked what it calls this node before it counts as registered. Of several sockets of one
driver (an upgrade that lets old and new run side by side) the one that registered last serves;
when it goes, the one before it does. Whoever needs a driver that is not there waits for it.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial

import structlog
import trio
from attrs import define, evolve, frozen

from trio_kubelet.csi.driver import (
    MAX_DRIVER_NAME,
    DriverClient,
    NodeInfo,
    is_driver_name,
    newest_version,
    shown_version,
)
from trio_kubelet.plugins import MAX_ANSWER_BYTES, Plugin, PluginRefused
from trio_kubelet.rpc import Channel, RpcError, rpc_words
from trio_kubelet.rpc.methods import methods_of
from trio_kubelet.rpc.stubs.csi import v1 as csi
from trio_kubelet.rpc.watched import RpcCall, WatchedTransport
from trio_kubelet.tasks.callbacks import Callbacks

log = structlog.get_logger("csi")

SHOWN_VERSIONS = 16
"""Of the versions of a driver in an error."""


@frozen(kw_only=True)
class DriverCall:
    """A call to a driver that came to its end."""

    driver: str
    method: str
    """Its path in gRPC: `/csi.v1.Node/NodeGetInfo`."""
    seconds: float
    error: RpcError | None = None


@define(eq=False)
class RegisteredDriver:
    """A driver, and this node as it knows it."""

    driver: DriverClient
    node: NodeInfo


class CSIDrivers:
    """The registered drivers by name.

    `on_change` is called when a driver has come or gone, `on_limit` when one can have more volumes
    here than before, or fewer. `on_call` is told of each call to a driver that is or was
    registered.
    """

    def __init__(self) -> None:
        self._registered: dict[str, list[RegisteredDriver]] = {}
        self._came = trio.Event()
        self.on_change: Callbacks[[]] = Callbacks()
        self.on_limit: Callbacks[[]] = Callbacks()
        self.on_call: Callbacks[[DriverCall]] = Callbacks()

    def nodes(self) -> Mapping[str, NodeInfo]:
        """The node as each registered driver knows it, by the drivers' names."""
        return {name: entries[-1].node for name, entries in sorted(self._registered.items())}

    def get(self, name: str) -> DriverClient | None:
        """Return the driver of a name that is registered now."""
        entries = self._registered.get(name)
        return entries[-1].driver if entries else None

    async def wait(self, name: str) -> DriverClient:
        """Return the driver of a name as soon as it is registered."""
        while (driver := self.get(name)) is None:
            await self._came.wait()
        return driver

    def set_limit(self, driver: DriverClient, max_volumes: int) -> None:
        """Note how many volumes a driver can have here; one that has gone is fine."""
        for entry in self._registered.get(driver.name, ()):
            if entry.driver is driver and entry.node.max_volumes != max_volumes:
                entry.node = evolve(entry.node, max_volumes=max_volumes)
                self.on_limit.call()

    @asynccontextmanager
    async def handle(self, plugin: Plugin) -> AsyncIterator[None]:
        """Register a driver for as long as the block lasts. Raises PluginRefused."""
        if problem := "; ".join(self._problems(plugin)):
            raise PluginRefused(f"plugin validation failed with err: kubernetes.io/csi: {problem}")
        with closing(Channel(plugin.endpoint, max_answer_bytes=MAX_ANSWER_BYTES)) as channel:
            version = newest_version(plugin.versions)
            calls: Callbacks[[RpcCall]] = Callbacks()
            calls.add(partial(self._called, plugin.name))
            transport = WatchedTransport(channel, calls)
            driver = DriverClient(name=plugin.name, version=version, transport=transport)
            try:
                node = await driver.node_info()
            except RpcError as error:
                words = rpc_words(error.code, error.message)
                raise PluginRefused(f"plugin registration failed with err: {words}") from error
            with self.registered(driver, node):
                yield

    @contextmanager
    def registered(self, driver: DriverClient, node: NodeInfo) -> Iterator[None]:
        """Have a driver among those of the node for as long as the block lasts."""
        entry = RegisteredDriver(driver, node)
        self._registered.setdefault(driver.name, []).append(entry)
        self._changed()
        try:
            yield
        finally:
            entries = self._registered[driver.name]
            entries.remove(entry)
            if not entries:
                del self._registered[driver.name]
            self._changed()

    def _called(self, driver: str, call: RpcCall) -> None:
        """Tell of a call."""
        method = methods_of(csi.NodeBase)[call.method].path
        told = DriverCall(driver=driver, method=method, seconds=call.seconds, error=call.error)
        self.on_call.call(told)

    def _problems(self, plugin: Plugin) -> Iterator[str]:
        """Say why a driver cannot be registered, in the Go kubelet's words where it has some."""
        words = f"RegistrationHandler.ValidatePlugin for CSI driver {plugin.name!r} failed."
        if not is_driver_name(plugin.name):
            yield f"{words} The name must be a domain of at most {MAX_DRIVER_NAME} characters"
        if not plugin.versions:
            yield f"{words} Plugin returned an empty list for supported versions"
            return
        try:
            version = newest_version(plugin.versions)
        except ValueError as error:
            shown = plugin.versions[:SHOWN_VERSIONS]
            yield f"{words} None of the versions specified {shown} are supported. err={error}"
            return
        registered = self.get(plugin.name)
        if registered is not None and registered.version > version:
            yield (
                f"{words} Another driver with the same name is already registered with a higher "
                f"supported version: {shown_version(registered.version)!r}"
            )

    def _changed(self) -> None:
        came, self._came = self._came, trio.Event()
        came.set()
        self.on_change.call()
