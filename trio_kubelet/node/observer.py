"""Looks at the node: addresses, runtime, images, pressure, what keeps it from being ready.

Each look takes what is known and asks for what has aged: the list of images every half minute, the
runtime's version after each of its returns. What cannot be had in a moment is taken as it was: a
slow name server or a busy runtime must not hold up a status. The result is a `NodeObservation`,
the moving part of the node's status, which `status.py` judges.

A runtime that is restarted is away for seconds; the node stays ready meanwhile, as with the Go
kubelet, which calls it down after half a minute. What a runtime says of itself counts at once.
"""

from collections.abc import Callable, Iterable
from functools import partial

import structlog
import trio
from attrs import define, field, frozen

from trio_kubelet.eviction import Pressures
from trio_kubelet.k8s import ContainerImage
from trio_kubelet.node.profile import AddressError, HostNetwork, NodeProfile, choose_addresses
from trio_kubelet.rpc import RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.handlers import RuntimeFeatures
from trio_kubelet.runtime.health import RuntimeHealth, RuntimeState
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.threads import run_in_thread

log = structlog.get_logger("node")

MAX_NAMES_OF_AN_IMAGE = 5
_LARGEST_SIZE_BYTES = 2**63 - 1
"""The runtime's number has no sign, the API's has one: it would refuse the whole status."""


@frozen(kw_only=True)
class Observation:
    """One look at the node.

    `addresses` are the internal ones; None when they cannot be told, and those that are announced
    stay. `runtime` is name and version, `containerd://2.1.4`, empty while unknown. `errors` are
    the reasons why the node is not ready, none if it is; `is_early`: they may be no more than
    what an agent that has just started does not know yet. `pressures` is None before the node was
    measured for the first time.
    """

    addresses: tuple[str, ...] | None = None
    runtime: str = ""
    runtime_features: RuntimeFeatures = field(factory=RuntimeFeatures)
    images: tuple[ContainerImage, ...] = ()
    pressures: Pressures | None = None
    errors: tuple[str, ...] = ()
    is_early: bool = False


def runtime_words(version: cri.VersionResponse) -> str:
    """Name and version of a runtime as `nodeInfo.containerRuntimeVersion` has them."""
    return f"{version.runtime_name}://{version.runtime_version.removeprefix('v')}"


def container_images(images: Iterable[cri.Image], most: int) -> tuple[ContainerImage, ...]:
    """The `most` largest images (-1: all), each with up to five names, digests first."""
    by_size = sorted(images, key=lambda image: image.size, reverse=True)
    shown = by_size if most < 0 else by_size[:most]
    return tuple(
        ContainerImage(
            names=(*image.repo_digests, *image.repo_tags)[:MAX_NAMES_OF_AN_IMAGE],
            size_bytes=min(image.size, _LARGEST_SIZE_BYTES),
        )
        for image in shown
    )


SILENCE_SECONDS = 30.0
"""A runtime that has not answered for so long is down."""

START_SECONDS = 10.0
"""A start takes less, if the runtime is there."""

Errors = Callable[[], Iterable[str]]


def runtime_errors(last: RuntimeState | None, silent_seconds: float) -> tuple[str, ...]:
    """The problems that keep the node from being ready.

    `last` is what the runtime answered last, None if it never did; `silent_seconds` is for how
    long it has not answered since.
    """
    if last is None:
        return (
            "container runtime status check may not have completed yet",
            "network state unknown",
        )
    errors = []
    if silent_seconds >= SILENCE_SECONDS:
        errors.append("container runtime is down")
    if not last.up:
        errors.append(f"container runtime not ready: {last.reason}")
    if last.network_error:
        errors.append(last.network_error)
    return tuple(errors)


def relist_errors(seconds_since: float, threshold_seconds: float) -> tuple[str, ...]:
    """The age of the last relist: infinite before the first one."""
    if seconds_since < threshold_seconds:
        return ()
    if seconds_since == float("inf"):
        return ("PLEG is not healthy: pleg has yet to be successful",)
    return (
        f"PLEG is not healthy: pleg was last seen active {seconds_since:.0f}s ago; "
        f"threshold is {threshold_seconds:.0f}s",
    )


class Readiness:
    """Collects why the node is not ready. `others` are asked as well: relist, storage, shutdown.

    `has_listed` says whether the runtime's containers are known by now.
    """

    def __init__(
        self,
        runtime_health: RuntimeHealth,
        others: Iterable[Errors] = (),
        *,
        has_listed: Callable[[], bool] = lambda: True,
    ) -> None:
        self._others = tuple(others)
        self._has_listed = has_listed
        self._began_at = trio.current_time()
        self._last: RuntimeState | None = None
        self._silent_since: float | None = None
        self.on_change: Callbacks[[]] = Callbacks()
        self._take(runtime_health.state)
        runtime_health.on_change.add(lambda _, state: self._on_state(state))

    def errors(self) -> tuple[str, ...]:
        """Why the node is not ready now, in the order in which the condition lists it."""
        silent = 0.0
        if self._silent_since is not None:
            silent = trio.current_time() - self._silent_since
        found = runtime_errors(self._last, silent)
        return (*found, *(error for ask in self._others for error in ask()))

    def is_early(self) -> bool:
        """True if errors may be there only because the agent has just begun to look."""
        knows = self._last is not None and self._has_listed()
        return not knows and trio.current_time() - self._began_at < START_SECONDS

    def _on_state(self, state: RuntimeState) -> None:
        self._take(state)
        self.on_change.call()

    def _take(self, state: RuntimeState) -> None:
        if state.up or state.answered:
            self._last, self._silent_since = state, None
        elif state.answered is False and self._silent_since is None:
            self._silent_since = trio.current_time()


IMAGES_SECONDS = 30.0
ADDRESSES_SECONDS = 2.0
"""The wait for addresses in an observation. The next one asks a hanging name server again."""

RUNTIME_SECONDS = 2.0
"""The time that an observation waits for version and images."""


@define(kw_only=True, eq=False)
class NodeObserver:
    """Makes observations. One user at a time.

    `pressures()` is what was measured. `network` is what addresses are asked of.
    """

    _profile: NodeProfile
    _client: RuntimeClient
    _runtime_health: RuntimeHealth
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
        self._runtime_health.on_change.add(self._on_runtime_state)

    async def observe(self) -> Observation:
        """Look once. Takes a few seconds at most; when cancelled, nothing is lost."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_for_addresses)
            if self._runtime_health.state.up:
                nursery.start_soon(self._ask_runtime)
        return Observation(
            addresses=self._addresses,
            runtime=self._version,
            runtime_features=self._runtime_health.state.runtime_features,
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
        most = self._profile.configuration.node_status_max_images
        self._images = container_images(images, most)
        self._images_due_at = trio.current_time() + IMAGES_SECONDS

    def _on_runtime_state(self, before: RuntimeState, after: RuntimeState) -> None:
        if after.up and not before.up:
            self._version_known = False
