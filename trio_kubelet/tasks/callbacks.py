"""The listeners to a change: functions that are called one after the other."""

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Callbacks(Generic[P]):
    """Functions that the owner calls at each change. They must not block."""

    __slots__ = ("_functions",)

    def __init__(self) -> None:
        self._functions: list[Callable[P, None]] = []

    def add(self, function: Callable[P, None]) -> None:
        """Call the function at each change from now on."""
        self._functions.append(function)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Tell all of them, in the order in which they were added.

        One that fails keeps no other from being told; the first error is raised after the last.
        """
        errors: list[Exception] = []
        for function in self._functions:
            try:
                function(*args, **kwargs)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
