"""The agent's HTTP server: a core for all ports and sockets, and the endpoints on it."""

from trio_kubelet.server.endpoints import (
    DEBUGGING_PATHS,
    NODE_LOGS,
    PROFILES,
    configz_routes,
    disabled_routes,
    healthz_routes,
    journal_routes,
    json_response,
    pod_routes,
    running_pods_routes,
)
from trio_kubelet.server.limits import Limits
from trio_kubelet.server.messages import Handler, Request, RequestError, Response
from trio_kubelet.server.router import ADMIN, ANY, RUN_IN_POD, Right, Route, Router, route_requests
from trio_kubelet.server.serve import listen_tcp, listen_unix, serve_http
from trio_kubelet.server.writers import AnswerWriters

__all__ = [
    "ADMIN",
    "ANY",
    "DEBUGGING_PATHS",
    "NODE_LOGS",
    "PROFILES",
    "RUN_IN_POD",
    "AnswerWriters",
    "Handler",
    "Limits",
    "Request",
    "RequestError",
    "Response",
    "Right",
    "Route",
    "Router",
    "configz_routes",
    "disabled_routes",
    "healthz_routes",
    "journal_routes",
    "json_response",
    "listen_tcp",
    "listen_unix",
    "pod_routes",
    "route_requests",
    "running_pods_routes",
    "serve_http",
]
