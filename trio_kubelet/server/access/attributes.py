"""What a request to the node's server is for the API server's rules; pure.

Every path is a subresource of the Node object, so that a rule of RBAC such as `get` on
`nodes/metrics` opens the metrics and nothing else. Fine-grained paths (KEP-2862) are tried with
their own name first, then as `proxy`, which stands for all the rest. Paths on which something is
run in a pod are a `create` by any method: WebSocket clients use GET, and who may only read must not
run a command.
"""

from collections.abc import Mapping

from attrs import frozen

PROXY = "proxy"

VERBS: Mapping[str, str] = {
    "POST": "create",
    "GET": "get",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}

_SUBRESOURCES: Mapping[str, str] = {
    "stats": "stats",
    "metrics": "metrics",
    "logs": "log",
    "spec": "spec",
    "checkpoint": "checkpoint",
    "statusz": "statusz",
    "flagz": "configz",
}
"""By the first segment of the path; they are no part of `proxy`."""

_FINE_GRAINED: Mapping[str, str] = {
    "pods": "pods",
    "runningpods": "pods",
    "healthz": "healthz",
    "configz": "configz",
}

_RUN_IN_PODS = ("exec", "attach", "run", "portForward")
"""First segments of paths that run something in a pod, or connect a client with it."""


@frozen
class Attributes:
    """What is asked for: a verb, and a subresource of the node."""

    verb: str
    subresource: str


def attributes_of(method: str, path: str, *, fine_grained: bool) -> tuple[Attributes, ...]:
    """Each of these allows the request; `path` is decoded.

    The verb of a method that no rule knows is empty.
    """
    first = path.split("/", 2)[1] if path.startswith("/") else ""
    verb = "create" if first in _RUN_IN_PODS else VERBS.get(method, "")
    return tuple(Attributes(verb, name) for name in _subresources(first, fine_grained))


def _subresources(first: str, fine_grained: bool) -> tuple[str, ...]:
    """Those of a path with this first segment."""
    if first in _SUBRESOURCES:
        return (_SUBRESOURCES[first],)
    if fine_grained and first in _FINE_GRAINED:
        return (_FINE_GRAINED[first], PROXY)
    return (PROXY,)
