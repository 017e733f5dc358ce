"""Registration of plugins: who is behind each socket of `plugins_registry`.

Each socket has a task. It asks for name, type, versions and endpoint, enters the handler of that
type, tells the plugin that it is registered, and stays inside the handler until the socket has
gone: leaving the handler is the deregistration. What goes wrong before is told to the plugin and
tried again with a delay that grows. Nothing that a plugin says or does not say concerns another
one: every call has a deadline, and answers have a limit.

The rules follow the Go kubelet's plugin manager; versions v1 and v1beta1 of the contract are one on
the wire.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import structlog
import trio
from attrs import frozen

from state_machines.backoff import BackoffPolicy
from trio_kubelet.plugins.sockets import PluginSocket, SocketWatch
from trio_kubelet.rpc import Channel, RpcError
from trio_kubelet.rpc.channel import socket_path
from trio_kubelet.rpc.stubs import pluginregistration as wire
from trio_kubelet.tasks.retries import Retries
from trio_kubelet.tasks.threads import run_in_thread

log = structlog.get_logger("plugins")

CALL_SECONDS = 5.0
MAX_ANSWER_BYTES = 4 * 2**20
"""The largest message that gRPC for Go takes."""
MAX_TEXT = 253
"""Characters of a name or an endpoint, which go into messages and objects of the API."""
MAX_VERSIONS = 1024
"""Each is compared with those of this node."""
RETRY = BackoffPolicy(initial_seconds=0.5, cap_seconds=122.0)
LOOK_SECONDS = 60.0
"""The folder is looked at so often though no change of it was heard."""
PAUSE_SECONDS = 0.1
"""Between two looks: who makes a socket anew again and again is asked, and told of, ten times a
second."""


@frozen(kw_only=True)
class Plugin:
    """A plugin as it introduced itself.

    `socket` is where it registers, `endpoint` the path of the socket that it serves its type on.
    """

    type: str
    name: str
    endpoint: str
    versions: tuple[str, ...]
    socket: Path


class PluginRefused(Exception):  # noqa: N818 - the state that the plugin is in
    """A plugin is not registered; the text is told to it."""


PluginHandler = Callable[[Plugin], AbstractAsyncContextManager[None]]
"""Takes plugins of one type: entering registers one, and raises PluginRefused or RpcError; leaving
deregisters it, and must not wait."""


class PluginRegistry:
    """Follows the sockets of a folder; `handlers` are by the type that plugins name."""

    def __init__(self, folder: Path, handlers: Mapping[str, PluginHandler]) -> None:
        self._folder = folder
        self._handlers = handlers
        self._tasks: dict[Path, _SocketTask] = {}
        self._limiter = trio.CapacityLimiter(1)

    async def run(self) -> None:
        """Keep the plugins of all sockets registered; cancelled, all are deregistered."""
        with SocketWatch(self._folder) as watch:
            async with trio.open_nursery() as nursery:
                while True:
                    self._follow(await run_in_thread(watch.look, limiter=self._limiter), nursery)
                    with trio.move_on_after(LOOK_SECONDS):
                        await watch.changed()
                    await trio.sleep(PAUSE_SECONDS)

    def _follow(self, found: tuple[PluginSocket, ...], nursery: trio.Nursery) -> None:
        sockets = {each.path: each for each in found}
        for path, task in self._tasks.items():
            if sockets.get(path) != task.socket:
                task.scope.cancel()
        for path, socket in sockets.items():
            earlier = self._tasks.get(path)
            if earlier is None or earlier.socket != socket:
                task = self._tasks[path] = _SocketTask(socket, trio.CancelScope(), trio.Event())
                nursery.start_soon(self._run_task, task, earlier, name=f"plugin {path.name}")

    async def _run_task(self, task: "_SocketTask", earlier: "_SocketTask | None") -> None:
        try:
            if earlier is not None:
                await earlier.ended.wait()
            with task.scope:
                await self._keep_registered(task.socket)
        except* Exception:
            # A task of a handler failed as it was cancelled: an error in a group with Cancelled.
            log.exception("plugin deregistration failed", socket=str(task.socket.path))
        finally:
            task.ended.set()
            if self._tasks.get(task.socket.path) is task:
                del self._tasks[task.socket.path]

    async def _keep_registered(self, socket: PluginSocket) -> None:
        retries = Retries(RETRY)
        while True:
            try:
                await self._register(socket, retries)
            except (RpcError, PluginRefused, ValueError) as error:
                retries.warn(
                    log, "plugin registration failed", socket=str(socket.path), error=str(error)
                )
            except Exception:
                log.exception("plugin registration failed", socket=str(socket.path))
            await retries.wait()

    async def _register(self, socket: PluginSocket, retries: Retries) -> None:
        """Register the plugin and stay until cancelled. Raises what stands in the way."""
        channel = Channel(str(socket.path), max_answer_bytes=MAX_ANSWER_BYTES)
        try:
            info = await channel.unary(
                wire.RegistrationStub.get_info, wire.InfoRequest(), deadline_seconds=CALL_SECONDS
            )
            try:
                plugin = introduced_plugin(info, socket.path)
                async with self._handler(plugin)(plugin):
                    log.info("plugin registered", type=plugin.type, name=plugin.name)
                    retries.reset()
                    await self._notify(channel, "")
                    channel.close()
                    try:
                        await trio.sleep_forever()
                    finally:
                        log.info("plugin deregistered", type=plugin.type, name=plugin.name)
            except (RpcError, PluginRefused) as error:
                await self._notify(channel, f"RegisterPlugin error -- {error}")
                raise
        finally:
            channel.close()

    def _handler(self, plugin: Plugin) -> PluginHandler:
        handler = self._handlers.get(plugin.type)
        if handler is None:
            raise PluginRefused(
                f"no handler registered for plugin type: {plugin.type} at socket {plugin.socket}"
            )
        return handler

    async def _notify(self, channel: Channel, error: str) -> None:
        """Tell the plugin what came of its registration; one that does not listen is no problem."""
        status = wire.RegistrationStatus(plugin_registered=not error, error=error)
        try:
            await channel.unary(
                wire.RegistrationStub.notify_registration_status,
                status,
                deadline_seconds=CALL_SECONDS,
            )
        except RpcError as problem:
            log.warning("plugin was not told of its registration", error=str(problem))


@frozen
class _SocketTask:
    socket: PluginSocket
    scope: trio.CancelScope
    ended: trio.Event


def introduced_plugin(info: wire.PluginInfo, socket: Path) -> Plugin:
    """Return the plugin that an answer to GetInfo tells of. Raises PluginRefused."""
    for what, text in (("type", info.type), ("name", info.name), ("endpoint", info.endpoint)):
        if len(text) > MAX_TEXT:
            shown = f"{text[:MAX_TEXT]}…"
            raise PluginRefused(f"the {what} {shown!r} has more than {MAX_TEXT} characters")
    if len(info.supported_versions) > MAX_VERSIONS:
        raise PluginRefused(f"the plugin has more than {MAX_VERSIONS} versions")
    if not info.name:
        raise PluginRefused("the plugin has no name; PluginInfo.name must not be empty")
    try:
        endpoint = socket_path(info.endpoint) if info.endpoint else str(socket)
    except ValueError as error:
        raise PluginRefused(str(error)) from error
    return Plugin(
        type=info.type,
        name=info.name,
        endpoint=endpoint,
        versions=tuple(info.supported_versions),
        socket=socket,
    )
