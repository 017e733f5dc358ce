"""Requests as spans, parts of what their clients were doing if these say so (`traceparent`)."""

from attrs import evolve

from trio_kubelet.server.messages import Request, RequestError, Response
from trio_kubelet.server.router import Route
from trio_kubelet.tracing import SpanKind, Tracer, parse_traceparent

SWITCHED = 101
FAILED_STATUS = 500


def traced(route: Route, tracer: Tracer) -> Route:
    """A route of which each request is a span, which ends where the response begins.

    Who is not let in comes to no route, and makes no span.
    """

    async def handle(request: Request) -> Response | None:
        attributes = {
            "http.request.method": request.method,
            "http.route": route.pattern,
            "url.path": request.path,
        }
        parent = parse_traceparent(request.headers.first("traceparent"))
        name = f"{route.method} {route.pattern}"
        with tracer.span(name, SpanKind.SERVER, attributes, parent) as span:
            try:
                response = await route.handler(request)
            except RequestError as error:
                span.note("http.response.status_code", error.status)
                span.error = f"status {error.status}" if error.status >= FAILED_STATUS else ""
                raise
            status = SWITCHED if response is None else response.status
            span.note("http.response.status_code", status)
            span.error = f"status {status}" if status >= FAILED_STATUS else ""
            return response

    return evolve(route, handler=handle)
