"""A request's head: checks that h11 does not make, its path, its query and its range; pure.

h11 checks the grammar, hosts, conflicting lengths, transfer codings and chunks. It is lenient
where another server in front could see other borders between requests than we do (RFC 9112,
sections 2.2, 5.2, 6.1 and 6.3): bare line feeds, folded headers, repeated lengths, a length
beside chunks.
"""

import re
from urllib.parse import parse_qsl, unquote, urlsplit

from attrs import frozen

from trio_kubelet.server.limits import Limits
from trio_kubelet.server.messages import RequestError, Values

VERSIONS = (b"HTTP/1.0", b"HTTP/1.1")
_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ONE_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def check_lines(received: bytes | bytearray, limits: Limits) -> None:
    """Raise RequestError for a head of too many lines, before h11 takes it apart, as it comes."""
    head, _, _ = received.partition(b"\n\r\n")
    if head.count(b"\n") > limits.headers:
        raise RequestError(431, f"there are more than {limits.headers} headers")


def check_head(head: bytes, limits: Limits) -> None:
    """Raise RequestError for a head that h11 has taken: its bytes, with the empty line."""
    if len(head) > limits.head_bytes:
        raise RequestError(431, f"the head is longer than {limits.head_bytes} bytes")
    if _BARE_LINE_FEED.search(head):
        raise RequestError(400, "a line of the head ends without a carriage return")
    request_line, *lines = head.rstrip(b"\r\n").split(b"\n")
    version = request_line.rsplit(maxsplit=1)[-1]
    if version not in VERSIONS:
        raise RequestError(505, "the version is neither HTTP/1.0 nor HTTP/1.1")
    if any(line.startswith((b" ", b"\t")) for line in lines):
        raise RequestError(400, "a header is folded over several lines")
    fields = [line.partition(b":") for line in lines]
    lengths = [value for name, _, value in fields if name.lower() == b"content-length"]
    chunked = any(name.lower() == b"transfer-encoding" for name, _, _ in fields)
    if len(lengths) > 1 or any(b"," in value for value in lengths):
        raise RequestError(400, "there are several Content-Length")
    if lengths and chunked:
        raise RequestError(400, "there are both Content-Length and Transfer-Encoding")
    if chunked and version == b"HTTP/1.0":
        raise RequestError(400, "HTTP/1.0 has no Transfer-Encoding")


def path_and_query(target: str) -> tuple[str, Values]:
    """The decoded path of a request target, and its query. Raises RequestError (400).

    A whole URL is a target too; a path that begins with two slashes names no host.
    """
    path, _, query = target.partition("?")
    if not target.startswith("/"):
        try:
            url = urlsplit(target)
        except ValueError as error:
            raise RequestError(400, "the target of the request is no URL") from error
        if not url.netloc or url.scheme not in ("http", "https"):
            raise RequestError(400, "the target of the request is neither a path nor a URL")
        path, query = url.path or "/", url.query
    if _BAD_ESCAPE.search(path):
        raise RequestError(400, "the path has a percent sign that begins no escape")
    return unquote(path), Values(tuple(parse_qsl(query, keep_blank_values=True)))


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
