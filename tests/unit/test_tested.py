"""The page that tells what is tested tells what is."""

import ast
import re
from itertools import takewhile
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


def rows_below(head: str) -> list[tuple[str, str]]:
    """The rows of a table of the page: what it is about, and which tests try it."""
    lines = PAGE.read_text().partition(f"{head}\n")[2].splitlines()[1:]
    rows = (line.strip("| ").partition(" | ") for line in takewhile(bool, lines))
    return [(what, how) for what, _, how in rows]


def named_tests(how: str) -> list[tuple[str, str]]:
    """The files and the names of the tests in a row."""
    return re.findall(r"`([^`]+)::(\w+)`", how)


def functions_in(file: str) -> set[str]:
    """The names of the functions and methods in a file."""
    tree = ast.parse((TESTS / file).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {each.name for each in ast.walk(tree) if isinstance(each, functions)}


ROWS = rows_below("| what | tried by |")
ATTACKS = rows_below("| attack or failure | test |")


def test_the_page_has_rows_of_lifecycles_and_attacks() -> None:
    assert len(ROWS) > 30
    assert len(ATTACKS) > 15


@pytest.mark.parametrize(("what", "how"), ATTACKS, ids=[what for what, _ in ATTACKS])
def test_what_one_may_do_to_others_has_tests(what: str, how: str) -> None:
    named = named_tests(how)
    assert named, what
    for file, test in named:
        assert test in functions_in(file)


@pytest.mark.parametrize(("what", "how"), ROWS, ids=[what for what, _ in ROWS])
def test_what_a_pod_spec_says_is_tried_on_a_real_runtime_or_it_is_said_why_not(
    what: str, how: str
) -> None:
    if how.startswith(WITHOUT_TEST):
        return
    named = named_tests(how)
    assert named, what
    for file, test in named:
        assert file.partition("/")[0] in ON_REAL_RUNTIMES
        assert test in functions_in(file)
