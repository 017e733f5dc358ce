"""The agent's HTTP server: a core for all ports and sockets, and the endpoints on it."""

from trio_kubelet.server.endpoints import (
    DEBUGGING_PATHS,
    LOGS_PATH,
    PROFILES_PATH,
    configz_routes,
    disabled_routes,
    healthz_routes,
    journal_routes,
    json_response,
    read_only_routes,
    running_pods_routes,
)
from trio_kubelet.server.limits import Limits
from trio_kubelet.server.listen import listen_tcp, listen_unix
from trio_kubelet.server.messages import Handler, Request, RequestError, Response
from trio_kubelet.server.router import ANY, Route, route_requests
from trio_kubelet.server.serve import serve_http

__all__ = [
    "ANY",
    "DEBUGGING_PATHS",
    "LOGS_PATH",
    "PROFILES_PATH",
    "Handler",
    "Limits",
    "Request",
    "RequestError",
    "Response",
    "Route",
    "configz_routes",
    "disabled_routes",
    "healthz_routes",
    "journal_routes",
    "json_response",
    "listen_tcp",
    "listen_unix",
    "read_only_routes",
    "route_requests",
    "running_pods_routes",
    "serve_http",
]
