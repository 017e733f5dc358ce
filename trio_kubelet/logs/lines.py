"""CRI's log format, and what is sent of it; pure.

A line is `<RFC 3339 time> <stream> <tags> <text>`. The first tag is P for a part of a long line
and F for its end: parts are sent as one line. What is no such line is left out. A runtime also
splits a line when it goes over to the next file of a log that was rotated. So that no half line is
sent where the next file is gone, parts are held until their line has come whole, or is too long,
or the caller knows that its rest cannot be lost (`flush`).
"""

import re

from trio_kubelet.k8s.time import parse_ns
from trio_kubelet.logs.options import LogOptions

MAX_LINE_BYTES = 1024 * 1024
"""A longer line is none that a runtime has written: they end them at 16 KiB."""

MAX_HELD_BYTES = 16 * 1024
"""Of a line in parts; what is longer is sent in parts, too. Each follower of a log holds as much of
each of its two streams."""

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
        self._held: dict[bytes, bytes] = {}
        """By stream, of lines that go on in their next part: the text that was not sent yet."""
        self._left_out: set[bytes] = set()
        """Streams whose line is left out up to its end."""
        self._sent_half_line = False

    @property
    def full(self) -> bool:
        """True if as much was sent as was asked for."""
        return self._left == 0

    @property
    def partial_bytes(self) -> int:
        """The size of what is held of a line of the file whose end has not come."""
        return len(self._carry)

    def leave_out(self) -> None:
        """Leave out the line whose end has not come, up to its end."""
        self._carry, self._skipping = b"", True

    def feed(self, data: bytes) -> bytes:
        """The bytes to send of the next piece of a file."""
        lines = (self._carry + data).split(b"\n")
        self._carry = lines.pop()
        if self._skipping and lines:
            del lines[0]
            self._skipping = False
        if len(self._carry) > MAX_LINE_BYTES:
            self.leave_out()
        return self._limited(b"".join([text for line in lines if (text := self._text(line))]))

    def flush(self) -> bytes:
        """The bytes to send of what is held: its rest will come from the same file, or never."""
        held = b"".join(self._held.values())
        self._held = dict.fromkeys(self._held, b"")
        return self._limited(held)

    def end(self) -> bytes:
        """The bytes to send at the end of a log: what stands there without one is a whole line."""
        last = self.feed(b"\n") if self._carry else b""
        return last + self.flush()

    def next_file(self, *, lost: bool) -> bytes:
        """Go over to the next file; the bytes to send before it.

        `lost` says that something between the two files is lost. Then the line that the first one
        ends in stays away, and so does the first line of each stream in the next one, which may be
        the end of a longer line. Of a line that was sent in part only its end is missing. A file
        that ends within a line was not written, or not read, to its end.
        """
        lost = lost or bool(self._carry) or self._skipping
        self._carry, self._skipping = b"", False
        if not lost:
            return b""
        self._held.clear()
        self._left_out = set(_STREAMS)
        return self._limited(b"\n") if self._sent_half_line else b""

    def _limited(self, sent: bytes) -> bytes:
        if self._left is not None:
            sent = sent[: self._left]
            self._left -= len(sent)
        if sent:
            self._sent_half_line = not sent.endswith(b"\n")
        return sent

    def _text(self, line: bytes) -> bytes:
        parts = line.split(b" ", 3)
        if len(parts) != 4:
            return b""
        time, stream, tags, text = parts
        options = self._options
        if stream not in _STREAMS or (options.stream and stream != options.stream):
            return b""
        goes_on = is_part(tags)
        held = self._held.pop(stream, None)
        if held is None and self._is_left_out(time, stream):
            if not goes_on:
                self._left_out.discard(stream)
            return b""
        if held is not None:
            text = held + text
        elif options.timestamps:
            text = _full_time(time) + b" " + text
        if not goes_on:
            return text + b"\n"
        is_long = len(text) > MAX_HELD_BYTES
        self._held[stream] = b"" if is_long else text
        return text if is_long else b""

    def _is_left_out(self, time: bytes, stream: bytes) -> bool:
        """True for the parts of a line that is not sent, which begins or goes on."""
        if stream not in self._left_out and self._since_ns is not None:
            if self._is_due(time, self._since_ns):
                self._since_ns = None
            else:
                self._left_out.add(stream)
        return stream in self._left_out

    def _is_due(self, time: bytes, since_ns: int) -> bool:
        """True if a line is new enough; so are all that follow one that is."""
        try:
            return parse_ns(time.decode("ascii", "replace")) >= since_ns
        except ValueError:
            return False


def is_part(tags: bytes) -> bool:
    """True if these tags are those of a line that goes on in the next one."""
    return tags.partition(b":")[0] == b"P"


def _full_time(time: bytes) -> bytes:
    """The time with all nine digits of its fraction."""
    found = _TIME.fullmatch(time)
    if found is None:
        return time
    return b"%s.%s%s" % (found[1], (found[2] or b"").ljust(9, b"0"), found[3])
