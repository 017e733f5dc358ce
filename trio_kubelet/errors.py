"""The errors of what cannot be got ready: the agent, a pod's containers, or something they need."""

from collections.abc import Iterable

from attrs import frozen


class StartError(Exception):
    """The agent cannot start: one line that says what is wrong and what to do."""


@frozen
class PreparationError(Exception):
    """Something that a pod needs is not there yet. `reason` and `message` become an event."""

    reason: str
    message: str

    def __str__(self) -> str:
        return self.message


class CollectionError(Exception):
    """Containers or images that nobody needs could not all be removed; the message says why."""


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
