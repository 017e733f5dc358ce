"""The result of one request over HTTP, in whichever version it was made."""

from collections.abc import Sequence

from attrs import frozen


class HttpError(Exception):
    """There is no response. The text is Go's as far as it is known.

    `is_local`: this node could not ask, which says nothing about whom it would have asked.
    `cut_off`: there was a connection, and it broke.
    """

    def __init__(self, message: str, *, is_local: bool = False, cut_off: bool = False) -> None:
        super().__init__(message)
        self.is_local = is_local
        self.cut_off = cut_off


@frozen(kw_only=True)
class ProbeResponse:
    """A response, of whose body no more than the limit was read."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes
