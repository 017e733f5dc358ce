"""The static pods of one source: what runs, what is kept, what is reported, what was sent.

The sources of manifests hand over all that they see, each time they look; this resolves them,
brings the kept records up to date, reports, and calls back with the full set of pods when it has
changed.

What is wrong with a manifest is said once for each content, and not while it is being written: a
writer that truncates a file and fills it again shows a bad manifest for a moment. So a problem is
reported when it is still there after `SETTLE_SECONDS`, in one log line and one journal entry, and
again only when the content or the complaint changes.
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog
import trio
from attrs import define, field, frozen

from trio_kubelet.foreign_text import without_passwords
from trio_kubelet.k8s import Pod
from trio_kubelet.pod_source import Source
from trio_kubelet.sources.kept import KeptManifests, Records
from trio_kubelet.sources.manifests import Adopt, Manifest, ManifestReader, Resolved
from trio_kubelet.tasks.threads import run_in_thread
from trio_kubelet.telemetry import Journal

log = structlog.get_logger("sources")

SETTLE_SECONDS = 0.5
_SHOWN_PROBLEMS = 10

Complaint = tuple[str, tuple[str, ...]]
"""Digest of the content, and what is wrong with it."""


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
        for origin in self._said.keys() - complaints.keys():
            del self._said[origin]
            shown = without_passwords(origin)
            log.info("manifest recovered or removed", file=shown)
            self._journal.note("manifest", shown, "Mended")
        found: dict[str, tuple[Complaint, float]] = {}
        look_again = math.inf
        for origin, complaint in complaints.items():
            before, since = self._found.get(origin, (None, now))
            since = since if before == complaint else now
            found[origin] = (complaint, since)
            if self._said.get(origin) == complaint:
                continue
            if now - since < self._settle_seconds:
                look_again = min(look_again, since + self._settle_seconds)
                continue
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

SendPods = Callable[[tuple[Pod, ...]], Awaitable[None]]
"""Takes the full set of a source's pods. The first call means: the source has spoken."""


@frozen(kw_only=True)
class ManifestContext:
    """The parts that a source of manifests works with.

    `kept_folder` holds its last good manifests, and is its own. Files are read and manifests
    decoded in threads of `limiter`.
    """

    node_name: str
    kept_folder: Path
    adopt: Adopt
    journal: Journal
    limiter: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1))

    def pods(
        self, source: Source, send: SendPods, *, settle_seconds: float = SETTLE_SECONDS
    ) -> "StaticPodSet":
        """The pods of the source, of which none is known yet."""
        reader = ManifestReader(source=source, node_name=self.node_name)
        kept = KeptManifests(self.kept_folder, reader)
        return StaticPodSet(self, reader, kept, send, ManifestReports(self.journal, settle_seconds))


@define(eq=False)
class StaticPodSet:
    """Owned by the task of one source."""

    _given: ManifestContext
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
        resolved = self._resolve(manifests)
        digests = {manifest.origin: manifest.digest for manifest in manifests}
        complaints = {o: (digests[o], problems) for o, problems in resolved.problems.items()}
        await self._go_on_with(resolved)
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
            await self._go_on_with(self._resolve(unseen))
        complaints: Mapping[str, Complaint] = {origin: ("", (problem,))}
        return self._reports.update(complaints, trio.current_time())

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run blocking work of this source; a disk that hangs holds up this source alone."""
        limiter = self._given.limiter
        return await run_in_thread(work, abandon_on_cancel=True, limiter=limiter)

    def _resolve(self, manifests: Sequence[Manifest]) -> Resolved:
        return self.reader.resolve(
            manifests, self._records, self._given.adopt, kept_by_earlier_run=self._sent is None
        )

    async def _go_on_with(self, resolved: Resolved) -> None:
        self._records = resolved.kept
        # Sent before it is kept, as the disk is slow: who forgets a UID finds the same again.
        if resolved.pods != self._sent:
            await self._send(resolved.pods)
            self._sent = resolved.pods
        if self._records != self._saved:
            try:
                await self.in_thread(partial(self._kept.save, self._saved, self._records))
            except OSError as error:
                if str(error) != self._save_problem:
                    log.warning("manifest copy write failed, will retry", problem=str(error))
                self._save_problem = str(error)
                saved = self._saved.items()
                self._saved = {key: pods for key, pods in saved if self._records.get(key) == pods}
            else:
                self._save_problem = ""
                self._saved = self._records
