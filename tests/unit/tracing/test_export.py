"""Spans on their way: to a collector and to a runtime, both real servers of gRPC."""

import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpclib.server
import httpx
import pytest
import trio
from grpclib.const import Cardinality, Handler
from structlog.testing import capture_logs

from tests.trio_clock import TrioClock
from tests.unit.server.serving import client
from trio_kubelet.agent import traces as agent_traces
from trio_kubelet.agent.traces import (
    Traces,
    make_traces,
    traced_requests,
    traced_routes,
    traced_transport,
)
from trio_kubelet.config import KubeletConfiguration, Settings
from trio_kubelet.config.parts import TracingConfiguration
from trio_kubelet.k8s import NODES
from trio_kubelet.k8s.client import ApiClient, ApiError
from trio_kubelet.rpc import Channel, Code, InProcess, RpcError, open_rpc_loop, serve
from trio_kubelet.rpc.loop import RpcLoop
from trio_kubelet.rpc.stubs.opentelemetry.proto.collector.trace import v1 as collector
from trio_kubelet.rpc.stubs.opentelemetry.proto.trace import v1 as otlp
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.server import Request, RequestError, Response, Route, route_requests
from trio_kubelet.server.router import ADMIN
from trio_kubelet.tracing import Span, SpanQueue, Tracer, exporter
from trio_kubelet.tracing.exporter import TraceExporter
from trio_kubelet.tracing.tracer import MILLION

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ABOUT = {"service.name": "kubelet", "host.name": "node-1"}


class Collector:
    """Takes spans, or refuses some of them, or all."""

    def __init__(self) -> None:
        self.requests: list[collector.ExportTraceServiceRequest] = []
        self.error: RpcError | None = None
        self.rejected = 0
        self.taken = trio.Event()
        self.hangs = False

    async def export(
        self, request: collector.ExportTraceServiceRequest
    ) -> collector.ExportTraceServiceResponse:
        await trio.lowlevel.checkpoint()
        self.taken.set()
        if self.hangs:
            await trio.sleep_forever()
        if self.error is not None:
            raise self.error
        self.requests.append(request)
        if not self.rejected:
            return collector.ExportTraceServiceResponse()
        return collector.ExportTraceServiceResponse(
            partial_success=collector.ExportTracePartialSuccess(
                rejected_spans=self.rejected, error_message="no room"
            )
        )

    @property
    def spans(self) -> list[otlp.Span]:
        return [
            span
            for request in self.requests
            for about in request.resource_spans
            for scope in about.scope_spans
            for span in scope.spans
        ]


@pytest.fixture(autouse=True)
def sends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "PERIOD_SECONDS", 0.0)


@pytest.fixture
async def rpc_loop() -> AsyncIterator[RpcLoop]:
    async with open_rpc_loop() as loop:
        yield loop


@asynccontextmanager
async def collecting(tmp_path: Path, service: Collector) -> AsyncIterator[str]:
    """The endpoint of a collector on a unix socket."""
    async with trio.open_nursery() as nursery:
        path = await nursery.start(
            partial(serve, contracts=(collector.TraceServiceBase,)),
            [service],
            tmp_path / "collector.sock",
        )
        with trio.fail_after(120):
            yield f"unix://{path}"
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def exporting(queue: SpanQueue, endpoint: str) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(TraceExporter(queue, ABOUT).run, partial(Channel, endpoint))
        yield
        nursery.cancel_scope.cancel()


async def until(is_so: Callable[[], object]) -> None:
    with trio.fail_after(120):
        while not is_so():
            await trio.lowlevel.checkpoint()


def odd_work(tracer: Tracer) -> tuple[Span, Span]:
    """A span that fails, and a good one that is a part of it."""
    attributes: dict[str, str | int] = {"text": "a\udc80", "number": -7}
    with suppress(ValueError), tracer.span("sync") as sync:
        with tracer.span("call", attributes=attributes) as call:
            pass
        raise ValueError("odd")
    return sync, call


async def test_spans_come_to_the_collector_as_they_were(rpc_loop: RpcLoop, tmp_path: Path) -> None:
    service, queue = Collector(), SpanQueue()
    tracer = Tracer(TrioClock(), MILLION, queue.put)
    async with collecting(tmp_path, service) as endpoint, exporting(queue, endpoint):
        sync, call = odd_work(tracer)
        await until(lambda: len(service.spans) == 2)
    about = service.requests[0].resource_spans[0].resource.attributes
    assert {each.key: each.value.string_value for each in about} == ABOUT
    found = {each.name: each for each in service.spans}
    assert found["call"].trace_id == sync.context.trace_id.to_bytes(16, "big")
    assert found["call"].parent_span_id == found["sync"].span_id
    assert found["sync"].span_id == sync.context.span_id.to_bytes(8, "big")
    assert found["sync"].parent_span_id == b""
    assert found["call"].start_time_unix_nano == call.began_at_ns
    assert found["call"].end_time_unix_nano == call.ended_at_ns
    values = {each.key: each.value.to_dict() for each in found["call"].attributes}
    assert values == {"text": {"stringValue": "a?"}, "number": {"intValue": "-7"}}
    assert found["sync"].status.code == otlp.StatusStatusCode.STATUS_CODE_ERROR
    assert found["sync"].status.message == "ValueError: odd"
    assert found["call"].status.code == otlp.StatusStatusCode.STATUS_CODE_UNSET
    assert found["call"].kind == otlp.SpanSpanKind.SPAN_KIND_INTERNAL


async def test_spans_that_are_not_taken_are_counted_and_told_once(
    rpc_loop: RpcLoop, tmp_path: Path
) -> None:
    service, queue, dropped = Collector(), SpanQueue(), list[int]()
    queue.on_dropped.add(dropped.append)
    tracer = Tracer(TrioClock(), MILLION, queue.put)

    def trace() -> None:
        with tracer.span("s"):
            pass

    service.error = RpcError(Code.UNAVAILABLE, "full")
    with capture_logs() as logs:
        async with collecting(tmp_path, service) as endpoint, exporting(queue, endpoint):
            for count in (1, 2):
                trace()
                await until(lambda count=count: sum(dropped) == count)  # type: ignore[misc]
            service.error = None
            trace()
            await until(lambda: len(service.spans) == 1)
            service.rejected = 1
            for count in (3, 4):
                trace()
                await until(lambda count=count: sum(dropped) == count)  # type: ignore[misc]
    assert [each["event"] for each in logs] == [
        "trace export failed",
        "traces are exported again",
        "trace collector rejected spans",
    ]


async def test_a_collector_that_is_away_holds_nobody_up(rpc_loop: RpcLoop, tmp_path: Path) -> None:
    queue, dropped = SpanQueue(), list[int]()
    queue.on_dropped.add(dropped.append)
    tracer = Tracer(TrioClock(), MILLION, queue.put)
    async with exporting(queue, f"unix://{tmp_path}/nobody.sock"):
        for _ in range(10):
            with tracer.span("s"):
                pass
        await until(lambda: sum(dropped) == 10)
    assert len(queue) == 0


@asynccontextmanager
async def collecting_in_the_network(
    rpc_loop: RpcLoop, service: Collector, address: str
) -> AsyncIterator[int]:
    """The port of a collector at an address."""

    class Service(collector.TraceServiceBase):
        async def export(
            self, request: collector.ExportTraceServiceRequest
        ) -> collector.ExportTraceServiceResponse:
            service.requests.append(request)
            return collector.ExportTraceServiceResponse()

    server = grpclib.server.Server([Service()])
    await rpc_loop.run(server.start(address, 0))
    listening: Any = server._server
    yield listening.sockets[0].getsockname()[1]
    server.close()
    await rpc_loop.run(server.wait_closed())


async def test_a_collector_in_the_network_is_found_by_its_port(rpc_loop: RpcLoop) -> None:
    service = Collector()
    async with collecting_in_the_network(rpc_loop, service, "127.0.0.1") as port:
        traces = traces_to(f"127.0.0.1:{port}")
        async with traces.sent():
            with traces.tracer.span("s"):
                pass
            await until(lambda: service.spans)
    about = service.requests[0].resource_spans[0].resource.attributes
    assert {each.key: each.value.string_value for each in about}.items() >= {
        ("service.name", "kubelet"),
        ("host.name", "node-1"),
    }


async def test_what_is_done_while_the_agent_ends_is_sent_before_it_has_ended(
    rpc_loop: RpcLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "PERIOD_SECONDS", 3600.0)
    service = Collector()
    async with collecting(tmp_path, service) as endpoint:
        traces = traces_to(endpoint)
        with trio.CancelScope() as agent:
            async with traces.sent():
                with traces.tracer.span("sync"):
                    agent.cancel()
                    await trio.sleep_forever()
    assert [each.name for each in service.spans] == ["sync"]


async def test_a_collector_that_hangs_holds_the_end_up_for_no_longer_than_its_bound(
    rpc_loop: RpcLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_traces, "END_SECONDS", 0.1)
    service = Collector()
    service.hangs = True
    with capture_logs() as logs:
        async with collecting(tmp_path, service) as endpoint:
            traces = traces_to(endpoint)
            async with traces.sent():
                with traces.tracer.span("sync"):
                    pass
    assert [each["event"] for each in logs] == ["last traces were not sent in time"]


async def test_the_end_waits_for_no_resolver_that_hangs(
    rpc_loop: RpcLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_traces, "END_SECONDS", 0.1)
    asked, ended, were_waited_for = threading.Event(), threading.Event(), list[str]()

    def hang(host: str, *_: object, **__: object) -> list[Any]:
        asked.set()
        if not ended.wait(20):
            were_waited_for.append(host)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    traces = traces_to("collector.invalid:4317")
    async with traces.sent():
        with traces.tracer.span("sync"):
            pass
        await until(asked.is_set)
    ended.set()
    assert were_waited_for == []


async def test_the_next_address_of_a_collector_is_tried_where_one_does_not_answer(
    rpc_loop: RpcLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Collector()
    async with collecting_in_the_network(rpc_loop, service, "127.0.0.2") as port:
        found = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in ("127.0.0.3", "127.0.0.2")
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        traces = traces_to(f"collector.invalid:{port}")
        async with traces.sent():
            with traces.tracer.span("sync"):
                pass
            await until(lambda: service.spans)


def traces_to(endpoint: str | None = None, rate: int | None = MILLION) -> Traces:
    tracing = TracingConfiguration(endpoint=endpoint, sampling_rate_per_million=rate)
    settings = Settings(configuration=KubeletConfiguration(tracing=tracing))
    traces = make_traces(settings, TrioClock(), "node-1")
    assert traces is not None
    return traces


def waiting(traces: Traces) -> list[Span]:
    return list(traces.queue._spans)


def test_without_tracing_nothing_is_made() -> None:
    assert make_traces(Settings(configuration=KubeletConfiguration()), TrioClock(), "n") is None
    transport, routes = InProcess(), (Route("GET", "/x", answer, ADMIN),)
    assert traced_transport(transport, None) is transport
    assert traced_routes(routes, None) is routes


class Runtime:
    """A runtime that keeps the metadata of its calls."""

    def __init__(self) -> None:
        self.metadata: list[Mapping[str, Any]] = []

    def __mapping__(self) -> Mapping[str, Handler]:
        async def version(stream: Any) -> None:
            await stream.recv_message()
            self.metadata.append(dict(stream.metadata))
            await stream.send_message(cri.VersionResponse(runtime_name="fake"))

        async def containers(stream: Any) -> None:
            await stream.recv_message()
            self.metadata.append(dict(stream.metadata))
            await stream.send_message(cri.StreamContainersResponse(containers=[cri.Container("c")]))

        return {
            "/runtime.v1.RuntimeService/Version": Handler(
                version, Cardinality.UNARY_UNARY, cri.VersionRequest, cri.VersionResponse
            ),
            "/runtime.v1.RuntimeService/StreamContainers": Handler(
                containers,
                Cardinality.UNARY_STREAM,
                cri.StreamContainersRequest,
                cri.StreamContainersResponse,
            ),
        }


@pytest.mark.parametrize("rate", [MILLION, 0])
async def test_the_runtime_is_told_whose_part_its_work_is(
    rpc_loop: RpcLoop, tmp_path: Path, rate: int
) -> None:
    runtime, traces = Runtime(), traces_to(rate=rate)
    server = grpclib.server.Server([runtime])
    await rpc_loop.run(server.start(path=str(tmp_path / "runtime.sock")))
    channel = Channel(f"unix://{tmp_path}/runtime.sock", {"containerd-namespace": "k8s.io"})
    client = RuntimeClient(traced_transport(channel, traces), streams_lists=True)
    with traces.tracer.span("syncPod") as sync, trio.fail_after(120):
        await client.version()
        assert len(await client.list_containers()) == 1
        with pytest.raises(RpcError) as refused:
            await client.status()
    server.close()
    await rpc_loop.run(server.wait_closed())
    trace = f"00-{sync.context.trace_id:032x}-"
    assert [each["containerd-namespace"] for each in runtime.metadata] == ["k8s.io"] * 2
    assert all(each["traceparent"].startswith(trace) for each in runtime.metadata)
    if rate == 0:
        assert all(each["traceparent"].endswith("-00") for each in runtime.metadata)
        assert waiting(traces) == []
        return
    found = waiting(traces)
    assert [each.name for each in found] == [
        "runtime.v1.RuntimeService/Version",
        "runtime.v1.RuntimeService/StreamContainers",
        "runtime.v1.RuntimeService/Status",
        "syncPod",
    ]
    assert {each.parent_id for each in found[:3]} == {sync.context.span_id}
    assert [each["traceparent"] for each in runtime.metadata] == [
        each.context.traceparent for each in found[:2]
    ]
    assert [each.attributes["rpc.grpc.status_code"] for each in found[:3]] == [
        0,
        0,
        refused.value.code,
    ]
    assert found[2].error == str(refused.value)


async def answer(request: Request) -> Response:
    await trio.lowlevel.checkpoint()
    status = int(request.parameters["status"])
    if request.query.first("raise"):
        raise RequestError(status, "as asked")
    return Response(status=status, body=b"x")


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("/say/200", 200, ""),
        ("/say/404?raise=1", 404, ""),
        ("/say/500", 500, "status 500"),
        ("/say/503?raise=1", 503, "status 503"),
    ],
)
async def test_a_request_is_a_part_of_what_its_client_does(
    path: str, status: int, error: str
) -> None:
    traces = traces_to(rate=0)
    routes = traced_routes([Route("GET", "/say/{status}", answer, ADMIN)], traces)
    async with client(route_requests(routes)) as asking:
        response: httpx.Response = await asking.get(path, headers={"traceparent": PARENT})
        assert response.status_code == status
        await asking.get("/say/200")
    (span,) = waiting(traces)
    assert span.name == "GET /say/{status}"
    assert f"{span.parent_id:016x}" in PARENT
    assert f"{span.context.trace_id:032x}" in PARENT
    assert span.attributes["http.response.status_code"] == status
    assert span.error == error


async def test_the_api_server_is_told_whose_part_a_request_is() -> None:
    asked: list[httpx.Request] = []

    async def respond(request: httpx.Request) -> httpx.Response:
        await trio.lowlevel.checkpoint()
        asked.append(request)
        if request.url.path.endswith("/away"):
            raise httpx.ConnectError("nobody is there", request=request)
        status = 200 if request.url.path.endswith("/here") else 404
        return httpx.Response(status, json={"metadata": {"name": "here"}})

    traces = traces_to()
    transport = traced_requests(httpx.MockTransport(respond), traces)
    api = ApiClient("https://api.test", transport)
    with traces.tracer.span("syncPod") as sync:
        await api.get(NODES, "here")
        for name in ("gone", "away"):
            with pytest.raises(ApiError):
                await api.get(NODES, name)
    *found, _ = waiting(traces)
    assert [each.headers["traceparent"] for each in asked] == [
        each.context.traceparent for each in found
    ]
    assert {(each.name, each.parent_id) for each in found} == {("HTTP GET", sync.context.span_id)}
    assert {each.attributes["server.address"] for each in found} == {"api.test"}
    assert [each.attributes["url.path"] for each in found] == [
        f"/api/v1/nodes/{name}" for name in ("here", "gone", "away")
    ]
    assert [each.attributes.get("http.response.status_code") for each in found] == [200, 404, None]
    assert [each.error for each in found] == [
        None,
        "status 404",
        "ConnectError: nobody is there",
    ]
    assert traced_requests(transport, None) is transport
