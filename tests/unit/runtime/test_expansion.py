import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.runtime.config.expansion import expand, expand_all, expand_strictly

ENVIRONMENT = {"A": "1", "EMPTY": "", "REF": "$(A)", "B_2": "two"}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("", ""),
        ("plain", "plain"),
        ("$(A)", "1"),
        ("-$(A)-$(B_2)-", "-1-two-"),
        ("$(A)$(A)", "11"),
        ("$(EMPTY)", ""),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$(REF)", "$(A)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$(A)", "$$(A)"),
        ("$$", "$"),
        ("$", "$"),
        ("a$", "a$"),
        ("$A", "$A"),
        ("$(A", "$(A"),
        ("$(", "$("),
        ("$()", "$()"),
        ("$( A )", "$( A )"),
        ("$($(A)", "$($(A)"),
        ("$(A))", "1)"),
        ("${A}", "${A}"),
        ("€$(A)€", "€1€"),
    ],
)
def test_references_are_replaced_and_all_else_stays(text: str, expanded: str) -> None:
    assert expand(text, ENVIRONMENT.get) == expanded


def test_commands_are_expanded_word_by_word() -> None:
    assert expand_all(("echo", "$(A)", "$$(A)"), ENVIRONMENT) == ["echo", "1", "$(A)"]


def test_a_path_tells_which_values_it_lacks() -> None:
    assert expand_strictly("$(A)/$(B_2)", ENVIRONMENT) == ("1/two", ())
    _, missing = expand_strictly("$(Z)/$(EMPTY)/$(A)", ENVIRONMENT)
    assert missing == ("EMPTY", "Z")


@given(st.text())
def test_doubling_every_dollar_keeps_a_text_as_it_is(text: str) -> None:
    assert expand(text.replace("$", "$$"), ENVIRONMENT.get) == text
