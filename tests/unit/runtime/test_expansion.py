import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.turns import is_too_long
from trio_kubelet.runtime.config.expansion import (
    MAX_BYTES,
    PATH_MAX_BYTES,
    TooLargeError,
    expand,
    expand_all,
    expand_strictly,
    shown_command,
)

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
        ("$(A)$(A", "1$(A"),
        ("$($$(A", "$($(A"),
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


def test_what_would_be_too_large_is_not_built() -> None:
    values = {"V": "v" * 100}
    assert len(expand("$(V)" * 9, values.get, most_bytes=1000)) == 900
    with pytest.raises(TooLargeError):
        expand("$(V)" * 11, values.get, most_bytes=1000)


def test_words_of_a_command_count_together() -> None:
    word = "x" * 100
    assert len(expand_all([word] * 9, {}, most_bytes=1000)) == 9
    with pytest.raises(TooLargeError):
        expand_all([word] * 10, {}, most_bytes=1000)


def test_a_short_command_of_references_to_a_long_value_is_refused() -> None:
    with pytest.raises(TooLargeError):
        expand_all(["$(V)" * 1000], {"V": "v" * 500_000})
    with pytest.raises(TooLargeError):
        expand_strictly("$(V)" * 1000, {"V": "v" * 500_000})


def test_a_long_command_is_cut_for_a_message() -> None:
    assert shown_command(("sh", "-c", "true")) == "sh -c true"
    assert len(shown_command(["x" * MAX_BYTES] * 3)) == 1024


@pytest.mark.parametrize("text", ["$(" * 20_000, "$(A)" + "$(" * 20_000, "$($$" * 10_000])
def test_references_that_are_never_closed_cost_no_more_than_others(text: str) -> None:
    began = time.thread_time()
    expand(text, ENVIRONMENT.get)
    assert not is_too_long(time.thread_time() - began)


def test_a_path_is_no_longer_than_a_path_can_be() -> None:
    values = {"A": "a" * 100}
    assert len(expand_strictly("$(A)" * 40, values)[0]) == 4000
    with pytest.raises(TooLargeError):
        expand_strictly("$(A)" * (PATH_MAX_BYTES // 100 + 1), values)
