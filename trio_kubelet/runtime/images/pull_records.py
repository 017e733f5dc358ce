"""Keeps the records of who pulled which image, and answers who may use it (KEP-2535).

Before a pull there is an intent on the disk, after it a record; then the intent goes. So an image
that came while the agent was killed counts as pulled by nobody known, and not as one that was on
the node from the beginning. The same holds for a pull whose outcome is unknown: its intent stays
until the runtime has said what became of it, and protects the image by whatever name it is asked
for.

What is in memory is what is on the disk, as nobody else writes there while the agent runs.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog
import trio
from attrs import define, frozen

from trio_kubelet.config.records import (
    ImagePullCredentials,
    ImagePulledRecord,
    ImagePullIntent,
    ImagePullSecret,
    ImagePullServiceAccount,
)
from trio_kubelet.k8s import Time
from trio_kubelet.k8s.image_reference import name_alone, with_default_tag
from trio_kubelet.rpc import RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.health import RuntimeHealth
from trio_kubelet.runtime.images.access import (
    AccessCheck,
    Verification,
    access,
    may_have_brought,
    with_access,
)
from trio_kubelet.runtime.images.pull_record_files import file_name, intents, pulled_records
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.threads import run_in_thread

log = structlog.get_logger("images")

PERIOD_SECONDS = 300.0
"""As often the Go kubelet looks which images are there."""

GIVE_UP_SECONDS = 600.0
"""After a pull has ended unseen: so long the runtime may still be about to bring its image."""


@frozen
class ShownCredentials:
    """The proofs that a pod has for an image; waited for, and so asked for only if they count.

    `secrets` are the pod's own, with the hashes of their credentials; `service_accounts` those of
    some recorded ones that credential providers give it credentials for.
    """

    secrets: Callable[[], Awaitable[Sequence[ImagePullSecret]]]
    service_accounts: Callable[
        [Sequence[ImagePullServiceAccount]], Awaitable[Sequence[ImagePullServiceAccount]]
    ]


Source = ImagePullSecret | ImagePullServiceAccount
"""The origin of credentials that an image was pulled with, where that is not the node."""


class RuntimeImages(Protocol):
    """The questions to the runtime, with RpcError where it does not answer."""

    async def image_status(self, image: cri.ImageSpec) -> cri.Image | None:
        """One image by its name; None when it is not there."""
        ...

    async def list_images(self) -> Sequence[cri.Image]:
        """All images."""
        ...


class ImageAccess:
    """The records of pulls, and answers about an image.

    This one is for a node without the gate KubeletEnsureSecretPulledImages: whoever names an image
    may use it, and nothing is recorded.
    """

    is_verified = False
    """True if there are rules at all."""

    async def load(self) -> None:
        """Read what an earlier agent has recorded. Raises OSError."""

    async def tend(self, runtime: RuntimeImages, runtime_health: RuntimeHealth) -> None:
        """Tidy the records, for ever where there are any."""

    async def tidy(self, runtime: RuntimeImages) -> None:
        """Tidy them once, because images have been removed."""

    async def check(
        self, image: str, found: cri.Image, shown: ShownCredentials
    ) -> AccessCheck | None:
        """True if a pod may use an image that is there; `image` is its container's name for it.

        None: it may, as there are no rules.
        """
        del image, found, shown
        return None

    async def begin(self, image: str) -> None:
        """A pull is about to be asked for. Raises OSError, and then it must not be."""

    async def succeed(self, image: str, image_ref: str, used: Source | None) -> None:
        """Record that it worked, with credentials of the pod, or of the node if `used` is None."""

    async def fail(self, image: str) -> None:
        """Record that it failed, and did not bring the image."""

    def leave_open(self, image: str) -> None:
        """Record that it may have brought the image: nobody knows whether, or under which id."""


@define
class _Intent:
    """An intent that is on the disk.

    `pulls` are under way. `open_since`, in seconds of trio's clock: when the last of those ended
    of which nobody knows how; None if there is none.
    """

    pulls: int = 0
    open_since: float | None = None


class PullRecords(ImageAccess):
    """The rules of KEP-2535, with files below `root` (`--root-dir`), in threads of its own."""

    is_verified = True

    def __init__(self, root: Path, verification: Verification, clock: Clock) -> None:
        self._verification = verification
        self._clock = clock
        self._intent_folder = intents(root)
        self._record_folder = pulled_records(root)
        self._intents: dict[str, _Intent] = {}
        self._records: dict[str, ImagePulledRecord] = {}
        self._unreadable_intents: set[str] = set()
        self._unreadable_records: set[str] = set()
        self._opened = trio.Event()
        self._turn = trio.Lock()
        self._threads = trio.CapacityLimiter(1)

    async def load(self) -> None:
        """Make the folders and read what an agent or a Go kubelet has left. Raises OSError."""
        for folder in (self._intent_folder, self._record_folder):
            await self._in_thread(folder.make)
        found = await run_in_thread(self._intent_folder.read, limiter=self._threads)
        now = trio.current_time()
        self._intents = {intent.image: _Intent(open_since=now) for intent in found.values}
        self._unreadable_intents = set(found.unreadable)
        records = await run_in_thread(self._record_folder.read, limiter=self._threads)
        self._records = {record.image_ref: record for record in records.values}
        self._unreadable_records = set(records.unreadable)

    async def check(self, image: str, found: cri.Image, shown: ShownCredentials) -> AccessCheck:
        """A secret that was recognized is recorded."""
        if not self._verification.is_needed(image, pulled_here=self._pulled_here(image, found)):
            return AccessCheck.POLICY_ALLOWED
        record = self._records.get(found.id, ImagePulledRecord())
        known = record.credential_mapping.get(name_alone(image), ImagePullCredentials())
        own = await shown.secrets() if known.kubernetes_secrets else ()
        result = access(known, own)
        if result.proof is not None:
            await self._note(image, found.id, _credentials(result.proof))
        is_allowed = result.is_allowed
        if not is_allowed and (recorded := known.kubernetes_service_accounts):
            accounts = await shown.service_accounts(recorded)
            is_allowed = not set(recorded).isdisjoint(accounts)
        return AccessCheck.RECORD_FOUND if is_allowed else AccessCheck.MUST_AUTHENTICATE

    def _pulled_here(self, image: str, found: cri.Image) -> bool:
        names = (image, *found.repo_tags, *found.repo_digests)
        return (
            found.id in self._records
            or file_name(found.id) in self._unreadable_records
            or not self._unreadable_intents.isdisjoint(map(file_name, names))
            or may_have_brought(self._intents, names)
        )

    async def begin(self, image: str) -> None:
        async with self._turn:
            if image not in self._intents:
                await self._in_thread(self._intent_folder.write, ImagePullIntent(image=image))
                self._unreadable_intents.discard(file_name(image))
            self._intents.setdefault(image, _Intent()).pulls += 1

    async def succeed(self, image: str, image_ref: str, used: Source | None) -> None:
        """If the record cannot be written, the intent stays in its place."""
        is_noted = await self._note(image, image_ref, _credentials(used))
        self._intents[image].open_since = None if is_noted else trio.current_time()
        await self.fail(image)

    async def fail(self, image: str) -> None:
        self._intents[image].pulls -= 1
        async with self._turn:
            await self._drop(image)

    def leave_open(self, image: str) -> None:
        intent = self._intents[image]
        intent.pulls -= 1
        intent.open_since = trio.current_time()
        self._opened.set()

    async def tend(self, runtime: RuntimeImages, runtime_health: RuntimeHealth) -> None:
        """Tidy at once, every five minutes, and when a pull was left open, for ever."""
        while True:
            await runtime_health.wait_up()
            self._opened = trio.Event()
            try:
                await self.tidy(runtime)
            except RpcError as error:
                log.warning("image pull record cleanup failed", error=str(error))
            except Exception:
                log.exception("image pull record cleanup failed, will retry")
            with trio.move_on_after(PERIOD_SECONDS):
                await self._opened.wait()

    async def tidy(self, runtime: RuntimeImages) -> None:
        """Settle what became of open pulls, and remove records of images that are gone.

        Raises RpcError if the runtime does not say what it has.
        """
        for image, intent in list(self._intents.items()):
            if (since := intent.open_since) is None:
                continue
            spec = cri.ImageSpec(image=with_default_tag(image), user_specified_image=image)
            await self._settle(image, since, await runtime.image_status(spec))
        if not (self._records or self._unreadable_records):
            return
        before = Time(self._clock.now_ns())
        images = await runtime.list_images()
        await self._prune(frozenset(image.id for image in images), before)

    async def _settle(self, image: str, since: float, found: cri.Image | None) -> None:
        """An image that came is recorded without credentials; one that came not, is given up.

        Not at once: the runtime may still be about to end a pull that was given up. What was
        left open after `since` is for the next round, as `found` may be older.
        """
        intent = self._intents.get(image)
        if intent is None or intent.open_since != since:
            return
        is_settled = (
            await self._note(image, found.id, None)
            if found is not None
            else trio.current_time() - since >= GIVE_UP_SECONDS
        )
        if not is_settled or intent.open_since != since:
            return
        intent.open_since = None
        async with self._turn:
            await self._drop(image)

    async def _prune(self, present: frozenset[str], before: Time) -> None:
        """Remove the records of images that are not there; newer ones than the list stay."""
        async with self._turn:
            gone = [
                record.image_ref
                for record in self._records.values()
                if record.image_ref not in present and _updated(record) < before
            ]
            for image_ref in gone:
                if await self._remove(self._record_folder.remove, file_name(image_ref)):
                    del self._records[image_ref]
            for name in self._unreadable_records - {file_name(image_id) for image_id in present}:
                if await self._remove(self._record_folder.remove, name):
                    self._unreadable_records.discard(name)

    async def _note(
        self, image: str, image_ref: str, credentials: ImagePullCredentials | None
    ) -> bool:
        """Write the record if it says more than before; returns whether it is on the disk."""
        async with self._turn:
            now = Time(self._clock.now_ns())
            new = ImagePulledRecord(image_ref=image_ref, last_updated_time=str(now))
            known = self._records.get(image_ref)
            record = with_access(known or new, image, credentials, now)
            if record == known:
                return True
            try:
                await self._in_thread(self._record_folder.write, record)
            except OSError as error:
                log.warning("image pull record write failed", image=image, error=str(error))
                return False
            self._records[image_ref] = record
            self._unreadable_records.discard(file_name(image_ref))
            return True

    async def _drop(self, image: str) -> None:
        """Remove an intent that no pull needs any more. The caller has the turn."""
        intent = self._intents.get(image)
        if intent is None or intent.pulls > 0 or intent.open_since is not None:
            return
        if await self._remove(self._intent_folder.remove, file_name(image)):
            del self._intents[image]
        else:
            intent.open_since = trio.current_time()

    async def _remove(self, remove: Callable[[str], None], name: str) -> bool:
        try:
            await self._in_thread(remove, name)
        except OSError as error:
            log.warning("image pull record removal failed, will retry", file=name, error=str(error))
            return False
        return True

    async def _in_thread(self, work: Callable[..., None], *arguments: object) -> None:
        await run_in_thread(partial(work, *arguments), limiter=self._threads)


def _credentials(used: Source | None) -> ImagePullCredentials:
    if used is None:
        return ImagePullCredentials(node_pods_accessible=True)
    if isinstance(used, ImagePullServiceAccount):
        return ImagePullCredentials(kubernetes_service_accounts=(used,))
    return ImagePullCredentials(kubernetes_secrets=(used,))


def _updated(record: ImagePulledRecord) -> Time:
    return Time.parse(record.last_updated_time) if record.last_updated_time else Time(0)
