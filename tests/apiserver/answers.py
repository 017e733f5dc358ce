"""How an API server refuses: the exception within, and the `Status` that it becomes."""

from collections.abc import Mapping
from typing import Any


class RefusedError(Exception):
    """A request is answered with a `Status` of this code and reason."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        retry_after: float | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.details = dict(details or {})

    @property
    def status(self) -> dict[str, Any]:
        """The `Status` object."""
        details = dict(self.details)
        if self.retry_after is not None:
            details["retryAfterSeconds"] = round(self.retry_after)
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": details,
            "code": self.code,
        }

    @property
    def headers(self) -> dict[str, str]:
        """The headers that go with it."""
        return {} if self.retry_after is None else {"retry-after": str(round(self.retry_after))}


def expired(message: str) -> RefusedError:
    """The history that was asked for is forgotten."""
    return RefusedError(410, "Expired", message)


def not_found(resource: str, name: str) -> RefusedError:
    """There is no object of this name."""
    return RefusedError(
        404, "NotFound", f'{resource} "{name}" not found', details={"name": name, "kind": resource}
    )


def conflict(resource: str, name: str, why: str) -> RefusedError:
    """The object is not what the request takes it for."""
    return RefusedError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {resource} "{name}": {why}',
        details={"name": name, "kind": resource},
    )


def already_exists(resource: str, name: str) -> RefusedError:
    """There is an object of this name."""
    return RefusedError(
        409,
        "AlreadyExists",
        f'{resource} "{name}" already exists',
        details={"name": name, "kind": resource},
    )


def invalid(message: str) -> RefusedError:
    """The object is not a valid one."""
    return RefusedError(422, "Invalid", message)


def bad_request(message: str) -> RefusedError:
    """The request makes no sense."""
    return RefusedError(400, "BadRequest", message)


def internal_error(message: str) -> RefusedError:
    """The server says that it failed, of some requests that make no sense, too."""
    return RefusedError(500, "InternalError", message)


def too_large_version(asked: int, current: int) -> RefusedError:
    """A version is asked for that is still to come."""
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return RefusedError(
        504,
        "Timeout",
        f"Too large resource version: {asked}, current: {current}",
        retry_after=1,
        details={"causes": [cause]},
    )
