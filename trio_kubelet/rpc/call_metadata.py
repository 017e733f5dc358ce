"""Metadata of calls beside that of their channel, and the callback for when they are sent.

A block sets them for the calls that it makes, whatever transports these go through.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_metadata: ContextVar[Mapping[str, str] | None] = ContextVar("call_metadata", default=None)
_on_sent: ContextVar[Callable[[], None] | None] = ContextVar("on_sent", default=None)


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


@contextmanager
def when_sent(on_sent: Callable[[], None]) -> Iterator[None]:
    """Call this as soon as the request of a call in the block is sent, and kept nowhere any more.

    It is not called for one that fails before.
    """
    token = _on_sent.set(on_sent)
    try:
        yield
    finally:
        _on_sent.reset(token)


def sent_callback() -> Callable[[], None]:
    """The function that a transport calls when it has sent the request of a call in the block."""
    return _on_sent.get() or _do_nothing


def _do_nothing() -> None:
    pass
