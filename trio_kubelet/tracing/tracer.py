"""Spans: what was done, when, as a part of what, by the rules of W3C's Trace Context.

A span is sampled if the one that it is a part of is; of those that are a part of nothing, some of a
million are. The current span is a context variable, so that a task that is started for some work
makes its spans as parts of that work, until the work has ended: a task that outlives it begins
traces of its own.
"""

import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import IntEnum

import trio
from attrs import define, field, frozen

from trio_kubelet.tasks.clock import Clock

Attributes = Mapping[str, str | int]

MILLION = 1_000_000
MOST_ATTRIBUTE_CHARACTERS = 1024
SAMPLED = 0x01

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_INVALID_VERSION = "ff"


class SpanKind(IntEnum):
    """The sides of a call; the numbers are those of OTLP."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


@frozen
class SpanContext:
    """The place of a span: what others need to know to be parts of it."""

    trace_id: int
    span_id: int
    sampled: bool

    @property
    def traceparent(self) -> str:
        """The header, or metadata of gRPC, with which a call tells its peer."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"


def parse_traceparent(text: str) -> SpanContext | None:
    """Read such a header; None for one that is not valid, which counts as none."""
    found = _TRACEPARENT.fullmatch(text.strip())
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == _INVALID_VERSION or (version == "00" and more):
        return None
    context = SpanContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & SAMPLED))
    return context if context.trace_id and context.span_id else None


@define
class Span:
    """Something that was done.

    `error` says why it failed, empty if it did not; None leaves it to what is raised.
    """

    name: str
    kind: SpanKind
    context: SpanContext
    parent_id: int
    """0 if it is a part of nothing."""
    began_at_ns: int
    attributes: dict[str, str | int] = field(factory=dict)
    error: str | None = None
    ended_at_ns: int = 0
    """0 as long as it goes on."""

    def note(self, name: str, value: str | int) -> None:
        """Add an attribute. A long text is cut."""
        self.attributes[name] = (
            value[:MOST_ATTRIBUTE_CHARACTERS] if isinstance(value, str) else value
        )


_current: ContextVar[Span | None] = ContextVar("current_span", default=None)


def current_span() -> Span | None:
    """The span that the current task works on, if it has not ended."""
    span = _current.get()
    return span if span is not None and not span.ended_at_ns else None


class Tracer:
    """Makes spans; `on_end` takes those that are sampled, and must neither wait nor raise."""

    def __init__(
        self, clock: Clock, sampled_of_a_million: int, on_end: Callable[[Span], None]
    ) -> None:
        self._clock = clock
        self._on_end = on_end
        self._limit = sampled_of_a_million * (1 << 63) // MILLION
        self._ids = random.Random()  # noqa: S311

    @contextmanager
    def span(
        self,
        name: str,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes | None = None,
        parent: SpanContext | None = None,
    ) -> Iterator[Span]:
        """Make what the body does a span: a part of `parent`, else of the current one.

        What the body raises is its error; being cancelled is an attribute.
        """
        span = self._begin(name, kind, parent)
        for key, value in (attributes or {}).items():
            span.note(key, value)
        token = _current.set(span)
        try:
            yield span
        except trio.Cancelled:
            span.note("cancelled", "true")
            raise
        except BaseException as error:
            span.error = _words(error) if span.error is None else span.error
            raise
        finally:
            _current.reset(token)
            span.ended_at_ns = max(self._clock.now_ns(), span.began_at_ns, 1)
            if span.context.sampled:
                self._on_end(span)

    def _begin(self, name: str, kind: SpanKind, parent: SpanContext | None) -> Span:
        if parent is None:
            current = current_span()
            parent = current.context if current is not None else None
        span_id = self._ids.getrandbits(64) or 1
        if parent is not None:
            context = SpanContext(parent.trace_id, span_id, parent.sampled)
        else:
            trace_id = self._ids.getrandbits(128) or 1
            context = SpanContext(trace_id, span_id, self._is_sampled(trace_id))
        parent_id = parent.span_id if parent is not None else 0
        return Span(name, kind, context, parent_id, self._clock.now_ns())

    def _is_sampled(self, trace_id: int) -> bool:
        """By its number, as all who follow the Go kubelet's rule decide for the same trace."""
        return (trace_id & (1 << 64) - 1) >> 1 < self._limit


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:MOST_ATTRIBUTE_CHARACTERS]
