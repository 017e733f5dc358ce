"""Why an object that a pod refers to cannot be had, in the words that users know."""


class ObjectError(Exception):
    """An object cannot be had; `str` of it is the message that users see."""


class ObjectNotFoundError(ObjectError):
    """The API server says that there is no such object: an optional reference may do without."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f'{kind} "{name}" not found')
