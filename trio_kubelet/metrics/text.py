"""Prometheus's text format 0.0.4, as a Go kubelet answers scrapers with it, and its routes.

Written here because the client library renames counters that do not end in `_total`, which some
of a kubelet's do, and because a node with a hundred pods has ten thousand lines: this takes a
tenth of the library's time for them.
"""

import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial

from attrs import field, frozen
from prometheus_client import Metric

from trio_kubelet.server.messages import Handler, Request, Response
from trio_kubelet.server.router import ANY, Right, Route
from trio_kubelet.server.writers import AnswerWriters, Write

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Number = int | float

_CREATED = "_created"

Scrape = Callable[[], Awaitable[Callable[[], bytes]]]
"""Gathers metrics as they are now; returns what writes them as text, which blocks."""

WORTH_PACKING_BYTES = 1024
_GZIP = 16 + zlib.MAX_WBITS
_FAST = 1


@frozen
class Family:
    """A metric: its name as it is shown, its type, what it is, and its lines as they are shown."""

    name: str
    type: str
    help: str
    lines: list[str] = field(factory=list)

    def add(self, labels: str, value: Number, time_ms: int | None = None) -> None:
        """Add a sample; `labels` is what `label_text` makes."""
        at = "" if time_ms is None else f" {time_ms}"
        self.lines.append(f"{self.name}{labels} {number_text(value)}{at}")


def label_text(labels: Mapping[str, str]) -> str:
    """Labels with their braces; nothing where there are none."""
    if not labels:
        return ""
    return f"{{{inner_label_text(labels)}}}"


def inner_label_text(labels: Mapping[str, str]) -> str:
    """Labels without their braces."""
    return ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())


def escaped(value: str) -> str:
    """A label's value as it is shown; what is no Unicode is replaced."""
    if not value.isprintable() or "\\" in value or '"' in value:
        value = value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
        value = value.encode(errors="replace").decode()
    return value


def number_text(value: Number) -> str:
    """A number as the format has it."""
    if isinstance(value, int):
        return str(value)
    if value == float("inf"):
        return "+Inf"
    if value == float("-inf"):
        return "-Inf"
    return "NaN" if value != value else repr(value)


def exposition(families: Iterable[Family]) -> bytes:
    """All families that have samples, in the order of their names."""
    parts: list[str] = []
    for family in sorted(families, key=lambda each: each.name):
        if family.lines:
            help_text = family.help.replace("\\", "\\\\").replace("\n", "\\n")
            parts += (f"# HELP {family.name} {help_text}", f"# TYPE {family.name} {family.type}")
            parts += family.lines
    return ("\n".join(parts) + "\n").encode() if parts else b""


def families_of(metrics: Iterable[Metric], shown_as: Mapping[str, str]) -> Iterable[Family]:
    """The client library's counts. `shown_as` has the types that it has no word for."""
    for metric in metrics:
        kind = shown_as.get(metric.name, metric.type)
        is_total = metric.type == "counter"
        name = f"{metric.name}_total" if is_total else metric.name
        family = Family(name, kind, metric.documentation)
        for sample in metric.samples:
            if not sample.name.endswith(_CREATED):
                labels = label_text(sample.labels)
                family.lines.append(f"{sample.name}{labels} {number_text(sample.value)}")
        yield family


def accepts_gzip(accept_encoding: str) -> bool:
    """True if a client takes gzip (Accept-Encoding)."""
    for part in accept_encoding.split(","):
        coding, _, quality = part.strip().lower().partition(";")
        if coding.strip() in ("gzip", "*"):
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def metrics_routes(scrapes: Mapping[str, Scrape], writers: AnswerWriters) -> Sequence[Route]:
    """One route for each path, by any method as in the Go kubelet."""
    right = Right(subresource="metrics")
    return tuple(
        Route(ANY, path, _answer_with(path, scrape, writers), right, is_public=True)
        for path, scrape in scrapes.items()
    )


def _answer_with(path: str, scrape: Scrape, writers: AnswerWriters) -> Handler:
    async def answer(request: Request) -> Response:
        may_pack = accepts_gzip(",".join(request.headers.all("accept-encoding")))

        async def gather() -> Write:
            return partial(_response, await scrape(), may_pack=may_pack)

        return await writers.answer(path, gather, may_pack)

    return answer


def _response(text: Callable[[], bytes], *, may_pack: bool) -> Response:
    body = text()
    if not may_pack or len(body) < WORTH_PACKING_BYTES:
        return Response(content_type=CONTENT_TYPE, body=body)
    headers = (("Content-Encoding", "gzip"),)
    return Response(content_type=CONTENT_TYPE, headers=headers, body=_packed(body))


def _packed(body: bytes) -> bytes:
    packer = zlib.compressobj(_FAST, zlib.DEFLATED, _GZIP)
    return packer.compress(body) + packer.flush()
