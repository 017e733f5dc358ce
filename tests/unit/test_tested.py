"""The page that tells what is tested tells what is."""

import ast
import re
from pathlib import Path

import pytest

from tests.tested import PAGE, TABLE, table

TESTS = Path(__file__).parents[1]
ON_REAL_RUNTIMES = {"integration", "e2e", "guest"}
WITHOUT_TEST = "not tried: "


def test_the_page_has_the_table_of_the_tests() -> None:
    found = TABLE.search(PAGE.read_text())
    assert found is not None
    assert found[0] == table(), "python -m tests.tested"


def rows_of_lifecycles() -> list[tuple[str, str]]:
    """What a pod's spec says, and what the page says of how it is tested."""
    lines = PAGE.read_text().partition("| what | tried by |\n")[2].splitlines()[1:]
    rows = (line.strip("| ").partition(" | ") for line in lines if line.startswith("| "))
    return [(what, how) for what, _, how in rows]


ROWS = rows_of_lifecycles()


def test_the_page_has_rows_of_lifecycles() -> None:
    assert len(ROWS) > 30


@pytest.mark.parametrize(("what", "how"), ROWS, ids=[what for what, _ in ROWS])
def test_what_a_pod_spec_says_is_tried_on_a_real_runtime_or_it_is_said_why_not(
    what: str, how: str
) -> None:
    if how.startswith(WITHOUT_TEST):
        return
    named = re.findall(r"`([^`]+)::(\w+)`", how)
    assert named, what
    for file, test in named:
        assert file.partition("/")[0] in ON_REAL_RUNTIMES
        tree = ast.parse((TESTS / file).read_text())
        assert test in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}
