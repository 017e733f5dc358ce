"""The ways in which device plugins register: the agent's socket, and `plugins_registry`.

A plugin finds out that the agent has started anew by its socket, which is another one then. So at
the start of the agent the sockets of plugins in its folder are removed, as by the Go kubelet: a
plugin that watches the folder makes its own anew, too, and registers.
"""

import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath

import structlog

from state_machines.backoff import BackoffPolicy
from trio_kubelet.devices.client import DevicePluginError
from trio_kubelet.devices.plugins import DevicePlugins, Endpoint
from trio_kubelet.k8s.validation.resources import is_extended
from trio_kubelet.plugins import Plugin, PluginRefused
from trio_kubelet.rpc import Code, RpcError, ServerLimits, serve
from trio_kubelet.rpc.stubs import v1beta1 as wire
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.tasks.retries import Retries
from trio_kubelet.tasks.threads import run_in_thread

log = structlog.get_logger("devices")

SOCKET = "kubelet.sock"
VERSION = "v1beta1"
AT_ONCE = 8
"""Resources whose plugins are asked for their options at a time. One that hangs delays others by
the deadline of that call at most: resources take turns, and each has one."""
MAX_SHOWN = 256
SHOWN_VERSIONS = 16
RETRY = BackoffPolicy(initial_seconds=1.0, cap_seconds=30.0)


class DevicePluginRegistration:
    """The service Registration, and the handler of plugins of type DevicePlugin.

    `folder` is `device-plugins` below the agent's root folder. `on_request(resource)` is called
    after each call to register, whatever came of it; without a name for what is no resource here.
    """

    def __init__(self, folder: Path, plugins: DevicePlugins) -> None:
        self.on_request: Callbacks[[str]] = Callbacks()
        self._folder = folder
        self._plugins = plugins
        self._turns = FairLimiter(AT_ONCE, 1)

    async def run(self) -> None:
        """Serve the agent's socket until cancelled; where that fails it is tried again."""
        retries = Retries(RETRY)
        while True:
            try:
                await run_in_thread(self._remove_sockets)
                contracts = (wire.RegistrationBase,)
                await serve(
                    [self],
                    self._folder / SOCKET,
                    contracts=contracts,
                    mode=0o755,
                    limits=ServerLimits(),
                )
            except OSError as error:
                path = str(self._folder / SOCKET)
                retries.warn(log, "device plugins cannot register", path=path, error=str(error))
            await retries.wait()

    async def register(self, request: wire.RegisterRequest) -> wire.Empty:
        """Register a plugin. Raises RpcError, which it is answered."""
        name, problem = request.resource_name, ""
        if request.version != VERSION:
            problem = (
                f'requested API version "{request.version[:MAX_SHOWN]}" is not supported by '
                f'kubelet. Supported version is ["{VERSION}"]'
            )
        elif not is_extended(name):
            problem = f'the ResourceName "{name[:MAX_SHOWN]}" is invalid'
        elif not _is_inside(request.endpoint):
            shown = request.endpoint[:MAX_SHOWN]
            problem = f'the Endpoint "{shown}" is no name of a socket in {self._folder}'
        if not problem:
            try:
                async with self._turns.share(name):
                    await self._plugins.connect(name, str(self._folder / request.endpoint))
            except (DevicePluginError, ValueError) as error:
                problem = str(error)
        self._count(name)
        if problem:
            shown = name[:MAX_SHOWN]
            log.warning("device plugin registration failed", resource=shown, problem=problem)
            raise RpcError(Code.UNKNOWN, problem)
        return wire.Empty()

    @asynccontextmanager
    async def handle(self, plugin: Plugin) -> AsyncIterator[None]:
        """Register a plugin of `plugins_registry` while the block lasts. Raises PluginRefused."""
        try:
            endpoint = await self._connect(plugin)
        finally:
            self._count(plugin.name)
        try:
            yield
        finally:
            self._plugins.disconnect(endpoint)

    async def _connect(self, plugin: Plugin) -> Endpoint:
        if VERSION not in plugin.versions:
            shown = " ".join(plugin.versions[:SHOWN_VERSIONS])
            raise PluginRefused(
                f"manager version, {VERSION}, is not among plugin supported versions [{shown}]"
            )
        if not is_extended(plugin.name):
            raise PluginRefused(
                f'invalid name of device plugin socket: the ResourceName "{plugin.name}" is invalid'
            )
        try:
            async with self._turns.share(plugin.name):
                return await self._plugins.connect(plugin.name, plugin.endpoint)
        except (DevicePluginError, ValueError) as error:
            raise PluginRefused(str(error)) from error

    def _count(self, name: str) -> None:
        """Tell of a call to register. Names that never were a resource's are no resource."""
        self.on_request.call(name if name in self._plugins else "")

    def _remove_sockets(self) -> None:
        """Remove the sockets in the folder; the checkpoint and whatever else is there stays."""
        for path in self._folder.iterdir():
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink(missing_ok=True)


def _is_inside(endpoint: str) -> bool:
    """True if a plugin's socket is in the folder of the agent's."""
    path = PurePosixPath(endpoint)
    return bool(endpoint) and not path.is_absolute() and ".." not in path.parts
