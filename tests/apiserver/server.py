"""An API server in memory: a stand-in for tests and for the simulation.

It is asked over HTTP as the real one is, through a transport of httpx without sockets, so that
the client, its retries and its watches are the real ones. It has no tasks and no threads; time is
trio's, names and UIDs come from a seed. Tests play the user through its methods, which are plain
functions, and make it fail through `faults`.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import unquote

import httpx
import orjson
import trio

from tests.apiserver.answers import RefusedError, bad_request, invalid, too_large_version
from tests.apiserver.faults import Faults, ReceivedRequest
from tests.apiserver.reviews import Reviews
from tests.apiserver.rules import Rules, kind_of
from tests.apiserver.selectors import selector
from tests.apiserver.storage import Data, Resource, Storage
from tests.apiserver.watches import WatchStream
from tests.trio_clock import TrioClock
from trio_kubelet.k8s.base import ApiType
from trio_kubelet.k8s.client import ApiClient, PatchType
from trio_kubelet.k8s.codec import decode, encode
from trio_kubelet.k8s.kinds import Kind
from trio_kubelet.tasks.clock import Clock

T = TypeVar("T", bound=ApiType)

URL = "http://apiserver.test"
_DEFAULT_WATCH_SECONDS = 1800.0
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class ApiServer:
    """Objects of all resources, the requests that came, the watches that are open.

    `requests` lists all of them in order. `bookmark_seconds` is how often a watch gets a bookmark.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        seed: int = 0,
        version: str = "v1.36.3",
        bookmark_seconds: float = 60.0,
    ) -> None:
        self.clock = clock or TrioClock()
        self.storage = Storage()
        self.faults = Faults()
        self.reviews = Reviews()
        self.requests: list[ReceivedRequest] = []
        self.watches: list[WatchStream] = []
        self.version = version
        self._bookmark_seconds = bookmark_seconds
        self._rules = Rules(self.storage, self.clock, seed)

    def client(self, **options: Any) -> ApiClient:
        """Return a client of this server; options are those of ApiClient."""
        return ApiClient(URL, self.transport(), clock=self.clock, **options)

    def transport(self) -> httpx.AsyncBaseTransport:
        """Return what carries requests to this server."""
        return _Transport(self)

    def create(self, kind: Kind[T], obj: T, namespace: str = "") -> T:
        """Create an object as a user does."""
        data = encode(obj)
        namespace = namespace or (data.get("metadata") or {}).get("namespace", "")
        if kind.namespaced:
            namespace = namespace or "default"
        return self._decoded(kind, self._rules.create(_resource(kind), namespace, data))

    def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        """Return an object; raises RefusedError if there is none."""
        namespace = _namespace(kind, namespace)
        return self._decoded(kind, self._rules.get(_resource(kind), namespace, name))

    def find(self, kind: Kind[T], name: str, namespace: str = "") -> T | None:
        """Return an object, if there is one."""
        data = self.storage.get(_resource(kind), (_namespace(kind, namespace), name))
        return None if data is None else self._decoded(kind, data)

    def all(self, kind: Kind[T], namespace: str = "") -> tuple[T, ...]:
        """Return all objects of a kind, by namespace and name."""
        found = self.storage.all(_resource(kind), namespace)
        return tuple(self._decoded(kind, data) for data in found)

    def update(self, kind: Kind[T], obj: T, *, subresource: str = "") -> T:
        """Replace an object, or its status."""
        data = encode(obj)
        metadata = data["metadata"]
        namespace = metadata.get("namespace", "")
        return self._decoded(
            kind,
            self._rules.update(_resource(kind), namespace, metadata["name"], subresource, data),
        )

    def patch(
        self,
        kind: Kind[T],
        name: str,
        namespace: str = "",
        *,
        body: Mapping[str, Any],
        subresource: str = "",
    ) -> T:
        """Change an object, or its status, by a strategic merge patch."""
        return self._decoded(
            kind,
            self._rules.patch(
                _resource(kind),
                _namespace(kind, namespace),
                name,
                subresource,
                body,
                PatchType.STRATEGIC,
            ),
        )

    def delete(
        self, kind: Kind[T], name: str, namespace: str = "", *, grace_seconds: int | None = None
    ) -> None:
        """Delete an object; a pod on a node waits for its node, unless the grace is 0."""
        options = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        self._rules.delete(_resource(kind), _namespace(kind, namespace), name, options)

    def bind(self, name: str, node: str, namespace: str = "default") -> None:
        """Give a pod to a node, as the scheduler does."""
        self._rules.bind(namespace, name, node)

    def put_raw(self, kind: Kind[T], data: Data) -> None:
        """Store data as it is: also such as no client can read."""
        self.storage.put(_resource(kind), data)

    def go_away(self) -> None:
        """Begin an outage: connections are refused, those that are open break."""
        self.faults.outage = True
        self.drop_watches()

    def come_back(self) -> None:
        """End the outage."""
        self.faults.outage = False

    def drop_watches(self) -> None:
        """Break all watches; what they have not sent is lost."""
        for stream in tuple(self.watches):
            stream.break_off()

    def end_watches(self) -> None:
        """End all watches in good order."""
        for stream in tuple(self.watches):
            stream.end()

    async def until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        """Wait until a write makes something true; raises trio.TooSlowError."""
        with trio.fail_after(seconds):
            while not condition():
                await self.storage.wait()

    async def handle(self, request: httpx.Request) -> httpx.Response:
        """Answer a request; raises httpx.TransportError where the network would fail."""
        received = _received(request)
        await trio.lowlevel.checkpoint()
        if self.faults.outage:
            raise httpx.ConnectError("connection refused", request=request)
        self.requests.append(received)
        fault = self.faults.take(received)
        if fault is not None and fault.seconds:
            await trio.sleep(fault.seconds)
            if self.faults.outage:
                raise httpx.ReadError("connection reset by peer", request=request)
        try:
            if fault is not None and fault.code:
                raise RefusedError(
                    fault.code, fault.reason, fault.message, retry_after=fault.retry_after
                )
            answer = self._answer(request, received)
        except RefusedError as refusal:
            return _json(refusal.code, refusal.status, refusal.headers)
        if fault is not None and fault.lost:
            raise httpx.ReadError("connection reset by peer", request=request)
        return answer

    def _answer(self, request: httpx.Request, received: ReceivedRequest) -> httpx.Response:
        if request.url.path == "/version":
            return _json(200, {"gitVersion": self.version})
        resource = (_group(request.url.path), received.resource)
        query = request.url.params
        if received.verb == "watch":
            return self._watch(resource, received, query)
        if received.verb == "list":
            return _json(200, self._list(resource, received, query))
        if received.verb == "get":
            return _json(200, self._rules.get(resource, received.namespace, received.name))
        return self._write(resource, received, request)

    def _write(
        self, resource: Resource, received: ReceivedRequest, request: httpx.Request
    ) -> httpx.Response:
        body = orjson.loads(request.content) if request.content else {}
        namespace, name, subresource = received.namespace, received.name, received.subresource
        if received.verb == "delete" and not name:
            matches = _selector(request.url.params)
            return _json(200, self._rules.delete_selected(resource, namespace, matches))
        if received.verb == "delete":
            return _json(200, self._rules.delete(resource, namespace, name, body))
        if received.verb == "create" and received.resource in (
            "tokenreviews",
            "subjectaccessreviews",
        ):
            return _json(201, self.reviews.answer(received.resource, body))
        if received.verb == "create" and subresource == "token":
            return _json(201, self._rules.token(namespace, name, body))
        if received.verb == "create" and subresource == "binding":
            self._rules.bind(namespace, name, body["target"]["name"])
            return _json(201, {"kind": "Status", "apiVersion": "v1", "status": "Success"})
        if received.verb == "create":
            return _json(201, self._rules.create(resource, namespace, body))
        if received.verb == "update":
            return _json(200, self._rules.update(resource, namespace, name, subresource, body))
        patch_type = request.headers["content-type"]
        return _json(
            200, self._rules.patch(resource, namespace, name, subresource, body, patch_type)
        )

    def _list(
        self, resource: Resource, received: ReceivedRequest, query: httpx.QueryParams
    ) -> Data:
        self._check_version(query)
        if "continue" in query:
            page = self.storage.page(query["continue"])
            version, items = page.version, page.items
        else:
            matches = _selector(query)
            version = self.storage.version
            found = self.storage.all(resource, received.namespace)
            items = tuple(data for data in found if matches(data))
        limit = int(query.get("limit", 0)) or len(items)
        metadata: dict[str, Any] = {"resourceVersion": str(version)}
        if items[limit:]:
            metadata["continue"] = self.storage.keep_page(items[limit:], version)
            metadata["remainingItemCount"] = len(items) - limit
        shown = [
            {name: value for name, value in data.items() if name not in ("kind", "apiVersion")}
            for data in items[:limit]
        ]
        kind = kind_of(resource)
        name = kind.kind if kind else "Object"
        return {"kind": f"{name}List", "apiVersion": "v1", "metadata": metadata, "items": shown}

    def _watch(
        self, resource: Resource, received: ReceivedRequest, query: httpx.QueryParams
    ) -> httpx.Response:
        version = self.storage.version
        streaming = query.get("sendInitialEvents") == "true"
        if streaming and not self.faults.streaming_lists:
            raise invalid("sendInitialEvents is forbidden for watch unless WatchList is enabled")
        matches = _selector(query)
        seconds = float(query.get("timeoutSeconds", _DEFAULT_WATCH_SECONDS))
        from_now = streaming or query.get("resourceVersion", "0") in ("", "0")
        stream = WatchStream(
            storage=self.storage,
            resource=resource,
            namespace=received.namespace,
            matches=matches,
            version=version if from_now else int(query["resourceVersion"]),
            until=trio.current_time() + seconds,
            bookmark_seconds=self._bookmark_seconds,
            closed=self._closed,
        )
        if streaming:
            kind = kind_of(resource)
            identity = {"kind": kind.kind, "apiVersion": kind.api_version} if kind else {}
            found = self.storage.all(resource, received.namespace)
            stream.begin_with(tuple(data for data in found if matches(data)), identity)
        self.watches.append(stream)
        return httpx.Response(200, headers={"content-type": "application/json"}, stream=stream)

    def _check_version(self, query: httpx.QueryParams) -> None:
        version = int(query.get("resourceVersion") or 0)
        if version > self.storage.version:
            raise too_large_version(version, self.storage.version)

    def _closed(self, stream: WatchStream) -> None:
        if stream in self.watches:
            self.watches.remove(stream)

    def _decoded(self, kind: Kind[T], data: Data) -> T:
        return decode(kind.type, data)


class _Transport(httpx.AsyncBaseTransport):
    """Carries requests to a server in memory."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        return await self._server.handle(request)


def _received(request: httpx.Request) -> ReceivedRequest:
    query = request.url.query.decode()
    path = [unquote(part) for part in request.url.raw_path.decode().partition("?")[0].split("/")]
    rest = path[3:] if path[1] == "api" else path[4:] if path[1] == "apis" else path[1:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    resource, name, subresource = (*rest, "", "")[:3]
    verb = _VERBS.get(request.method, "")
    if not verb:
        watching = request.url.params.get("watch") == "true"
        verb = "get" if name else "watch" if watching else "list"
    return ReceivedRequest(verb, resource, namespace, name, subresource, query)


def _group(path: str) -> str:
    parts = path.split("/")
    return parts[2] if parts[1] == "apis" else ""


def _selector(query: httpx.QueryParams) -> Callable[[Data], bool]:
    try:
        return selector(query.get("fieldSelector", ""), query.get("labelSelector", ""))
    except ValueError as error:
        raise bad_request(str(error)) from None


def _json(code: int, data: Data, headers: Mapping[str, str] | None = None) -> httpx.Response:
    return httpx.Response(
        code,
        headers={"content-type": "application/json", **(headers or {})},
        content=orjson.dumps(data),
    )


def _resource(kind: Kind[Any]) -> Resource:
    return kind.group, kind.resource


def _namespace(kind: Kind[Any], namespace: str) -> str:
    return (namespace or "default") if kind.namespaced else ""
