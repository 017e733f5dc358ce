"""The static pods of one source: what runs, what is kept, what is said, what was sent.

Both sources hand over all manifests they see, each time they look; this resolves them, brings the
kept records up to date, reports, and calls back with the full set of pods when it has changed.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog
import trio
from attrs import define, field, frozen

from trio_kubelet.k8s import Pod
from trio_kubelet.pod_source import Source
from trio_kubelet.sources.kept import KeptManifests, Records
from trio_kubelet.sources.manifests import Adopt, Manifest, ManifestReader, Resolved
from trio_kubelet.sources.reports import SETTLE_SECONDS, Complaint, ManifestReports
from trio_kubelet.telemetry import Journal
from trio_kubelet.threads import run_in_thread

log = structlog.get_logger("sources")

T = TypeVar("T")

SendPods = Callable[[tuple[Pod, ...]], Awaitable[None]]
"""Takes the full set of a source's pods. The first call means: the source has spoken."""


@frozen(kw_only=True)
class ManifestContext:
    """What a source of manifests works with.

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
