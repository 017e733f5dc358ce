"""What the ways to keep objects at hand have in common."""

from typing import TypeVar

from trio_kubelet.k8s import ConfigMap, Secret


class ObjectError(Exception):
    """An object cannot be had; `str` of it is the message that users see."""


class ObjectNotFoundError(ObjectError):
    """The API server says that there is no such object: an optional reference may do without."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f'{kind} "{name}" not found')


T = TypeVar("T", bound=ConfigMap | Secret)

Key = tuple[str, str]
"""Namespace and name."""
