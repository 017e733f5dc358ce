"""What the ways to keep objects at hand have in common."""

from typing import Protocol, TypeVar

import trio

from trio_kubelet.k8s import ConfigMap, Secret


class ObjectError(Exception):
    """An object cannot be had; `str` of it is the message that users see."""


class ObjectNotFoundError(ObjectError):
    """The API server says that there is no such object: an optional reference may do without."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f'{kind} "{name}" not found')


T = TypeVar("T", bound=ConfigMap | Secret)
T_co = TypeVar("T_co", bound=ConfigMap | Secret, covariant=True)

Key = tuple[str, str]
"""Namespace and name."""


class Objects(Protocol[T_co]):
    """The objects of one kind that pods here use."""

    @property
    def word(self) -> str:
        """The kind as messages have it: `configmap`, `secret`."""
        ...

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Do what has to be done in the background, for ever."""
        ...

    def use(self, key: Key, uid: str) -> None:
        """A pod begins to use an object."""
        ...

    def release(self, key: Key, uid: str) -> None:
        """A pod uses an object no more."""
        ...

    async def get(self, key: Key) -> T_co:
        """Return an object; may wait. Raises ObjectError."""
        ...
