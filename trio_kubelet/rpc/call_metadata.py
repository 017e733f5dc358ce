"""The metadata of the calls that a block makes, beside that of their channel."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_metadata: ContextVar[Mapping[str, str] | None] = ContextVar("call_metadata", default=None)


@contextmanager
def call_metadata(metadata: Mapping[str, str]) -> Iterator[None]:
    """Send this with each call over a channel in the block."""
    token = _metadata.set(metadata)
    try:
        yield
    finally:
        _metadata.reset(token)


def with_call_metadata(headers: Mapping[str, str]) -> Mapping[str, str]:
    """The headers of a call: those of its channel, and those of the block."""
    added = _metadata.get()
    return headers if added is None else {**headers, **added}
