"""The client itself: one request at a time over a transport, and what is tried again.

A request waits for its turn (rate limit), then has a deadline for everything that follows. Tried
again is what can do no harm: a GET over a pooled connection that the server had closed, once; any
request that was refused for its credentials (401), once, with renewed ones; and an idempotent
one that the server was too busy for, after the time that it names, if the deadline allows.
Transports are httpx's: requests share a pool, each watch has a connection of its own.
"""

import platform
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar, overload
from urllib.parse import urlencode

import httpx
import trio
from attrs import frozen

from trio_kubelet import KUBERNETES_VERSION, __version__
from trio_kubelet.k8s.api_status import DeleteOptions, Preconditions
from trio_kubelet.k8s.base import ApiType
from trio_kubelet.k8s.client.api import (
    EVERYTHING,
    ListPage,
    PatchType,
    ReceivedFrame,
    Recovery,
    Selection,
    metadata_of,
)
from trio_kubelet.k8s.client.credentials import (
    NO_CREDENTIALS,
    CredentialError,
    Credentials,
    Headers,
)
from trio_kubelet.k8s.client.errors import (
    DEADLINE_EXCEEDED,
    ApiError,
    error_from_answer,
    unreachable,
)
from trio_kubelet.k8s.client.objects import (
    read_json,
    read_list,
    read_object,
    write_object,
)
from trio_kubelet.k8s.client.rate_limit import UNLIMITED, RateLimit, RateLimiter
from trio_kubelet.k8s.client.watch_frames import WatchFrames, abandon
from trio_kubelet.k8s.codec import encode
from trio_kubelet.k8s.json_text import dumps
from trio_kubelet.k8s.kinds import Kind
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.clock import Clock, SystemClock
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.tasks.threads import NoThreadError, thread_wanted

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm"}
"""Go's names of what `uname -m` says, where they differ."""


def _user_agent() -> str:
    machine = platform.machine()
    system = f"{platform.system().lower()}/{ARCHITECTURES.get(machine, machine)}"
    return f"kubelet/{KUBERNETES_VERSION} ({system}) trio-kubelet/{__version__}"


USER_AGENT = _user_agent()
"""Begins like that of the Go kubelet, so that what filters by it keeps working."""


T = TypeVar("T", bound=ApiType)
A = TypeVar("A", bound=ApiType)
R = TypeVar("R")

DEADLINE_SECONDS = 30.0
"""For one request and its repetitions. The API server gives up its own work after 60 s."""

WATCH_OVERTIME_SECONDS = 30.0
"""A watch that the server should have ended so long ago is ended here."""

_CONNECT_SHARE = 0.45
"""Of the deadline, for TCP and for TLS each. httpcore closes the socket of a connection that takes
too long, but leaves that of one whose opening is cancelled to the garbage collector."""

_JSON = "application/json"
_IDEMPOTENT = frozenset({"GET", "PUT", "PATCH", "DELETE"})
_BUSY = frozenset({429, 503})
LARGE_BYTES = 64 << 10
"""Of an answer that is read in a thread; a smaller one takes some milliseconds."""
READERS, READERS_OF_NAMESPACE = 2, 1
"""Threads that read large answers. One of a config map with 40,000 keys takes ten times its bytes
of memory meanwhile."""


@frozen
class _Request:
    """One request. `watch` is for an answer that is a stream."""

    method: str
    target: str
    body: bytes = b""
    content_type: str = _JSON
    watch: bool = False

    @property
    def description(self) -> str:
        """Its name in messages."""
        return f"{self.method} {self.target}"


@frozen(kw_only=True)
class RequestLimits:
    """The limits of requests: `deadline_seconds` count from when the rate lets them go."""

    rate: RateLimit = UNLIMITED
    deadline_seconds: float = DEADLINE_SECONDS


NO_LIMITS = RequestLimits()
"""Requests leave at once; each has the deadline that it has by default."""


class ApiClient:
    """Asks one API server, with one rate limit and one pool of connections.

    `server` is the URL of kubeconfig's cluster; `requests` and `watches` are transports, which
    may be the same, and which `aclose` closes. Errors are ApiError; `open_api_clients` makes the
    clients that an agent needs.
    """

    def __init__(
        self,
        server: str,
        requests: httpx.AsyncBaseTransport,
        watches: httpx.AsyncBaseTransport | None = None,
        *,
        credentials: Credentials = NO_CREDENTIALS,
        limits: RequestLimits = NO_LIMITS,
        clock: Clock | None = None,
    ) -> None:
        self.recovery = Recovery()
        self.on_answer: Callbacks[[str, int | None, float]] = Callbacks()
        self._server = httpx.URL(server)
        self._prefix = self._server.raw_path.rstrip(b"/")
        self._requests = requests
        self._watches = watches or requests
        self._credentials = credentials
        self._limiter = RateLimiter(limits.rate)
        self._readers = FairLimiter(READERS, READERS_OF_NAMESPACE)
        self._deadline_seconds = limits.deadline_seconds
        self._clock = clock or SystemClock()

    async def aclose(self) -> None:
        """Close all connections; requests and watches on the way break."""
        await self._requests.aclose()
        if self._watches is not self._requests:
            await self._watches.aclose()

    async def get(
        self,
        kind: Kind[T],
        name: str,
        namespace: str = "",
        *,
        deadline_seconds: float | None = None,
    ) -> T:
        """Return the object as it is now."""
        if not name:
            raise ApiError(404, "NotFound", f"{kind.resource}: resource name may not be empty")
        request = _Request("GET", kind.path(namespace, name))
        answer = await self._ask(request, deadline_seconds)
        read = partial(read_object, kind.type, answer, request.description, name=name)
        return await self._read(namespace, answer, read)

    async def list(
        self,
        kind: Kind[T],
        selection: Selection = EVERYTHING,
        *,
        limit: int = 0,
        resource_version: str = "",
        continue_: str = "",
    ) -> ListPage[T]:
        """Return what there is, or one page of at most `limit` objects."""
        query = {
            "fieldSelector": selection.fields,
            "labelSelector": selection.labels,
            "limit": limit,
            "resourceVersion": resource_version,
            "continue": continue_,
        }
        request = _Request("GET", _target(kind.path(selection.namespace), query))
        answer = await self._ask(request)
        return await self._read(
            selection.namespace, answer, partial(read_list, kind, answer, request.description)
        )

    @overload
    async def create(
        self, kind: Kind[T], obj: T, namespace: str = "", *, name: str = "", subresource: str = ""
    ) -> T: ...

    @overload
    async def create(
        self,
        kind: Kind[T],
        obj: ApiType,
        namespace: str = "",
        *,
        name: str = "",
        subresource: str = "",
        answer_type: type[A],
    ) -> A: ...

    async def create(
        self,
        kind: Kind[T],
        obj: ApiType,
        namespace: str = "",
        *,
        name: str = "",
        subresource: str = "",
        answer_type: type[A] | None = None,
    ) -> T | A:
        """POST an object, or to a subresource of the object `name`; returns what there is now.

        Without `namespace` an object goes into that of its metadata.
        """
        if kind.namespaced and not namespace:
            namespace = metadata_of(obj).namespace
        path = kind.path(namespace, name, subresource)
        request = _Request("POST", path, write_object(kind, obj))
        answer = await self._ask(request)
        if answer_type is not None:
            return read_object(answer_type, answer, request.description)
        name = metadata_of(obj).name
        read = partial(read_object, kind.type, answer, request.description, name=name)
        return await self._read(namespace, answer, read)

    async def update(self, kind: Kind[T], obj: T, *, subresource: str = "") -> T:
        """PUT an object in the place of the one of its name and namespace."""
        metadata = metadata_of(obj)
        path = kind.path(metadata.namespace, metadata.name, subresource)
        request = _Request("PUT", path, write_object(kind, obj))
        answer = await self._ask(request)
        name = metadata.name
        read = partial(read_object, kind.type, answer, request.description, name=name)
        return await self._read(metadata.namespace, answer, read)

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        namespace: str = "",
        *,
        body: Mapping[str, object],
        type: PatchType = PatchType.STRATEGIC,  # noqa: A002
        subresource: str = "",
    ) -> T:
        """Change parts of an object; returns what it is then."""
        path = kind.path(namespace, name, subresource)
        request = _Request("PATCH", path, dumps(body), type.value)
        answer = await self._ask(request)
        read = partial(read_object, kind.type, answer, request.description, name=name)
        return await self._read(namespace, answer, read)

    async def delete(
        self,
        kind: Kind[T],
        name: str,
        namespace: str = "",
        *,
        grace_seconds: int | None = None,
        uid: str = "",
        resource_version: str = "",
    ) -> None:
        """Delete an object, if it is still of this UID and version, where they are given.

        A pod with a grace above 0 only gets its deletion timestamp: its node deletes it at last.
        """
        same = Preconditions(uid=uid, resource_version=resource_version)
        options = DeleteOptions(
            api_version="v1",
            kind="DeleteOptions",
            grace_period_seconds=grace_seconds,
            preconditions=same if uid or resource_version else None,
        )
        body = dumps(encode(options))
        await self._ask(_Request("DELETE", kind.path(namespace, name), body))

    async def delete_selected(self, kind: Kind[T], selection: Selection) -> int:
        """Delete all objects that selectors leave; returns how many. Raises ValueError for all."""
        if not (selection.fields or selection.labels):
            raise ValueError(f"{kind.resource}: which of them are to be deleted?")
        query = {"fieldSelector": selection.fields, "labelSelector": selection.labels}
        request = _Request("DELETE", _target(kind.path(selection.namespace), query))
        answer = await self._ask(request)

        def count() -> int:
            items = read_json(answer, request.description).get("items")
            return len(items) if isinstance(items, list) else 0

        return await self._read(selection.namespace, answer, count)

    async def _read(self, namespace: str, body: bytes, read: Callable[[], R]) -> R:
        """Read an answer or a frame, in a thread where it is large; raises what `read` raises.

        One of a namespace is read in a thread at a time.
        """
        if len(body) <= LARGE_BYTES:
            return read()
        return await self._readers.share(namespace).run_sync(read)

    async def version(self) -> str:
        """Return the server's `gitVersion`, such as v1.36.3."""
        request = _Request("GET", "/version")
        return str(read_json(await self._ask(request), request.description).get("gitVersion", ""))

    @asynccontextmanager
    async def watch(
        self,
        kind: Kind[T],
        selection: Selection = EVERYTHING,
        *,
        resource_version: str = "",
        send_initial_events: bool = False,
        timeout_seconds: int = 0,
    ) -> AsyncIterator[AsyncIterator[ReceivedFrame[T]]]:
        """Follow changes after a version, on a connection of its own and without a rate limit.

        The iterator ends when the server ends the watch, after `timeout_seconds` at the latest
        where they are given. With `send_initial_events` it begins with what is there. Raises
        ApiError when opened and when iterated. Leaving the block closes the connection.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "fieldSelector": selection.fields,
            "labelSelector": selection.labels,
            "resourceVersion": resource_version,
            "timeoutSeconds": timeout_seconds,
            "sendInitialEvents": "true" if send_initial_events else "",
            "resourceVersionMatch": "NotOlderThan" if send_initial_events else "",
        }
        request = _Request("GET", _target(kind.path(selection.namespace), query), watch=True)
        end = trio.current_time() + timeout_seconds + WATCH_OVERTIME_SECONDS
        response = await self._answer(request, self._deadline_seconds)
        chunks = response.aiter_bytes()
        try:
            until = end if timeout_seconds else float("inf")
            yield WatchFrames(kind, chunks, request.description, until, self._read)
        finally:
            await abandon(chunks)
            await response.aclose()

    async def _ask(self, request: _Request, deadline_seconds: float | None = None) -> bytes:
        """Return the body of a successful answer."""
        await self._limiter.wait()
        response = await self._answer(request, deadline_seconds or self._deadline_seconds)
        return response.content

    async def _answer(self, request: _Request, deadline_seconds: float) -> httpx.Response:
        """Return a successful answer, read to its end unless it is a watch's."""
        with trio.move_on_after(deadline_seconds) as scope:
            connect_seconds = deadline_seconds * _CONNECT_SHARE
            return await self._insist(request, scope, connect_seconds)
        message = f"{request.description}: no answer within {deadline_seconds:g} s"
        raise ApiError(0, DEADLINE_EXCEEDED, message)

    async def _insist(
        self, request: _Request, scope: trio.CancelScope, connect_seconds: float
    ) -> httpx.Response:
        """Ask, and again where that can do no harm; cancelled by `scope` at the deadline."""
        may_be_stale, may_be_refused = request.method == "GET", True
        while True:
            try:
                with thread_wanted():
                    credentials = await self._credentials.headers()
                    response = await self._send(request, credentials, connect_seconds)
                    if response.status_code == httpx.codes.UNAUTHORIZED and may_be_refused:
                        may_be_refused = False
                        if await self._credentials.renew(credentials):
                            continue
            except CredentialError as error:
                raise ApiError(0, "NoCredentials", f"{request.description}: {error}") from error
            except httpx.RequestError as error:
                if may_be_stale and isinstance(error, _CLOSED_BY_SERVER):
                    may_be_stale = False
                    continue
                raise unreachable(error, request.description) from error
            except NoThreadError as error:  # For the lookup of the server's name.
                raise unreachable(error, request.description) from error
            if response.is_success:
                return response
            error_answer = self._refusal(response, request.description)
            pause = error_answer.retry_after_seconds
            patient = request.method in _IDEMPOTENT and response.status_code in _BUSY
            if not patient or pause is None or trio.current_time() + pause >= scope.deadline:
                raise error_answer
            await trio.sleep(pause)

    async def _send(
        self, request: _Request, credentials: Headers, connect_seconds: float
    ) -> httpx.Response:
        headers = [
            ("User-Agent", USER_AGENT),
            ("Accept", _JSON),
            ("Accept-Encoding", "identity" if request.watch else "gzip"),
            *credentials,
        ]
        if request.body:
            headers.append(("Content-Type", request.content_type))
        url = self._server.copy_with(raw_path=self._prefix + request.target.encode("ascii"))
        transport = self._watches if request.watch else self._requests
        began_at = trio.current_time()
        try:
            response = await transport.handle_async_request(
                httpx.Request(
                    request.method,
                    url,
                    headers=headers,
                    content=request.body or None,
                    extensions={"timeout": {"connect": connect_seconds}},
                )
            )
        except Exception:
            self.on_answer.call(request.method, None, trio.current_time() - began_at)
            raise
        self.on_answer.call(request.method, response.status_code, trio.current_time() - began_at)
        if not (request.watch and response.is_success):
            try:
                await response.aread()
            finally:
                await response.aclose()
        return response

    def _refusal(self, response: httpx.Response, request_name: str) -> ApiError:
        return error_from_answer(
            response.status_code,
            response.headers,
            response.content,
            request_name=request_name,
            now_seconds=self._clock.now_ns() / 1e9,
        )


_CLOSED_BY_SERVER = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)


def _target(path: str, query: Mapping[str, Any]) -> str:
    given = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(given)}" if given else path
