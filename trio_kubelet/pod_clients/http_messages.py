"""The request of a httpGet probe, and its response, in whichever version of HTTP it was made; pure.

Headers are the action's, with what the Go kubelet's clients send of themselves. A redirect leads
to another request, if it stays on the same host.
"""

import json
import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote, urljoin, urlsplit

from attrs import define, evolve, frozen

from trio_kubelet.foreign_text import is_unicode
from trio_kubelet.k8s import Container, HTTPGetAction
from trio_kubelet.pod_clients.dial import host_port, port_number
from trio_kubelet.pod_clients.result import USER_AGENT

MOST_REDIRECTS = 10
MOST_INFORMATIONAL = 5
"""Responses before the one that counts, in a run, as in Go's client."""
MOST_HEADER_LINES = 1000
"""Of a request; of all responses in a run, which redirects lead to."""
HEAD_LIMIT_BYTES = 64 * 1024
"""The most that is read until a response's head is complete, with informational ones before it."""
REDIRECTS = frozenset({301, 302, 303, 307, 308})
PORTS: Mapping[str, int] = {"http": 80, "https": 443}
_PATH_SAFE = "/!$&'()*+,;=:@~%"
_QUERY_SAFE = _PATH_SAFE + '?[]|^`{}"<>\\#'
_SENT_BY_ITSELF = frozenset(
    {"Host", "User-Agent", "Content-Length", "Transfer-Encoding", "Trailer"}
)
_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_NO_HEADER_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_PADDING = " \t"
_HEADS_TOO_LONG = "net/http: server response headers exceeded {}; aborted"

Headers = tuple[tuple[str, str], ...]


class RedirectError(Exception):
    """A redirect that cannot be followed. The text is Go's."""


@frozen(kw_only=True)
class HttpRequest:
    """One request. `host_header` replaces the address in the Host header unless it is empty."""

    scheme: str
    host: str
    port: int
    target: str
    headers: Headers
    host_header: str = ""
    user_agent: str = USER_AGENT

    @property
    def url(self) -> str:
        """The whole URL."""
        return f"{self.scheme}://{host_port(self.host, self.port)}{self.target}"

    @property
    def lines(self) -> Headers:
        """All headers in the order in which they are sent, values without space around them."""
        agent = (("User-Agent", self.user_agent),) if self.user_agent else ()
        is_upgrade = any(name == "Connection" and value for name, value in self.headers)
        close = () if is_upgrade else (("Connection", "close"),)
        host = self.host_header or host_port(self.host, self.port)
        lines = (("Host", host), *agent, *self.headers, *close)
        return tuple((name, value.strip(_PADDING)) for name, value in lines)


def http_request(
    action: HTTPGetAction, container: Container, pod_ip: str, user_agent: str = USER_AGENT
) -> HttpRequest:
    """Return the first request of a probe or a hook, which names `user_agent` by default.

    Raises ProbeError where the port has no number.
    """
    values: dict[str, list[str]] = {}
    for header in action.http_headers:
        values.setdefault(_canonical(header.name), []).append(header.value)
    accept = values.pop("Accept", ["*/*"])
    if accept[0]:
        values["Accept"] = accept
    return HttpRequest(
        scheme=(action.scheme or "http").lower(),
        host=action.host or pod_ip,
        port=port_number(container, action.port),
        target=_target(action.path),
        headers=tuple(
            (name, value)
            for name in sorted(values)
            if name not in _SENT_BY_ITSELF
            for value in values[name]
        ),
        host_header=values.get("Host", [""])[0],
        user_agent=values.get("User-Agent", [user_agent])[0],
    )


def header_problem(lines: Headers) -> str:
    """Return why headers cannot be sent, empty if they can, without a value: it may be secret."""
    for name, value in lines:
        if not _HEADER_NAME.fullmatch(name):
            return f"net/http: invalid header field name {json.dumps(name, ensure_ascii=False)}"
        if _NO_HEADER_VALUE.search(value) or not is_unicode(value):
            return f"net/http: invalid header field value for {json.dumps(name)}"
    return ""


def redirected(request: HttpRequest, first: HttpRequest, location: str) -> HttpRequest | None:
    """Return the request that a redirect leads to; None where it leads to another host.

    Raises RedirectError where nobody could follow.
    """
    try:
        there = urlsplit(urljoin(request.url, location))
        host, port = there.hostname or "", there.port
        is_relative = not urlsplit(location).scheme
    except ValueError as error:
        raise RedirectError(f'failed to parse Location header "{location}": {error}') from error
    if host != first.host.lower():
        return None
    if there.scheme not in PORTS:
        raise RedirectError(f'unsupported protocol scheme "{there.scheme}"')
    return evolve(
        request,
        scheme=there.scheme,
        port=port or PORTS[there.scheme],
        target=_escaped(there.path, there.query),
        headers=(*first.headers, *_referer(request, first, there.scheme)),
        host_header=request.host_header if is_relative else "",
    )


def _referer(request: HttpRequest, first: HttpRequest, scheme: str) -> Headers:
    """The referer after a redirect, unless the action names one, or none may be told over TLS."""
    is_leak = request.scheme == "https" and scheme == "http"
    if is_leak or any(name == "Referer" for name, _ in first.headers):
        return ()
    return (("Referer", request.url),)


def _target(path: str) -> str:
    """The path as it is sent, with its query; what is no part of a URL is escaped."""
    if _CONTROL.search(path):
        return _escaped(path.replace("%", "%25").replace("?", "%3F"), "")
    try:
        parts = urlsplit(path)
    except ValueError:
        return _escaped(path.replace("%", "%25"), "")
    if _BAD_PERCENT.search(parts.path):
        return _escaped(path.replace("%", "%25").replace("?", "%3F"), "")
    return _escaped(parts.path, parts.query)


def _escaped(path: str, query: str) -> str:
    path = path if path.startswith("/") else f"/{path}"
    target = quote(path, safe=_PATH_SAFE)
    return f"{target}?{quote(query, safe=_QUERY_SAFE)}" if query else target


def _canonical(name: str) -> str:
    """A header's name as Go writes it: `x-real-ip` is `X-Real-Ip`; what is no name stays."""
    if not _HEADER_NAME.fullmatch(name):
        return name
    return "-".join(part.capitalize() for part in name.split("-"))


def location_of(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """The target of a redirect; empty if the response names none."""
    found = next((value for name, value in headers if name == b"location"), b"")
    return found.decode("latin-1")


class HttpError(Exception):
    """There is no response. The text is Go's as far as it is known.

    `is_local`: this node could not ask, which says nothing about whom it would have asked.
    `cut_off`: there was a connection, and it broke.
    """

    def __init__(self, message: str, *, is_local: bool = False, cut_off: bool = False) -> None:
        super().__init__(message)
        self.is_local = is_local
        self.cut_off = cut_off


@define
class Heads:
    """The heads of all responses in a run, as far as they were read. Too many are an HttpError."""

    _bytes: int = 0
    _lines: int = 0
    _informational: int = 0

    def take(self, size: int, lines: int) -> None:
        """Count some of a head."""
        self._bytes += size
        self._lines += lines
        if self._bytes > HEAD_LIMIT_BYTES:
            raise HttpError(_HEADS_TOO_LONG.format(f"{HEAD_LIMIT_BYTES} bytes"))
        if self._lines > MOST_HEADER_LINES:
            raise HttpError(_HEADS_TOO_LONG.format(f"{MOST_HEADER_LINES} lines"))

    def take_informational(self) -> None:
        """Count a response before the one that counts."""
        self._informational += 1
        if self._informational > MOST_INFORMATIONAL:
            raise HttpError("net/http: too many 1xx informational responses")


@frozen(kw_only=True)
class ProbeResponse:
    """A response, of whose body no more than the limit was read."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes
