"""The one exception of the API client, made from whatever the server, or a proxy, answered.

An API server explains a refusal with a `Status` object; a proxy in between answers with HTML or
nothing. Both become an `ApiError` with the HTTP code and a reason in the API's words, so that
callers never look at answers themselves.
"""

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    410: "Gone",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
"""The reason of an answer that names none, by its HTTP code."""

UNREACHABLE = "Unreachable"
DEADLINE_EXCEEDED = "DeadlineExceeded"
UNREADABLE = "UnreadableAnswer"
"""Reasons of our own: no connection, no answer in time, an answer that cannot be read."""

LONGEST_RETRY_AFTER_SECONDS = 3600.0
"""A server that asks for more is asked again all the same."""

_AWAY = frozenset({0, 502, 503, 504})
_RETRIABLE = _AWAY | {429, 500}
_SHOWN_BODY_CHARACTERS = 300


class ApiError(Exception):
    """A request that failed.

    `code` is the HTTP status, 0 where there was no answer; then nobody knows whether the server
    did what it was asked to do. `reason` is `Status.reason` (`NotFound`, `Conflict`, ...),
    `details` are `Status.details` as they came. `retry_after_seconds` is what the server asked
    for, None where it did not.
    """

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(code, reason, message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details: Mapping[str, Any] = details or {}
        self.retry_after_seconds = retry_after_seconds

    def __str__(self) -> str:
        return f"{self.message} ({self.code} {self.reason})" if self.code else self.message

    @property
    def is_not_found(self) -> bool:
        """There is no such object."""
        return self.code == 404

    @property
    def is_already_exists(self) -> bool:
        """An object of this name is there already."""
        return self.code == 409 and self.reason == "AlreadyExists"

    @property
    def is_conflict(self) -> bool:
        """The object has changed meanwhile, or is another one than was meant."""
        return self.code == 409 and self.reason != "AlreadyExists"

    @property
    def is_forbidden(self) -> bool:
        """The server knows who asks, and refuses."""
        return self.code == 403

    @property
    def is_gone(self) -> bool:
        """The resource version is older than what the server remembers."""
        return self.code == 410 or self.reason in ("Expired", "Gone")

    @property
    def is_unreachable(self) -> bool:
        """No answer came: no connection, a broken one, or the deadline passed."""
        return self.code == 0

    @property
    def is_away(self) -> bool:
        """There was no answer, or one of what stands before a server that is away."""
        return self.code in _AWAY

    @property
    def is_retriable(self) -> bool:
        """The same request may succeed later, with nothing changed."""
        return self.code in _RETRIABLE


def error_from_status(status: Mapping[str, Any], code: int = 0) -> ApiError:
    """Make the error that a `Status` object tells of; `code` where it names none."""
    details = status.get("details")
    details = details if isinstance(details, Mapping) else {}
    told = status.get("code")
    if isinstance(told, int) and 100 <= told < 600:
        code = told
    after = details.get("retryAfterSeconds")
    return ApiError(
        code,
        _text(status, "reason") or REASONS.get(code, "Unknown"),
        _text(status, "message") or f"the server answered {code}",
        details=details,
        retry_after_seconds=_seconds(after) if isinstance(after, int | float) else None,
    )


def _text(status: Mapping[str, Any], name: str) -> str:
    value = status.get(name)
    return value if isinstance(value, str) else ""


def _seconds(asked_for: float) -> float | None:
    """The seconds that a server asks to wait, an hour at most; None where it makes no sense."""
    return min(float(asked_for), LONGEST_RETRY_AFTER_SECONDS) if asked_for > 0 else None


def error_from_answer(
    code: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    request_name: str,
    now_seconds: float = 0.0,
) -> ApiError:
    """Make the error of an answer that is not a success.

    `request_name` says in messages what was asked: `GET /api/v1/nodes/n1`. `now_seconds` since the
    epoch is only needed for a `Retry-After` that is a date.
    """
    try:
        status = orjson.loads(body)
    except orjson.JSONDecodeError:
        status = None
    if isinstance(status, dict) and status.get("kind") == "Status":
        error = error_from_status(status, code)
    else:
        text = " ".join(body.decode(errors="replace").split())[:_SHOWN_BODY_CHARACTERS]
        said = f": {text}" if text else ""
        reason = REASONS.get(code, "Unknown")
        error = ApiError(code, reason, f"{request_name}: the server answered {code}{said}")
    after = _retry_after(headers.get("retry-after", ""), now_seconds)
    if after is not None:
        error.retry_after_seconds = after
    return error


def _retry_after(text: str, now_seconds: float) -> float | None:
    if text.isascii() and text.isdigit():
        return min(float(text), LONGEST_RETRY_AFTER_SECONDS)
    try:
        seconds = parsedate_to_datetime(text).timestamp() - now_seconds
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(0.0, seconds), LONGEST_RETRY_AFTER_SECONDS)


def unreachable(error: BaseException, request_name: str) -> ApiError:
    """Say why there was no answer: the first cause that says anything, from the bottom up."""
    said = ""
    cause: BaseException | None = error
    while cause is not None:
        said = str(cause) or said
        if isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[-1]
        else:
            cause = cause.__cause__ or cause.__context__
    return ApiError(0, UNREACHABLE, f"{request_name}: {said or type(error).__name__}")
