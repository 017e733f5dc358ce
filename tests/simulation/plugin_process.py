"""The process of a plugin on the simulated node, which comes late, goes, and comes back.

It serves its contracts on a real socket in `plugins_registry`, where the agent finds it.
"""

import random
from collections.abc import Sequence
from pathlib import Path

import trio
from attrs import field, frozen

from trio_kubelet.rpc import serve
from trio_kubelet.rpc.methods import Contract
from trio_kubelet.rpc.stubs import pluginregistration as registration

LONGEST_AWAY_SECONDS = 200.0


class PluginProcess:
    """One process at a time that serves a service object; its sockets begin with `name`."""

    def __init__(
        self,
        registry: Path,
        name: str,
        contracts: Sequence[Contract],
        chance: random.Random,
        nursery: trio.Nursery,
    ) -> None:
        self._registry = registry
        self._name = name
        self._contracts: Sequence[Contract] = (registration.RegistrationBase, *contracts)
        self._chance = chance
        self._nursery = nursery
        self._running: _Running | None = None
        self._made = 0

    @property
    def is_running(self) -> bool:
        """Whether there is a process."""
        return self._running is not None

    async def start_later(self, service: object) -> None:
        """Start the process, at once or some time later, on the same socket or another one."""
        await trio.sleep(self._chance.choice((0, 1, self._chance.uniform(0, LONGEST_AWAY_SECONDS))))
        if self._running is not None:
            return
        self._made += self._chance.choice((0, 1))
        if not self._registry.exists():
            self._registry.mkdir(parents=True)
        process = self._running = _Running(self._registry / f"{self._name}-{self._made}.sock")
        await self._nursery.start(self._serve, service, process)

    async def stop(self) -> None:
        """End the process, and wait for what it is still doing."""
        process = self._running
        if process is not None:
            self._running = None
            process.scope.cancel()
            await process.ended.wait()

    async def kill(self) -> None:
        """End the process, which leaves its socket behind."""
        process = self._running
        if process is None or not process.socket.exists():
            await self.stop()
            return
        kept = process.socket.with_name(f".{process.socket.name}")
        kept.hardlink_to(process.socket)
        await self.stop()
        kept.rename(process.socket)  # It is the same one, as far as anybody can tell.

    def lose_power(self) -> None:
        """End the process with the machine; `stop` waits for its end."""
        if self._running is not None:
            self._running.scope.cancel()
        for socket in self._registry.glob(f"{self._name}-*.sock"):
            socket.unlink()  # Those of killed processes, too: a boot finds no sockets.

    async def _serve(
        self,
        service: object,
        process: "_Running",
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        try:
            with process.scope:
                await serve(
                    [service], process.socket, contracts=self._contracts, task_status=task_status
                )
        finally:
            process.ended.set()


@frozen(eq=False)
class _Running:
    socket: Path
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    ended: trio.Event = field(factory=trio.Event)
