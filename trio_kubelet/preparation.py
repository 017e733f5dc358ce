"""What parts say when they cannot get ready what a pod needs."""

from attrs import frozen


@frozen
class PreparationError(Exception):
    """Something that a pod needs is not there yet. `reason` and `message` become an event."""

    reason: str
    message: str

    def __str__(self) -> str:
        return self.message
