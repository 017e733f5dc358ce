"""The problem of a pod of which no config for the runtime can be made."""

from attrs import frozen


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
