"""Which part of something a client wants: the header `Range` (RFC 9110, section 14); pure."""

import re

from attrs import frozen

from trio_kubelet.server.messages import RequestError

_ONE_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


@frozen
class ByteRange:
    """Some bytes, from one place on."""

    begin: int
    size_bytes: int

    @property
    def text(self) -> str:
        """The range as `Content-Range` has it."""
        return f"{self.begin}-{self.begin + self.size_bytes - 1}"


def wanted_range(header: str, size_bytes: int) -> ByteRange | None:
    """The part that is asked for, None for the whole.

    Several ranges at once, and what is no range, are answered with the whole, as a server may.
    Raises RequestError (416) for a part that there is not.
    """
    found = _ONE_RANGE.fullmatch(header.replace(" ", ""))
    if found is None or not any(found.groups()):
        return None
    first, last = found.groups()
    if not first:
        begin, end = max(0, size_bytes - int(last)), size_bytes
    else:
        begin, end = int(first), min(size_bytes, int(last) + 1) if last else size_bytes
        if last and int(last) < begin:
            return None
    if begin >= end:
        raise RequestError(416, "invalid range: failed to overlap")
    return ByteRange(begin, end - begin)
