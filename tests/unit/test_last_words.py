"""A test that fails shows the end of what the machine said that it ran on."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import pytest_runtest_makereport


class Machine:
    """Something that tests run on."""

    def __init__(self, said: str) -> None:
        self._said = said

    def last_words(self) -> str:
        return self._said


def sections(outcome: str) -> list[tuple[str, str]]:
    """What pytest shows below a test of two machines, and of something that says nothing."""
    fixtures = {"image": object(), "guest": Machine("panic"), "node": Machine("panic of node")}
    item: Any = SimpleNamespace(funcargs=fixtures)
    call: Any = None
    report = SimpleNamespace(failed=outcome == "failed", sections=[])
    wrapper = pytest_runtest_makereport(item, call)
    next(wrapper)
    with pytest.raises(StopIteration) as ended:
        wrapper.send(report)  # type: ignore[arg-type]
    shown: list[tuple[str, str]] = ended.value.value.sections
    return shown


def test_a_failed_test_shows_the_last_words_of_its_machine_once() -> None:
    assert sections("failed") == [("ends of the logs", "panic")]
    assert sections("passed") == []
