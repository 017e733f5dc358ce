"""The errors of what cannot be got ready: the agent, a pod's containers, or something they need."""

from collections.abc import Iterable
from typing import TypeVar

from attrs import frozen

E = TypeVar("E", bound=BaseException)


class StartError(Exception):
    """The agent cannot start: one line that says what is wrong and what to do."""


@frozen
class PreparationError(Exception):
    """Something that a pod needs is not there yet. `reason` and `message` become an event.

    `is_told`: one has told of it before. `retry_seconds` is how long there is no use in trying
    again; None if that is not known.
    """

    reason: str
    message: str
    is_told: bool = False
    retry_seconds: float | None = None

    def __str__(self) -> str:
        return self.message


@frozen
class PodUnfitError(Exception):
    """A pod cannot run on this node after all; `reason` and `message` are those of its status."""

    reason: str
    message: str

    def __str__(self) -> str:
        return self.message


UNEXPECTED_ADMISSION_ERROR = "UnexpectedAdmissionError"
"""The reason of the rejection of a pod that does not fit, though the scheduler saw room for it."""


def unexpected(why: str) -> str:
    """The Go kubelet's words for a pod that was to get something of the node and cannot."""
    return f"Allocate failed due to {why}, which is unexpected"


class CollectionError(Exception):
    """Containers or images that nobody needs could not all be removed; the message says why."""


def without_frames(error: E) -> E:
    """The error itself, to be kept as a value: without its causes, and the frames it went through.

    They have what was worked on, megabytes of a tenant's for one, and whatever keeps the error:
    that would be a circle, which only a search finds.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def aggregated(errors: Iterable[str]) -> str:
    """Several errors as one text, as Kubernetes joins them: each once, `[one, another]`."""
    distinct = tuple(dict.fromkeys(errors))
    return distinct[0] if len(distinct) == 1 else f"[{', '.join(distinct)}]"


@frozen
class ConfigError(Exception):
    """A container or sandbox cannot be configured; it is tried again later.

    `reason` and `message` are shown as the waiting state of the container; the event is
    `Failed` with `Error: <message>`.
    """

    message: str
    reason: str = "CreateContainerConfigError"

    def __str__(self) -> str:
        return self.message
