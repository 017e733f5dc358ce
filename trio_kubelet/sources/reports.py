"""Says what is wrong with a manifest: once for each content, and not while it is being written.

A writer that truncates a file and fills it again shows a bad manifest for a moment. So a problem
is reported when it is still there after `SETTLE_SECONDS`, in one log line and one journal entry,
and again only when the content or the complaint changes.
"""

import math
from collections.abc import Mapping

import structlog
from attrs import define, field

from trio_kubelet.foreign_text import without_passwords
from trio_kubelet.telemetry import Journal

log = structlog.get_logger("sources")

SETTLE_SECONDS = 0.5
_SHOWN_PROBLEMS = 10

Complaint = tuple[str, tuple[str, ...]]
"""Digest of the content, and what is wrong with it."""


@define(eq=False)
class ManifestReports:
    """What was found and what was said; owned by the task of one source."""

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
