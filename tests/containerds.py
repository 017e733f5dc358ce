"""Containerds that tests share.

Tests run in several processes at a time (pytest-xdist). Each process has containerds of its own,
of each version one, from the first test that asks for it to the end of the run: neither tests nor
processes wait for each other, and a version that takes turns with another is not started anew.
"""

import os
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import pytest

from lab import UnavailableError
from lab.containerd import Containerd

ASKED_FOR = os.environ.get("TRIO_KUBELET_CONTAINERD", "")
USUAL = "1.6,2.1"
VERSIONS = tuple((ASKED_FOR or USUAL).split(","))


class Containerds:
    """A context manager that stops them all at its end."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._running: dict[str, Containerd] = {}
        self._unavailable: dict[str, UnavailableError] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def running(self, version: str) -> Containerd:
        """Return the containerd of that version, which runs, with the lab's images.

        Raises UnavailableError if it cannot be had here, LabError if it does not start.
        """
        if version in self._unavailable:
            raise self._unavailable[version]
        if version not in self._running:
            self._running[version] = self._start(version)
        elif self._running[version].pid is None:
            self._running[version].restart()  # A test that failed left it dead.
        return self._running[version]

    def _start(self, version: str) -> Containerd:
        containerd = Containerd(version, self._folders.mktemp("containerd"))
        try:
            containerd.start()
        except UnavailableError as reason:
            self._unavailable[version] = reason
            raise
        self._stack.callback(containerd.stop)
        return containerd
