"""The record that keeps the pressures of a node over a restart of the agent.

For how long a soft threshold has been crossed, and when each was crossed last, decide who is
evicted and how long a condition lasts, whichever agent has measured. It is `pressures.json` below
`--root-dir`, in the time of day, written when it says something else, and every ten seconds while
a condition is not relieved: by so much sooner a condition may be relieved after a restart. (When a
condition changed its status last is kept by the Node object.) A record of another boot counts for
nothing, and neither does a threshold that is no longer configured.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import structlog
import trio
from attrs import frozen

from state_machines.pressure import PressureState, is_shown
from trio_kubelet.config.eviction import SIGNALS
from trio_kubelet.eviction.observations import Observations
from trio_kubelet.eviction.pressure import KINDS, Assessment, met_thresholds
from trio_kubelet.eviction.thresholds import DiskLayout, Threshold, with_container_disk
from trio_kubelet.k8s import NodeConditionType, json_text
from trio_kubelet.kernel.whole_files import write_whole
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.threads import run_in_thread

log = structlog.get_logger("eviction")

FILE = "pressures.json"
SAVE_SECONDS = 10.0
"""The age of a record that is replaced while a condition is not relieved, although nothing but the
times in it would be other; and the pause after one that could not be written."""

MOST_UNSEEN_SECONDS = 120.0
"""The time without an agent after which nobody knows that a threshold has stayed crossed: the grace
of a soft one begins anew."""

MOST_AHEAD_SECONDS = 1.0
"""A clock that was set back by less was corrected, not wrong."""

_MAX_BYTES = 1 << 16
_SECOND_NS = 1_000_000_000


@frozen(kw_only=True)
class Moment:
    """One moment on both clocks: trio's in seconds, and nanoseconds since the epoch."""

    seconds: float
    epoch_ns: int

    def ns_of(self, seconds: float) -> int:
        """The time of day at a time of trio's clock."""
        return self.epoch_ns - round((self.seconds - seconds) * _SECOND_NS)

    def seconds_of(self, epoch_ns: int) -> float:
        """The time of trio's clock at a time of day."""
        return self.seconds - (self.epoch_ns - epoch_ns) / _SECOND_NS


def is_due(saved: Assessment, newest: Assessment) -> bool:
    """True if a record has to be replaced by one of the newest assessment."""
    if (newest.crossed_since, newest.met, newest.states) != (
        saved.crossed_since,
        saved.met,
        saved.states,
    ):
        return True
    is_relieved = not any(is_shown(state) for state in newest.states.values())
    return not is_relieved and newest.observed.at - saved.observed.at >= SAVE_SECONDS


def printed(assessment: Assessment, boot_id: str, now: Moment) -> bytes:
    """The text of a record: the thresholds of conditions that are not relieved."""
    content = {
        "bootID": boot_id,
        "observedAtNs": now.ns_of(assessment.observed.at),
        "diskLayout": str(assessment.observed.layout),
        "thresholds": list(_printed_thresholds(assessment, now)),
    }
    return json_text.dumps(content)


def parsed(
    text: bytes, thresholds: Iterable[Threshold], boot_id: str, now: Moment
) -> Assessment | None:
    """The assessment in a record; None if it is of another boot. Raises ValueError for no record.

    `thresholds` are those that are configured now.
    """
    try:
        content = json_text.loads(text)
        if content["bootID"] != boot_id:
            return None
        observed_ns, layout = _time(content["observedAtNs"]), DiskLayout(content["diskLayout"])
        entries = [_Entry.parsed(each, observed_ns) for each in content["thresholds"]]
    except (LookupError, TypeError) as error:
        raise ValueError(f"it has another form: {error!r}") from error
    if observed_ns > now.ns_of(now.seconds + MOST_AHEAD_SECONDS):
        raise ValueError("it is of the future: the clock was set back")
    by_key = {each.key: each for each in entries}
    known = {
        threshold: by_key[threshold.key]
        for threshold in with_container_disk(thresholds, layout)
        if threshold.key in by_key
    }
    observed = Observations(at=now.seconds_of(observed_ns), measured_ns=observed_ns, layout=layout)
    is_fresh = now.seconds - observed.at <= MOST_UNSEEN_SECONDS
    crossed_since = {
        threshold: now.seconds_of(entry.crossed_since_ns)
        for threshold, entry in known.items()
        if is_fresh and entry.crossed_since_ns is not None
    }
    last_crossed_at = {
        threshold: now.seconds_of(entry.last_crossed_ns) for threshold, entry in known.items()
    }
    return Assessment(
        observed=observed,
        crossed_since=crossed_since,
        met=met_thresholds(crossed_since, observed.at),
        states=_states(crossed_since, last_crossed_at),
        last_crossed_at=last_crossed_at,
    )


class PressureRecord:
    """Owner of the record. `root` is --root-dir; `thresholds` are those that are configured."""

    def __init__(
        self, root: Path, thresholds: Iterable[Threshold], boot_id: str, clock: Clock
    ) -> None:
        self._path = root / FILE
        self._thresholds = tuple(thresholds)
        self._boot_id = boot_id
        self._clock = clock
        self._saved: Assessment | None = None
        """The assessment that the file tells of; None if that does not tell of any."""
        self._newest = Assessment()
        self._changed = trio.Event()

    async def load(self) -> Assessment | None:
        """Read what an earlier agent has found. Before the node is observed.

        None if it left nothing that counts; a file that is no record is replaced.
        """
        try:
            text = await run_in_thread(self._read)
            found = parsed(text, self._thresholds, self._boot_id, self._now())
        except FileNotFoundError:
            self._saved = Assessment()  # There is nothing to write until a threshold is crossed.
            return None
        except (OSError, ValueError) as error:
            log.warning(
                "pressure record is unreadable, starting without it",
                file=str(self._path),
                error=str(error),
            )
            return None
        if found is not None and found.last_crossed_at:
            log.info(
                "pressures of an earlier agent resumed",
                conditions=[str(kind) for kind, state in found.states.items() if is_shown(state)],
            )
        self._saved = found
        return found

    def observed(self, assessment: Assessment) -> None:
        """Keep an assessment, if it says something else than the record."""
        self._newest = assessment
        self._changed.set()

    async def run(self) -> None:
        """Write records until cancelled. A disk that hangs or is full holds up nothing else."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            newest = self._newest
            if self._saved is not None and not is_due(self._saved, newest):
                continue
            text = printed(newest, self._boot_id, self._now())
            try:
                await run_in_thread(self._write, text)
            except OSError as error:
                log.warning("pressure record write failed", file=str(self._path), error=str(error))
                await trio.sleep(SAVE_SECONDS)
                self._changed.set()
            else:
                self._saved = newest

    def _now(self) -> Moment:
        return Moment(seconds=trio.current_time(), epoch_ns=self._clock.now_ns())

    def _read(self) -> bytes:
        with self._path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES} bytes")
        return text

    def _write(self, text: bytes) -> None:
        # Durable, so that after a power failure there is no half of a record to warn of.
        write_whole(self._path, text, folder_mode=0o750, durable=True)


@frozen(kw_only=True)
class _Entry:
    """The times of one threshold in a record; `key` is its signal, kind and value."""

    key: tuple[str, str, str]
    crossed_since_ns: int | None
    last_crossed_ns: int

    @classmethod
    def parsed(cls, value: Mapping[str, Any], observed_ns: int) -> "_Entry":
        """Read an entry of the list. Raises LookupError, TypeError or ValueError."""
        key = (_text(value["signal"]), _text(value["kind"]), _text(value["value"]))
        last_ns, since_ns = _time(value["lastCrossedAtNs"]), value.get("crossedSinceNs")
        if last_ns > observed_ns or (since_ns is not None and _time(since_ns) > last_ns):
            raise ValueError(f"the times of {key[0]} contradict each other")
        return cls(key=key, crossed_since_ns=since_ns, last_crossed_ns=last_ns)


def _printed_thresholds(assessment: Assessment, now: Moment) -> Iterator[Mapping[str, object]]:
    for threshold, last_at in assessment.last_crossed_at.items():
        if not is_shown(assessment.states[SIGNALS[threshold.signal].condition]):
            continue
        since = assessment.crossed_since.get(threshold)
        signal, kind, value = threshold.key
        yield {
            "signal": signal,
            "kind": kind,
            "value": value,
            **({"crossedSinceNs": now.ns_of(since)} if since is not None else {}),
            "lastCrossedAtNs": now.ns_of(last_at),
        }


def _states(
    crossed: Iterable[Threshold], ever_crossed: Iterable[Threshold]
) -> dict[NodeConditionType, PressureState]:
    """The states of the pressures, as far as the thresholds go that are configured now."""
    eased = [SIGNALS[threshold.signal].condition for threshold in ever_crossed]
    under = [SIGNALS[threshold.signal].condition for threshold in crossed]
    return {
        **dict.fromkeys(KINDS, PressureState.RELIEVED),
        **dict.fromkeys(eased, PressureState.EASED),
        **dict.fromkeys(under, PressureState.UNDER),
    }


def _time(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is no time")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
