"""`/statusz` and `/flagz`: what the agent is and what it was told (KEP-4827, KEP-4828).

Text for people; as an object for programs that name its kind and version in `Accept`.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

import yaml
from attrs import frozen

from trio_kubelet.k8s.json_text import dumps
from trio_kubelet.server.messages import Request, Response
from trio_kubelet.server.router import ANY, Right, Route

VERSIONS = ("v1beta1", "v1alpha1")
GROUP = "config.k8s.io"
COMPONENT = "kubelet"
WARNING = (
    "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility "
    "guarantees and is for debugging purposes only."
)
_TEXT = ("*/*", "text/*", "text/plain")
_OBJECTS = ("application/json", "application/yaml")
_NOT_ACCEPTABLE = {
    "kind": "Status",
    "apiVersion": "v1",
    "metadata": {},
    "status": "Failure",
    "message": f"only the following media types are accepted: {', '.join(_OBJECTS)}, text/plain",
    "reason": "NotAcceptable",
    "code": 406,
}


@frozen
class ProgramFacts:
    """Facts of the agent: when it was started, versions, and the paths that are not for pods."""

    started_at: datetime
    binary_version: str
    emulation_version: str
    python_version: str
    paths: tuple[str, ...]


def statusz_route(facts: ProgramFacts, now: Callable[[], datetime]) -> Route:
    """`/statusz`."""

    def seconds_up() -> int:
        return int((now() - facts.started_at).total_seconds())

    def lines() -> Sequence[str]:
        minutes, seconds = divmod(seconds_up(), 60)
        hours, minutes = divmod(minutes, 60)
        return (
            "",
            f"Started: {facts.started_at:%a %b %e %H:%M:%S UTC %Y}",
            f"Up: {hours} hr {minutes:02d} min {seconds:02d} sec",
            f"Python version: {facts.python_version}",
            f"Binary version: {facts.binary_version}",
            f"Emulation version: {facts.emulation_version}",
            f"Paths: {' '.join(facts.paths)}",
        )

    def fields() -> Mapping[str, object]:
        return {
            "startTime": f"{facts.started_at:%Y-%m-%dT%H:%M:%SZ}",
            "uptimeSeconds": seconds_up(),
            "pythonVersion": facts.python_version,
            "binaryVersion": facts.binary_version,
            "emulationVersion": facts.emulation_version,
            "paths": list(facts.paths),
        }

    return _page("Statusz", Right(subresource="statusz"), lines, fields)


def flagz_route(flags: Callable[[], Mapping[str, str]]) -> Route:
    """`/flagz`; `flags` are their values by their names."""

    def lines() -> Sequence[str]:
        return [f"{name} {value}" for name, value in sorted(flags().items())]

    right = Right(subresource="configz")
    return _page("Flagz", right, lines, lambda: {"flags": dict(sorted(flags().items()))})


def _page(
    kind: str,
    right: Right,
    lines: Callable[[], Sequence[str]],
    fields: Callable[[], Mapping[str, object]],
) -> Route:
    async def answer(request: Request) -> Response:
        wanted = wanted_form(request.headers.first("accept"), kind)
        if wanted is None:
            body = dumps(_NOT_ACCEPTABLE)
            return Response(status=406, content_type="application/json", body=body)
        media_type, version = wanted
        if media_type == "text/plain":
            text = "\n".join(("", f"{COMPONENT} {kind.lower()}", WARNING, *lines(), ""))
            return Response(body=text.encode(errors="replace"))
        found = {
            "kind": kind,
            "apiVersion": f"{GROUP}/{version}",
            "metadata": {"name": COMPONENT},
            **fields(),
        }
        is_json = media_type == "application/json"
        return Response(
            content_type=f"{media_type};g={GROUP};v={version};as={kind}",
            body=dumps(found) if is_json else yaml.safe_dump(found).encode(),
        )

    return Route(ANY, f"/{kind.lower()}", answer, right)


def wanted_form(accept: str, kind: str) -> tuple[str, str] | None:
    """The media type, and the version of the object; None if nothing that there is is accepted."""
    if not accept.strip():
        return "text/plain", ""
    for each in accept.split(","):
        media_type, *parameters = (part.strip() for part in each.split(";"))
        named = dict(part.split("=", 1) for part in parameters if "=" in part)
        if media_type in _TEXT:
            return "text/plain", ""
        is_kind = (named.get("as"), named.get("g")) == (kind, GROUP)
        if media_type in _OBJECTS and is_kind and named.get("v") in VERSIONS:
            return media_type, named["v"]
    return None
