"""The OpenTelemetry Collector, whose receiver of OTLP nobody here wrote: it takes spans of others.

It passes on as JSON what it has read, batch by batch, to an HTTP server of this process, which
keeps the spans. The Go toolchain builds it from the modules that are pinned in
tests/e2e/tracecollector, for minutes the first time; then it stays in the cache.
"""

import json
import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from lab import LabError
from lab.go_programs import GoModule
from lab.orphans import marked
from lab.packages import default_cache
from lab.ports import free_port
from lab.processes import last_words, wait_until
from lab.started import Started

SOURCE = Path(__file__).parents[1] / "tests" / "e2e" / "tracecollector" / "go.mod"
MODULE = "go.opentelemetry.io/collector/otelcol"
PROGRAM = "collector"
START_DEADLINE_SECONDS = 60
SPANS_DEADLINE_SECONDS = 60
READY = "Everything is ready"
"""The collector's last words before it takes spans."""

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CollectedSpan:
    """A span as the collector has read it; ids as hexadecimal digits, `parent_id` may be empty.

    `about` are the attributes of who sent it.
    """

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    attributes: Mapping[str, str]
    about: Mapping[str, str]


def find(*, cache: Path | None = None) -> Path:
    """Find the collector in the cache, or build it, for minutes.

    UnavailableError without a Go toolchain; LabError if the build fails.
    """
    folder = (cache or default_cache()) / "trace-collector"
    return GoModule(SOURCE, folder, of=MODULE).folder_with((PROGRAM,))[PROGRAM]


class TraceCollector(Started):
    """The collector as a process, its log in `folder`, and the spans that it has read."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "collector.log"
        self._port = free_port()
        self._spans = _Spans()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _receiver(self._spans))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """As `tracing.endpoint` takes it."""
        return f"127.0.0.1:{self._port}"

    @property
    def spans(self) -> tuple[CollectedSpan, ...]:
        """All spans so far, in the order in which they came."""
        return self._spans.so_far()

    def start(self) -> None:
        """Start it; it takes spans when this returns."""
        program = find()
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        configuration = json.dumps(self._configuration())
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [program, f"--config=yaml:{configuration}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=marked(os.environ),
            )
        try:
            wait_until(
                self._is_ready,
                deadline_seconds=START_DEADLINE_SECONDS,
                else_say=lambda: f"the collector does not start: {self.last_words()}",
            )
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the process; the spans stay."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self._server.shutdown()
        self._server.server_close()

    def wait_for(self, wanted: Callable[[CollectedSpan], object]) -> CollectedSpan:
        """Wait for a span, and return the first such one."""
        found: list[CollectedSpan] = []

        def look() -> bool:
            found[:] = filter(wanted, self.spans)
            return bool(found)

        wait_until(
            look,
            deadline_seconds=SPANS_DEADLINE_SECONDS,
            else_say=lambda: f"not among {sorted({each.name for each in self.spans})}",
        )
        return found[0]

    def last_words(self) -> str:
        """The end of its log."""
        return last_words(self._log.read_text(errors="replace"))

    def _is_ready(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise LabError(f"the collector has ended: {self.last_words()}")
        return READY in self._log.read_text(errors="replace")

    def _configuration(self) -> Json:
        sink = f"http://127.0.0.1:{self._server.server_port}"
        return {
            "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": self.endpoint}}}},
            "exporters": {
                "otlphttp": {
                    "endpoint": sink,
                    "encoding": "json",
                    "compression": "none",
                    # Who sends spans is answered when they are here.
                    "sending_queue": {"enabled": False},
                },
            },
            "service": {
                "telemetry": {"metrics": {"level": "none"}},
                "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["otlphttp"]}},
            },
        }


class _Spans:
    """Spans that requests bring, each in a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: list[CollectedSpan] = []

    def add(self, body: Json) -> None:
        found = _spans(body)
        with self._lock:
            self._spans += found

    def so_far(self) -> tuple[CollectedSpan, ...]:
        with self._lock:
            return tuple(self._spans)


def _receiver(spans: _Spans) -> type[BaseHTTPRequestHandler]:
    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            spans.add(json.loads(self.rfile.read(length)))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            """Nothing: the collector's log has what fails."""

    return Receiver


def _spans(body: Json) -> list[CollectedSpan]:
    return [
        CollectedSpan(
            name=span["name"],
            trace_id=span["traceId"],
            span_id=span["spanId"],
            parent_id=span.get("parentSpanId", ""),
            kind=span["kind"],
            attributes=_texts(span.get("attributes", ())),
            about=_texts(resource["resource"].get("attributes", ())),
        )
        for resource in body["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def _texts(attributes: list[Json]) -> dict[str, str]:
    """Attributes with their values as text; OTLP's JSON has integers as text already."""
    return {each["key"]: str(next(iter(each["value"].values()))) for each in attributes}
