"""What a test needs and this machine lacks: a reason to skip, and in CI a failure."""

import os
from collections.abc import Mapping
from typing import NoReturn

import pytest

from lab import UnavailableError


def do_without(reason: str, *, asked_for: bool = False) -> NoReturn:
    """Skip the test; UnavailableError if what is missing was `asked_for`, or all has to run."""
    if asked_for or all_must_run(os.environ):
        raise UnavailableError(reason)
    pytest.skip(reason)


def all_must_run(environment: Mapping[str, str]) -> bool:
    """Whether tests run where what they need has to be there: in CI, and so for its commands."""
    return environment.get("CI") == "true" or environment.get("TRIO_KUBELET_E2E") == "local"
