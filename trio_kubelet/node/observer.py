"""Looks at the node: addresses, runtime, images, pressure, what keeps it from being ready.

Each look takes what is known and asks for what has aged: the list of images every half minute, the
runtime's version after each of its returns. What cannot be had in a moment is taken as it was: a
slow name server or a busy runtime must not hold up a status.
"""

from collections.abc import Callable
from functools import partial

import structlog
import trio
from attrs import define, field

from trio_kubelet.k8s import ContainerImage
from trio_kubelet.node.addresses import AddressError, HostNetwork, choose_addresses
from trio_kubelet.node.observation import (
    Observation,
    Pressures,
    container_images,
    runtime_words,
)
from trio_kubelet.node.profile import NodeProfile
from trio_kubelet.node.readiness import Readiness
from trio_kubelet.rpc import RpcError
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.gate import RuntimeGate, RuntimeState
from trio_kubelet.threads import run_in_thread

log = structlog.get_logger("node")

IMAGES_SECONDS = 30.0
ADDRESSES_SECONDS = 2.0
"""How long an observation waits for addresses. The next one asks a hanging name server again."""

RUNTIME_SECONDS = 2.0
"""How long an observation waits for version and images."""


@define(kw_only=True, eq=False)
class NodeObserver:
    """Makes observations. One user at a time.

    `pressures()` is what was measured. `network` is what addresses are asked of.
    """

    _profile: NodeProfile
    _client: RuntimeClient
    _gate: RuntimeGate
    _readiness: Readiness
    _pressures: Callable[[], Pressures | None]
    _network: HostNetwork = field(factory=HostNetwork)
    _threads: trio.CapacityLimiter = field(init=False, factory=lambda: trio.CapacityLimiter(1))
    _addresses: tuple[str, ...] | None = field(init=False, default=None)
    _address_error: str = field(init=False, default="")
    _version: str = field(init=False, default="")
    _version_known: bool = field(init=False, default=False)
    _images: tuple[ContainerImage, ...] = field(init=False, default=())
    _images_due_at: float = field(init=False, default=-1.0)

    def __attrs_post_init__(self) -> None:
        self._gate.on_change.add(self._on_runtime_state)

    async def observe(self) -> Observation:
        """Look once. Takes a few seconds at most; when cancelled, nothing is lost."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_for_addresses)
            if self._gate.state.up:
                nursery.start_soon(self._ask_runtime)
        return Observation(
            addresses=self._addresses,
            runtime=self._version,
            runtime_features=self._gate.state.runtime_features,
            images=self._images,
            pressures=self._pressures(),
            errors=self._readiness.errors(),
            is_early=self._readiness.is_early(),
        )

    async def _look_for_addresses(self) -> None:
        if self._threads.available_tokens == 0:
            return  # the last observation still waits for its name server
        choose = partial(
            choose_addresses, self._profile.name, self._profile.node_ips, self._network
        )
        error = ""
        with trio.move_on_after(ADDRESSES_SECONDS) as scope:
            try:
                self._addresses = await run_in_thread(
                    choose, limiter=self._threads, abandon_on_cancel=True
                )
            except AddressError as raised:
                error = str(raised)
        if scope.cancelled_caught:
            error = f"the addresses of {self._profile.name} take long to be looked up"
        if error and error != self._address_error:
            log.warning("node address lookup failed", error=error)
        self._address_error = error

    async def _ask_runtime(self) -> None:
        with trio.move_on_after(RUNTIME_SECONDS):
            try:
                await self._ask_version()
                await self._ask_images()
            except RpcError as error:
                log.debug("runtime request failed", error=str(error))

    async def _ask_version(self) -> None:
        if self._version_known:
            return
        self._version = runtime_words(await self._client.version())
        self._version_known = True

    async def _ask_images(self) -> None:
        if trio.current_time() < self._images_due_at:
            return
        images = await self._client.list_images()
        self._images = container_images(images, self._profile.max_images)
        self._images_due_at = trio.current_time() + IMAGES_SECONDS

    def _on_runtime_state(self, before: RuntimeState, after: RuntimeState) -> None:
        if after.up and not before.up:
            self._version_known = False
