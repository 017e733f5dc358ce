"""Garbage collection of images: every five minutes, and sooner when their disk fills up.

A round looks which images are in use, removes those that nobody has used for too long, and makes
room on a disk that is over the high threshold. Between two removals the disk is measured: images
share layers, so their sizes do not add up to what is freed. Whether an image may go is asked again
right before it goes, because pods come meanwhile. Who needs room at once calls
`delete_unused_images`.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path

import structlog
import trio
from attrs import define, field, frozen

from trio_kubelet.errors import CollectionError, aggregated
from trio_kubelet.k8s import Duration, Pod
from trio_kubelet.k8s.image_reference import full_image_name
from trio_kubelet.rpc import RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.health import RuntimeHealth
from trio_kubelet.runtime.images.collection import (
    DiskSpace,
    ImageCollectionPolicy,
    ImageKey,
    ImageUse,
    PresentImage,
    images_of_containers,
    images_of_pods,
    is_old_enough,
    is_too_old,
    present_images,
    unused_images,
    with_uses,
)
from trio_kubelet.runtime.images.filesystem import DiskHangsError, ImageDisk
from trio_kubelet.runtime.images.use_records import read_uses, write_uses
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.threads import run_in_thread
from trio_kubelet.telemetry import EventRecorder, EventType, Journal

log = structlog.get_logger("images")

PERIOD_SECONDS = 300.0
LOOK_SECONDS = 30.0
"""As often the disk is looked at between two rounds: it may fill up in less than a period."""

FOR_SPACE, FOR_AGE = "space", "age"

FAILED, NO_ROOM, NO_SIZE = "ImageGCFailed", "FreeDiskSpaceFailed", "InvalidDiskCapacity"


@frozen(kw_only=True)
class ImageUsage:
    """An image of the node, when it was used, and whether it is in use now."""

    image: PresentImage
    use: ImageUse
    in_use: bool


@define(kw_only=True, eq=False)
class ImageCollector:
    """Owner of what is known of the images' uses.

    `pods` gives the pods here that hold resources or wait to; `sources_known` is set when all
    sources have told theirs, for which the first round waits a period at most. `disk` is None for
    a runtime that keeps no images on a disk of this machine. `on_removed` is awaited when images
    were removed, and may raise RpcError. Records of uses are below `root`.
    """

    _client: RuntimeClient
    _runtime_health: RuntimeHealth
    _policy: ImageCollectionPolicy
    _disk: ImageDisk | None
    _pods: Callable[[], Iterable[Pod]]
    _sources_known: trio.Event
    _on_removed: Callable[[], Awaitable[None]]
    _root: Path
    _clock: Clock
    _journal: Journal
    _recorder: EventRecorder
    _images: tuple[PresentImage, ...] = field(init=False, default=())
    _used: frozenset[str] = field(init=False, default=frozenset())
    """The names of the images of containers and of the sandboxes, at the last look."""
    _uses: Mapping[ImageKey, ImageUse] | None = field(init=False, default=None)
    _turn: trio.Lock = field(init=False, factory=trio.Lock)
    _has_waited: trio.Event = field(init=False, factory=trio.Event)
    """Set when it is known which pods there are to be, or `run` waits for that no longer."""
    on_collected: Callbacks[[str]] = field(init=False, factory=Callbacks)
    """Called for each image that was removed, with `FOR_SPACE` or `FOR_AGE`."""
    _has_removed: bool = field(init=False, default=False)
    _failed_before: bool = field(init=False, default=False)

    async def run(self) -> None:
        """Collect for ever. A round that fails is logged, and told of if the last one failed."""
        with trio.move_on_after(PERIOD_SECONDS):
            await self._sources_known.wait()
        self._has_waited.set()
        while True:
            await self._runtime_health.wait_up()
            try:
                await self._collect()
            except CollectionError as error:
                self._tell_failure(str(error))
            except Exception as error:
                log.exception("image garbage collection failed")
                self._tell_failure(str(error) or type(error).__name__)
            else:
                self._failed_before = False
            await self._wait_until_due()

    def use(self, policy: ImageCollectionPolicy) -> None:
        """Collect by another policy from the next removal on."""
        self._policy = policy

    async def delete_unused_images(self) -> None:
        """Remove all images that nobody uses and that are not new, whatever room there is.

        After a start it waits, as the first round does, until the pods are known. Raises
        CollectionError; then what could be removed is gone. Cancelled, it leaves the rest.
        """
        if not self._sources_known.is_set():
            await self._has_waited.wait()
        async with self._turn:
            await self._look()
            errors = [
                problem
                for image in await self._unused(is_old_enough)
                if (problem := await self._remove(image, FOR_SPACE))
            ]
            await self._tell_removed()
        if errors:
            raise CollectionError(aggregated(errors))

    async def usage(self) -> Sequence[ImageUsage]:
        """All images as they are used now, the one first that was used least recently.

        Raises CollectionError if the runtime does not say what it has.
        """
        async with self._turn:
            await self._look()
            images, uses = self._images, self._uses or {}
            used = self._used | await self._names_of_pods()
        return [
            ImageUsage(image=each, use=uses[each.key], in_use=bool(each.names & used))
            for each in sorted(images, key=lambda each: (uses[each.key].last_used_ns, each.key))
        ]

    def _tell_failure(self, message: str) -> None:
        log.warning("image garbage collection incomplete", problem=message)
        if self._failed_before:
            self._recorder.node(EventType.WARNING, FAILED, message)
        self._failed_before = True

    async def _wait_until_due(self) -> None:
        """Wait for a period; if the last round has done its work, no longer than there is room."""
        with trio.move_on_after(PERIOD_SECONDS):
            while True:
                await trio.sleep(LOOK_SECONDS)
                if not self._failed_before and await self._is_disk_full():
                    return

    async def _is_disk_full(self) -> bool:
        if self._disk is None or self._policy.is_off:
            return False
        try:
            space = await self._disk.measure()
        except Exception:
            return False  # Whatever the runtime said of its disk: the next round says so.
        if space is None or not space.capacity_bytes:
            return False
        return self._policy.is_over_high(space)

    async def _collect(self) -> None:
        async with self._turn:
            await self._look()
            if self._policy.is_off:
                return
            problems = [
                problem
                for problem in (await self._remove_old(), await self._make_room())
                if problem
            ]
            await self._tell_removed()
        if problems:
            raise CollectionError(aggregated(problems))

    async def _remove_old(self) -> str:
        """Remove what was not used for too long; returns what went wrong."""
        errors = [
            problem
            for image in await self._unused(is_too_old)
            if (problem := await self._remove(image, FOR_AGE))
        ]
        if not errors:
            return ""
        age = Duration.from_seconds(self._policy.maximum_age.total_seconds())
        return (
            f"wanted to free images older than {age}, encountered errors in image deletion: "
            f"{aggregated(errors)}"
        )

    async def _make_room(self) -> str:
        """Bring a disk that is over the high threshold under the low one; returns what failed."""
        if self._disk is None or (before := await self._measured(self._disk)) is None:
            return ""
        if not before.capacity_bytes:
            problem = "invalid capacity 0 on image filesystem"
            self._recorder.node(EventType.WARNING, NO_SIZE, problem)
            return problem
        if not self._policy.is_over_high(before):
            return ""
        wanted = self._policy.bytes_to_free(before)
        log.info("image disk is over the high threshold, removing images", bytes_to_free=wanted)
        errors: list[str] = []
        space = before
        for image in await self._unused(is_old_enough):
            if problem := await self._remove(image, FOR_SPACE):
                errors.append(problem)
                continue
            space = await self._measured(self._disk) or space
            if self._policy.bytes_to_free(space) <= 0:
                return ""
        freed = max(0, space.available_bytes - before.available_bytes)
        if errors:
            return (
                f"wanted to free {wanted} bytes, but freed {freed} bytes space with errors in "
                f"image deletion: {aggregated(errors)}"
            )
        problem = (
            "Failed to garbage collect required amount of images. Attempted to free "
            f"{wanted} bytes, but only found {freed} bytes eligible to free."
        )
        self._recorder.node(EventType.WARNING, NO_ROOM, problem)
        return problem

    async def _measured(self, disk: ImageDisk) -> DiskSpace | None:
        try:
            return await disk.measure()
        except (RpcError, DiskHangsError) as error:
            raise CollectionError(f"failed to get image stats: {error}") from error

    async def _look(self) -> None:
        """See which images there are and which of them are used, and remember that.

        Raises CollectionError if the runtime does not say what it has.
        """
        if self._uses is None:
            self._uses = await run_in_thread(read_uses, self._root)
        known = self._uses
        try:
            images = await self._client.list_images()
            # After the images: the container of an image that has just come is seen.
            containers = await self._client.list_containers()
            status = await self._client.status(verbose=True)
        except RpcError as error:
            raise CollectionError(str(error)) from error
        pods, now_ns = tuple(self._pods()), self._clock.now_ns()

        def look() -> None:
            # In a thread: each of thousands of names is taken apart.
            self._images = present_images(images)
            self._used = images_of_containers(containers) | sandbox_images(status.info)
            used = self._used | images_of_pods(pods)
            self._uses = with_uses(known, self._images, used, now_ns)

        await run_in_thread(look)
        if self._uses != known:
            await self._save()

    async def _tell_removed(self) -> None:
        if not self._has_removed:
            return
        self._has_removed = False
        try:
            await self._on_removed()
        except RpcError as error:
            log.warning("image pull record cleanup failed", error=str(error))

    async def _save(self) -> None:
        try:
            await run_in_thread(write_uses, self._root, self._uses or {})
        except OSError as error:
            log.warning("image use records write failed, will retry", error=str(error))

    async def _unused(
        self, may_go: Callable[[ImageUse, ImageCollectionPolicy, int], bool]
    ) -> Sequence[PresentImage]:
        """The unused images that may go, in the order in which they go."""
        now_ns, uses = self._clock.now_ns(), self._uses or {}
        used = self._used | await self._names_of_pods()
        return [
            image
            for image in unused_images(self._images, uses, used)
            if may_go(uses[image.key], self._policy, now_ns)
        ]

    async def _names_of_pods(self) -> frozenset[str]:
        return await run_in_thread(images_of_pods, tuple(self._pods()))

    async def _remove(self, image: PresentImage, reason: str) -> str:
        """Remove an image unless a pod has come that names it; returns what went wrong."""
        if image.names & await self._names_of_pods():
            return ""
        key = image.key
        log.info("removing unused image", image=image.shown_name, id=key.id, reason=reason)
        try:
            await self._client.remove_image(
                cri.ImageSpec(image=key.id, runtime_handler=key.runtime_handler)
            )
        except RpcError as error:
            log.warning("image removal failed", image=image.shown_name, error=str(error))
            return str(error)
        self._images = tuple(each for each in self._images if each.key != key)
        self._has_removed = True
        self._journal.note("images", image.shown_name, "ImageRemoved", reason, id=key.id)
        self.on_collected.call(reason)
        return ""


def sandbox_images(info: Mapping[str, str]) -> frozenset[str]:
    """The image of sandboxes by a runtime's own account; runtimes that pin it need not tell it.

    containerd before 2.0 tells it in its configuration, which is part of its verbose status.
    """
    try:
        name = json.loads(info.get("config", "{}"))["sandboxImage"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return frozenset()
    return frozenset({full_image_name(name)}) if isinstance(name, str) else frozenset()
