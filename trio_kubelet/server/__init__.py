"""What the agent answers over HTTP: health on its own port, pods on the read-only port."""

from trio_kubelet.server.http import Answer, Handler, Question, serve_http
from trio_kubelet.server.listen import listen_tcp, listen_unix
from trio_kubelet.server.routes import (
    Route,
    healthz_routes,
    journal_routes,
    json_answer,
    read_only_routes,
    route,
)

__all__ = [
    "Answer",
    "Handler",
    "Question",
    "Route",
    "healthz_routes",
    "journal_routes",
    "json_answer",
    "listen_tcp",
    "listen_unix",
    "read_only_routes",
    "route",
    "serve_http",
]
