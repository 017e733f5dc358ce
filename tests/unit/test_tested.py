"""The page that tells what is tested tells what is."""

from tests.tested import PAGE, TABLE, table


def test_the_page_has_the_table_of_the_tests() -> None:
    found = TABLE.search(PAGE.read_text())
    assert found is not None
    assert found[0] == table(), "python -m tests.tested"
