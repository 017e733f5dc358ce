"""CRI's log format, and what is sent of it; pure.

A line is `<RFC 3339 time> <stream> <tags> <text>`. The first tag is P for a part of a long line
and F for its end: parts are sent as one line. What is no such line is left out.
"""

import re

from trio_kubelet.k8s.time import parse_ns
from trio_kubelet.logs.options import LogOptions

MAX_LINE_BYTES = 1024 * 1024
"""A longer line is none that a runtime has written: they end them at 16 KiB."""

_TIME = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
_STREAMS = frozenset({b"stdout", b"stderr"})


class LogLines:
    """Turns what is read of a log, piece by piece, into what is sent."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        self._left = options.limit_bytes
        self._since_ns = options.since_ns
        self._carry = b""
        self._skipping = False
        self._in_line = False

    @property
    def full(self) -> bool:
        """True if as much was sent as was asked for."""
        return self._left == 0

    def feed(self, data: bytes) -> bytes:
        """The bytes to send of the next piece of a file."""
        lines = (self._carry + data).split(b"\n")
        self._carry = lines.pop()
        if self._skipping and lines:
            del lines[0]
            self._skipping = False
        if len(self._carry) > MAX_LINE_BYTES:
            self._carry, self._skipping = b"", True
        sent = b"".join([piece for line in lines if (piece := self._sent(line))])
        if self._left is None:
            return sent
        sent = sent[: self._left]
        self._left -= len(sent)
        return sent

    def next_file(self) -> bytes:
        """A file is at its end: what stands there without one is a whole line."""
        return self.feed(b"\n") if self._carry else b""

    def _sent(self, line: bytes) -> bytes:
        parts = line.split(b" ", 3)
        if len(parts) != 4:
            return b""
        time, stream, tags, text = parts
        options = self._options
        if stream not in _STREAMS or (options.stream and stream != options.stream):
            return b""
        if self._since_ns is not None and not self._is_due(time, self._since_ns):
            return b""
        if options.timestamps and not self._in_line:
            text = _full_time(time) + b" " + text
        self._in_line = is_part(tags)
        return text if self._in_line else text + b"\n"

    def _is_due(self, time: bytes, since_ns: int) -> bool:
        """True if a line is new enough; so are all that follow one that is."""
        try:
            if parse_ns(time.decode("ascii", "replace")) < since_ns:
                return False
        except ValueError:
            return False
        self._since_ns = None
        return True


def is_part(tags: bytes) -> bool:
    """True if these tags are those of a line that goes on in the next one."""
    return tags.partition(b":")[0] == b"P"


def _full_time(time: bytes) -> bytes:
    """The time with all nine digits of its fraction."""
    found = _TIME.fullmatch(time)
    if found is None:
        return time
    return b"%s.%s%s" % (found[1], (found[2] or b"").ljust(9, b"0"), found[3])
