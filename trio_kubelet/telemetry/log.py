"""The agent's log: one line an entry on stderr, as text or as JSON.

Modules log with `structlog.get_logger()`, the sentence first, the facts as keywords. Text is for
people: time, level, sentence, `key=value`. JSON has the keys that Kubernetes' programs share
(`ts` in milliseconds, `logger`, `caller`, `msg`, `v`, `err`) and `level`. From `--v=4` on debug
entries are written (`verbosity.py`). With `splitStream` only warnings and errors go to stderr, all
others to stdout.

Writing never waits: what a full pipe does not take is kept (8 MiB at most) and tried again with
the next entry, then dropped and counted. Values under telling names (`token`, `authorization`)
are not written, long ones are cut. Where the journal of systemd reads, each entry has its priority
there.
"""

import atexit
import json
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog
from attrs import frozen

from trio_kubelet.telemetry.verbosity import (
    DEBUG_VERBOSITY,
    calling_frame,
    drop_quiet_debug,
    set_verbosity,
    set_vmodule,
)

if TYPE_CHECKING:
    from trio_kubelet.config import Settings

SECRET_NAMES = frozenset(
    {
        "authorization",
        "bearer_token",
        "cookie",
        "credentials",
        "headers",
        "password",
        "private_key",
        "token",
    }
)
MOST_CHARACTERS = 4096
"""Of one value; some come from containers and have no end."""
MOST_TRACEBACK_CHARACTERS = 64 * 1024
STDOUT = 1
STDERR = 2
QUIET_LEVELS = frozenset({"debug", "info"})
"""The levels that a split log has on stdout."""
PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
"""Levels as syslog numbers them; journalctl shows and filters by them."""
_KEPT_BYTES = 8 * 1024 * 1024
_CHUNK_BYTES = 4096  # what a pipe that polls as writable takes without blocking
_FLUSH_SECONDS = 1.0
STUCK_SECONDS = 30.0
"""A log whose reader takes nothing for so long is stuck."""

Entry = MutableMapping[str, Any]
Renderer = Callable[[Mapping[str, Any]], str]


_writers: list["PatientWriter"] = []


def log_health() -> str:
    """The problem that keeps entries from being written, empty if there is none."""
    seconds = max((writer.seconds_stuck() for writer in _writers), default=0.0)
    return f"nobody has read the log for {seconds:.0f} s" if seconds > STUCK_SECONDS else ""


@frozen
class _Stream:
    """The place of entries, and their form there."""

    render: Renderer
    write: Callable[[str], None]


def configure_logging(settings: "Settings", write: Callable[[str], None] | None = None) -> None:
    """Send the logs of the whole process to stderr and stdout, or to `write`, a line at a time.

    Format, verbosity and streams are `settings.configuration.logging`. Libraries that log with the
    standard library are included from warnings up.
    """
    options = settings.configuration.logging
    is_json = options.format == "json"
    render: Renderer = render_json if is_json else render_text
    _writers.clear()
    errors = _opened(STDERR, render) if write is None else _Stream(render, write)
    by_format = options.options
    splits = by_format.json.split_stream if is_json else by_format.text.split_stream
    infos = _opened(STDOUT, render) if splits and write is None else errors
    structlog.configure(
        processors=[
            drop_quiet_debug,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            _add_frame,
            *((_add_caller,) if is_json else ()),
            _spell_out_exception,
            _hide_secrets,
            _cut_long_values,
            lambda _logger, _name, entry: _rendered(entry, infos, errors),
        ],
        logger_factory=_LineLogger,
        cache_logger_on_first_use=False,
    )
    set_vmodule(options.vmodule)
    set_verbosity(options.verbosity)
    logging.basicConfig(handlers=[_Forward()], level=logging.WARNING, force=True)


def _opened(descriptor: int, render: Renderer) -> _Stream:
    """A stream of this process, which is emptied at its end."""
    if is_journal(descriptor, os.environ):
        render = with_priority(render)
    writer = PatientWriter(descriptor, render)
    _writers.append(writer)
    atexit.register(writer.flush, _FLUSH_SECONDS)
    return _Stream(render, writer.write)


def _rendered(entry: Entry, infos: _Stream, errors: _Stream) -> tuple[tuple[Any, ...], Entry]:
    """The arguments of a method of `_LineLogger`."""
    stream = infos if entry["level"] in QUIET_LEVELS else errors
    return (stream.render(entry), stream.write), {}


def render_text(entry: Mapping[str, Any]) -> str:
    """`2026-01-31T12:00:00.000Z INFO  pod admitted pod=default/web`."""
    moment = datetime.fromtimestamp(entry["timestamp"], UTC)
    stamp = f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
    facts = "".join(
        f" {key}={_word(value)}" for key, value in entry.items() if key not in _FRAME_KEYS
    )
    sentence = _one_line(str(entry.get("event", "")))
    return f"{stamp} {entry['level'].upper():<7} {sentence}{facts}"


def render_json(entry: Mapping[str, Any]) -> str:
    """`{"ts":1769860800000.0,"level":"info","caller":"sync/admission.py:7","msg":"admitted","v":0}`.

    What varies follows, and an error has no `v`.
    """
    level = entry["level"]
    line = {"ts": round(entry["timestamp"] * 1000, 3), "level": level}
    line.update((key, entry[key]) for key in ("logger", "caller") if entry.get(key))
    line["msg"] = str(entry.get("event", ""))
    if level in ("debug", "info", "warning"):
        line["v"] = DEBUG_VERBOSITY if level == "debug" else 0
    line.update(
        ("err" if key == "error" else key, value)
        for key, value in entry.items()
        if key not in _FRAME_KEYS
    )
    return json.dumps(line, default=str, ensure_ascii=False, separators=(",", ":"))


def with_priority(render: Renderer) -> Renderer:
    """Put before each line what the journal takes for its priority and does not show: `<4>`."""
    return lambda entry: f"<{PRIORITIES[entry['level']]}>{render(entry)}"


def is_journal(descriptor: int, environment: Mapping[str, str]) -> bool:
    """True if a stream goes to the journal: systemd says in $JOURNAL_STREAM which one does."""
    try:
        stream = os.fstat(descriptor)
    except OSError:
        return False
    return environment.get("JOURNAL_STREAM") == f"{stream.st_dev}:{stream.st_ino}"


def tell_failure(line: str) -> None:
    """Write to stderr why the agent does not start or ends, which is an error in the journal."""
    priority = f"<{PRIORITIES['error']}>" if is_journal(STDERR, os.environ) else ""
    print(f"{priority}{line}", file=sys.stderr)


class PatientWriter:
    """Writes lines to a file descriptor without ever waiting for its reader.

    Safe to call from any thread.
    """

    __slots__ = (
        *("_dropped", "_fd", "_kept", "_kept_bytes", "_lock", "_poll", "_render"),
        "_taken_at",
    )

    def __init__(self, fd: int, render: Renderer) -> None:
        self._fd = fd
        self._render = render
        self._kept: deque[memoryview] = deque()
        self._kept_bytes = 0
        self._dropped = 0
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._taken_at = time.monotonic()

    def write(self, line: str) -> None:
        """Write `line`, or keep it for later, or count it as lost."""
        with self._lock:
            self._drain(0)
            if self._dropped and not self._kept:
                self._keep(self._render(_lost(self._dropped)))
                self._dropped = 0
            self._keep(line)
            self._drain(0)

    def flush(self, seconds: float) -> None:
        """Wait at most so long for the reader to take what was kept."""
        with self._lock:
            self._drain(seconds)

    def seconds_stuck(self) -> float:
        """The time for which the reader has taken nothing of what there is for it."""
        with self._lock:
            self._drain(0)
            return time.monotonic() - self._taken_at if self._kept else 0.0

    def _keep(self, line: str) -> None:
        data = (line + "\n").encode(errors="backslashreplace")
        if not self._kept:
            self._taken_at = time.monotonic()
        if self._kept_bytes + len(data) > _KEPT_BYTES:
            self._dropped += 1
            return
        self._kept.append(memoryview(data))
        self._kept_bytes += len(data)

    def _drain(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._kept:
            left = max(0.0, deadline - time.monotonic())
            if not self._poll.poll(left * 1000):
                return
            data = self._kept.popleft()
            try:
                written = os.write(self._fd, data[:_CHUNK_BYTES])
            except BlockingIOError:
                written = 0
            except OSError:
                written = len(data)  # nobody reads any more
            self._kept_bytes -= written
            self._taken_at = time.monotonic()
            if written < len(data):
                self._kept.appendleft(data[written:])
            if not written:
                return


class _LineLogger:
    """The sink of structlog's rendered lines, whatever the level."""

    __slots__ = ("name",)

    def __init__(self, name: str = "") -> None:
        self.name = name

    def msg(self, line: str, write: Callable[[str], None]) -> None:
        write(line)

    debug = info = warn = warning = error = exception = critical = fatal = log = msg


class _Forward(logging.Handler):
    """Hands the entries of libraries that use the standard library's logging to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(
            record.levelno,
            record.getMessage(),
            logger=record.name,
            caller=_place(record.pathname, record.lineno),
            exc_info=record.exc_info,
        )


def _lost(count: int) -> Entry:
    return {
        "event": "log entries were dropped, because nobody read them in time",
        "level": "warning",
        "timestamp": time.time(),
        "count": count,
    }


_FRAME_KEYS = frozenset({"caller", "event", "level", "logger", "timestamp"})


def _add_frame(logger: Any, _name: str, entry: Entry) -> Entry:
    entry["timestamp"] = time.time()
    entry.setdefault("logger", logger.name)
    return entry


def _add_caller(_logger: Any, _name: str, entry: Entry) -> Entry:
    frame = calling_frame(sys._getframe(1))
    if frame is not None:
        entry.setdefault("caller", _place(frame.f_code.co_filename, frame.f_lineno))
    return entry


def _place(path: str, line: int) -> str:
    """The folder of a file, its name and a line, as Kubernetes' programs name a caller."""
    return f"{'/'.join(path.rsplit('/', 2)[-2:])}:{line}"


def _spell_out_exception(_logger: Any, _name: str, entry: Entry) -> Entry:
    info = entry.pop("exc_info", None)
    error = sys.exc_info()[1] if info is True else info
    if isinstance(error, tuple):
        error = error[1]
    if isinstance(error, BaseException):
        entry.setdefault("error", f"{type(error).__name__}: {error}")
        entry["traceback"] = structlog.processors.format_exc_info(None, "", {"exc_info": error})[
            "exception"
        ]
    return entry


def _hide_secrets(_logger: Any, _name: str, entry: Entry) -> Entry:
    for name, value in entry.items():
        if name in SECRET_NAMES:
            entry[name] = "<hidden>"
        elif isinstance(value, bytes):
            entry[name] = f"<{len(value)} bytes>"
    return entry


def _cut_long_values(_logger: Any, _name: str, entry: Entry) -> Entry:
    for name, value in entry.items():
        if not isinstance(value, int | float | None):
            most = MOST_TRACEBACK_CHARACTERS if name == "traceback" else MOST_CHARACTERS
            text = value if isinstance(value, str) else str(value)
            if len(text) > most:
                entry[name] = f"{text[:most]}…"
    return entry


def _word(value: Any) -> str:
    text = str(value)
    plain = text and text.isprintable() and not set(text) & set(' "=')
    return text if plain else json.dumps(text, ensure_ascii=False)


def _one_line(text: str) -> str:
    return text if text.isprintable() else json.dumps(text, ensure_ascii=False)[1:-1]
