"""The static pods of one source: what runs, what is kept, what is reported, what was sent.

The sources of manifests hand over all that they see, each time they look; this resolves them,
brings the kept records up to date, reports, and calls back with the full set of pods when it has
changed.

What is wrong with a manifest is said once for each content, and not while it is being written: a
writer that truncates a file and fills it again shows a bad manifest for a moment. So a problem is
reported when it is still there after `SETTLE_SECONDS`, in one log line and one journal entry, and
again only when the content or the complaint changes.

The last good state of each manifest is on disk: one file an origin under `<root>/static-pods/`, as
JSON, with the documents as they were last accepted and the UIDs that their pods have. It outlives
the agent, so that a manifest that is bad at the next start does not stop its pod, and so that a
pod that was adopted keeps its UID. A record goes when its manifest goes. Manifests may hold
secrets in their environment: the folder is 0700.
"""

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog
import trio
from attrs import define, evolve, field, frozen

from trio_kubelet.foreign_text import without_passwords
from trio_kubelet.k8s import Pod
from trio_kubelet.kernel.whole_files import make_folder, write_all_whole
from trio_kubelet.pod_source import Source
from trio_kubelet.sources.manifests import (
    Adopt,
    Manifest,
    ManifestPod,
    ManifestReader,
    ResolvedManifests,
)
from trio_kubelet.sources.static_pods import InvalidManifest, is_pod_uid
from trio_kubelet.tasks.threads import run_in_thread
from trio_kubelet.telemetry import Journal

log = structlog.get_logger("sources")

_UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
    InvalidManifest,
)

Records = Mapping[str, tuple[ManifestPod, ...]]
"""Origin → the pods that run because of it, as last seen good."""


SETTLE_SECONDS = 0.5
_SHOWN_PROBLEMS = 10
SAID_AT_ONCE = 100
"""Manifests that are told of in one look: a folder may have thousands that are wrong."""
SAY_MORE_SECONDS = 0.1

Complaint = tuple[str, tuple[str, ...]]
"""Digest of the content, and what is wrong with it."""


@frozen
class KeptManifests:
    """The records of one source. Methods block: call them in a thread."""

    _folder: Path
    _reader: ManifestReader

    def load(self) -> Records:
        """Read all records; one that cannot be read is logged and left out."""
        records: dict[str, tuple[ManifestPod, ...]] = {}
        for path in sorted(self._folder.glob(f"{self._reader.source}-*.json")):
            try:
                origin, pods = self._read(path)
            except _UNREADABLE as error:
                log.warning("manifest copy is unreadable", file=str(path), problem=str(error))
            else:
                records[origin] = pods
        return records

    def _read(self, path: Path) -> tuple[str, tuple[ManifestPod, ...]]:
        record = json.loads(path.read_bytes())
        origin = record["origin"]
        if self._path(origin) != path:
            raise ValueError("the file has the name of another manifest's")
        pods = (
            evolve(self._reader.pod(origin, each["document"]), uid=_kept_uid(each["uid"]))
            for each in record["pods"]
        )
        return origin, tuple(pods)

    def save(self, before: Records, after: Records) -> None:
        """Bring the disk from one state to another.

        Raises OSError, and then nothing is kept of the manifests that have changed: from an old
        state an agent that is started next would run another pod.
        """
        for origin in before.keys() - after.keys():
            self._path(origin).unlink(missing_ok=True)
        changed = {
            origin: pods
            for origin, pods in after.items()
            if _essence(pods) != _essence(before.get(origin, ()))
        }
        for origin, pods in changed.items():
            if not pods:
                self._path(origin).unlink(missing_ok=True)
        try:
            self._write({origin: pods for origin, pods in changed.items() if pods})
        except OSError:
            with contextlib.suppress(OSError):
                for origin in changed:
                    self._path(origin).unlink(missing_ok=True)
            raise

    def _write(self, records: Records) -> None:
        if not records:
            return
        make_folder(self._folder, 0o700, durable=True)
        contents = {self._path(origin): _content(origin, pods) for origin, pods in records.items()}
        write_all_whole(contents, durable=True)

    def _path(self, origin: str) -> Path:
        digest = hashlib.sha256(os.fsencode(origin)).hexdigest()[:32]
        return self._folder / f"{self._reader.source}-{digest}.json"


def _content(origin: str, pods: tuple[ManifestPod, ...]) -> bytes:
    """One pod after another: the encoder keeps the interpreter's lock, whatever it encodes."""
    kept = ({"uid": each.uid, "document": each.document} for each in pods)
    items = ", ".join(json.dumps(each, default=str) for each in kept)
    return f'{{"origin": {json.dumps(origin)}, "pods": [{items}]}}'.encode()


def _kept_uid(uid: object) -> str:
    if not isinstance(uid, str) or not is_pod_uid(uid):
        raise ValueError(f"{uid!r} is no UID")
    return uid


def _essence(pods: tuple[ManifestPod, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((each.manifest_uid, each.uid) for each in pods)


@define(eq=False)
class ManifestReports:
    """The pods that were found and told; owned by the task of one source."""

    _journal: Journal
    _settle_seconds: float = SETTLE_SECONDS
    _found: dict[str, tuple[Complaint, float]] = field(init=False, factory=dict)
    _said: dict[str, Complaint] = field(init=False, factory=dict)

    def update(self, complaints: Mapping[str, Complaint], now: float) -> float:
        """Take all present complaints by origin; return when to look again, or infinity.

        `now` and the result are in seconds of trio's clock.
        """
        mended = sorted(self._said.keys() - complaints.keys())
        may_say = SAID_AT_ONCE
        for origin in mended[:may_say]:
            del self._said[origin]
            may_say -= 1
            shown = without_passwords(origin)
            log.info("manifest recovered or removed", file=shown)
            self._journal.note("manifest", shown, "Mended")
        found: dict[str, tuple[Complaint, float]] = {}
        look_again = now + SAY_MORE_SECONDS if len(mended) > SAID_AT_ONCE else math.inf
        for origin, complaint in complaints.items():
            before, since = self._found.get(origin, (None, now))
            since = since if before == complaint else now
            found[origin] = (complaint, since)
            if self._said.get(origin) == complaint:
                continue
            if now - since < self._settle_seconds:
                look_again = min(look_again, since + self._settle_seconds)
                continue
            if not may_say:
                look_again = min(look_again, now + SAY_MORE_SECONDS)
                continue
            may_say -= 1
            self._said[origin] = complaint
            self._say(origin, complaint[1])
        self._found = found
        return look_again

    def _say(self, origin: str, problems: tuple[str, ...]) -> None:
        text = "; ".join(problems[:_SHOWN_PROBLEMS])
        if len(problems) > _SHOWN_PROBLEMS:
            text += f"; and {len(problems) - _SHOWN_PROBLEMS} more"
        shown, text = without_passwords(origin), without_passwords(text)
        log.warning("manifest rejected", file=shown, problem=text)
        self._journal.note("manifest", shown, "Rejected", text)


T = TypeVar("T")

MOST_LOOKS = 8
"""Places that hang and were left behind may hold so many threads but for one."""

SendPods = Callable[[tuple[Pod, ...]], Awaitable[None]]
"""Takes the full set of a source's pods. The first call means: the source has spoken."""


@frozen(kw_only=True)
class ManifestContext:
    """The parts that a source of manifests works with.

    `kept_folder` holds its last good manifests, and is its own. `adopt` returns what tells of the
    pods that run when it is called. Manifests are decoded, compared and kept in threads of
    `limiter`: there may be thousands of pods in them. What looks at a place that may hang for ever,
    as a file system of the network or a name server does, runs in threads of `looks`: a live change
    of the setting leads to another place, and waits for none of the former.
    """

    node_name: str
    kept_folder: Path
    adopt: Callable[[], Adopt]
    journal: Journal
    limiter: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1))
    looks: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(MOST_LOOKS))

    def pods(
        self, source: Source, send: SendPods, *, settle_seconds: float = SETTLE_SECONDS
    ) -> "StaticPodSet":
        """The pods of the source, of which none is known yet."""
        reader = ManifestReader(source=source, node_name=self.node_name)
        kept = KeptManifests(self.kept_folder, reader)
        return StaticPodSet(self, reader, kept, send, ManifestReports(self.journal, settle_seconds))


@frozen(kw_only=True)
class _Resolution:
    """The pods of all manifests, and what is to be done with them."""

    resolved: ResolvedManifests
    is_new: bool
    """They are others than those that were sent."""
    is_unsaved: bool
    """They are others than those that are on the disk."""


@define(eq=False)
class StaticPodSet:
    """Owned by the task of one source."""

    _context: ManifestContext
    reader: ManifestReader
    _kept: KeptManifests
    _send: SendPods
    _reports: ManifestReports
    _records: Records = field(init=False, factory=dict)
    _saved: Records = field(init=False, factory=dict)
    _save_problem: str = field(init=False, default="")
    _sent: tuple[Pod, ...] | None = field(init=False, default=None)

    async def load(self) -> None:
        """Read what was kept and get ready to read more; once, before anything else."""
        await self.in_thread(self.reader.warm_up)
        self._records = self._saved = await self.in_thread(self._kept.load)

    async def take(self, manifests: Sequence[Manifest]) -> float:
        """Take these as all manifests there are; return when the reports need the next look.

        The time is trio's clock in seconds, or infinity.
        """
        resolution = await self._resolve(manifests)
        problems = resolution.resolved.problems
        digests = {manifest.origin: manifest.digest for manifest in manifests}
        complaints = {origin: (digests[origin], found) for origin, found in problems.items()}
        await self._go_on_with(resolution)
        return self._reports.update(complaints, trio.current_time())

    async def take_trouble(self, origin: str, problem: str) -> float:
        """Note that the source could not be looked at: what ran goes on, also from the last run.

        Where nothing was kept nothing is sent, so that the source has not spoken yet.
        """
        if self._records:
            unseen = [
                Manifest(origin=kept, digest="", problems=(problem,))
                for kept in sorted(self._records)
            ]
            await self._go_on_with(await self._resolve(unseen))
        complaints: Mapping[str, Complaint] = {origin: ("", (problem,))}
        return self._reports.update(complaints, trio.current_time())

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run blocking work of this source; a disk that hangs holds up this source alone."""
        limiter = self._context.limiter
        return await run_in_thread(work, abandon_on_cancel=True, limiter=limiter)

    async def look(self, work: Callable[[], T]) -> T:
        """Run what looks at the place of the source, and blocks for as long as that hangs."""
        return await run_in_thread(work, abandon_on_cancel=True, limiter=self._context.looks)

    async def _resolve(self, manifests: Sequence[Manifest]) -> _Resolution:
        adopt = self._context.adopt()
        return await self.in_thread(partial(self._resolve_now, manifests, adopt))

    def _resolve_now(self, manifests: Sequence[Manifest], adopt: Adopt) -> _Resolution:
        """In a thread, while the source's task waits for it and changes nothing."""
        resolved = self.reader.resolve(
            manifests, self._records, adopt, kept_by_earlier_run=self._sent is None
        )
        return _Resolution(
            resolved=resolved,
            is_new=resolved.pods != self._sent,
            is_unsaved=resolved.kept != self._saved,
        )

    async def _go_on_with(self, resolution: _Resolution) -> None:
        resolved = resolution.resolved
        self._records = resolved.kept
        # Sent before it is kept, as the disk is slow: who forgets a UID finds the same again.
        if resolution.is_new:
            await self._send(resolved.pods)
            self._sent = resolved.pods
        if resolution.is_unsaved:
            self._saved, problem = await self.in_thread(self._save_now)
            if problem and problem != self._save_problem:
                log.warning("manifest copy write failed, will retry", problem=problem)
            self._save_problem = problem

    def _save_now(self) -> tuple[Records, str]:
        """Bring the disk up to date, in a thread; what is on it then, and why it is not all."""
        try:
            self._kept.save(self._saved, self._records)
        except OSError as error:
            saved = self._saved.items()
            return {o: pods for o, pods in saved if self._records.get(o) == pods}, str(error)
        return self._records, ""
