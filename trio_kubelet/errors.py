"""The errors of what cannot be got ready: the agent, or something that a pod needs."""

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
