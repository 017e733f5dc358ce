"""The rotation of a container's log: which of its files go, are packed or renamed, and when; pure.

`0.log` is renamed to `0.log.<time>`, and the runtime told to make it anew. Of the rotated ones all
but the newest are packed into `0.log.<time>.gz`, by way of `0.log.<time>.tmp`. What an agent that
was killed has left half done is seen by the names alone: a temporary file is of no use, and a file
that is there packed as well was packed to its end.
"""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from attrs import frozen

PACKED, UNFINISHED = ".gz", ".tmp"
TIME_FORMAT = "%Y%m%d-%H%M%S"

LEAST_SECONDS = 1.0
"""Between two looks at a log, and so between two rotations: names count seconds."""


@frozen(kw_only=True)
class RotationPolicy:
    """containerLogMaxSize and containerLogMaxFiles; the files of a log are two at least.

    A log is looked at every `interval_seconds`, and sooner if it grows fast. A negative size means
    that none is ever full.
    """

    max_bytes: int
    max_files: int
    interval_seconds: float

    def is_full(self, size_bytes: int) -> bool:
        """True if a log of this size is to be rotated."""
        return 0 <= self.max_bytes <= size_bytes

    @property
    def rotated_files(self) -> int:
        """The rotated files of a log that are kept beside itself."""
        return max(1, self.max_files - 1)


@frozen(kw_only=True)
class RotatedFiles:
    """The files that a log was rotated into, oldest first, and what is left of packing.

    `rotated` are names without `.gz`; those of `packed` are there as a packed file.
    """

    rotated: tuple[str, ...]
    packed: frozenset[str]
    leftovers: tuple[str, ...]

    def excess(self, keep: int) -> tuple[str, ...]:
        """The oldest files beyond those that are kept, by the names that they have on the disk."""
        gone = self.rotated[: max(0, len(self.rotated) - keep)]
        return tuple(self.on_disk(name) for name in gone)

    def to_pack(self, keep: int) -> tuple[str, ...]:
        """The files that are to be packed: whoever follows the log may still read the newest."""
        kept = self.rotated[-keep:]
        return tuple(name for name in kept[:-1] if name not in self.packed)

    def on_disk(self, name: str) -> str:
        """The name of a rotated file with `.gz` if it is packed."""
        return f"{name}{PACKED}" if name in self.packed else name

    @property
    def newest_unpacked(self) -> str | None:
        """The newest file, unless it is packed: if the log is missing, it is that one's content."""
        newest = self.rotated[-1] if self.rotated else None
        return newest if newest not in self.packed else None


def rotated_files(names: Iterable[str], log: str) -> RotatedFiles:
    """Sort the names in the folder of a log; what is of nobody's rotation is left out."""
    pattern = re.compile(re.escape(log) + r"\.\d{8}-\d{6}(\.gz|\.tmp)?", re.ASCII)
    found = sorted(name for name in names if pattern.fullmatch(name))
    packed = frozenset(name.removesuffix(PACKED) for name in found if name.endswith(PACKED))
    plain = [name for name in found if not name.endswith((PACKED, UNFINISHED))]
    unfinished = [name for name in found if name.endswith(UNFINISHED)]
    return RotatedFiles(
        rotated=tuple(sorted(packed.union(plain))),
        packed=packed,
        leftovers=(*unfinished, *(name for name in plain if name in packed)),
    )


def next_name(log: str, rotated: Sequence[str], now: datetime) -> str:
    """The name to rotate a log into: later than all before, also where the clock was set back."""
    newest = rotated[-1].rpartition(".")[2] if rotated else ""
    time = now.strftime(TIME_FORMAT)
    if time <= newest:
        time = _after(newest)
    return f"{log}.{time}"


def _after(time: str) -> str:
    """The second after one; what looks like a time and is none is counted on as a number."""
    try:
        return (datetime.strptime(time, TIME_FORMAT) + timedelta(seconds=1)).strftime(TIME_FORMAT)
    except (ValueError, OverflowError):
        digits = f"{(int(time.replace('-', '')) + 1) % 10**14:014}"
        return f"{digits[:8]}-{digits[8:]}"


def seconds_to_next_look(size_bytes: int, bytes_per_second: float, policy: RotationPolicy) -> float:
    """Seconds until a log that grows at this rate is due for rotation, in whole seconds.

    Rounded down, so that a log seldom gets larger than it may.
    """
    if bytes_per_second <= 0 or policy.max_bytes < 0:
        return policy.interval_seconds
    seconds = (policy.max_bytes - size_bytes) // bytes_per_second
    return max(LEAST_SECONDS, min(seconds, policy.interval_seconds))
