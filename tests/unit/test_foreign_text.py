"""Text of others: what can be encoded, and what can be part of a path."""

import pytest

from trio_kubelet.foreign_text import (
    is_path_part,
    is_unicode,
    printable,
    spelled_out,
    without_passwords,
)


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("", True),
        ("a\0b\r\n", True),
        ("é \U0001f600", True),
        ("\ud800x", False),
        ("x\udcff", False),
    ],
)
def test_text_that_can_be_encoded_is_unicode(text: str, valid: bool) -> None:
    assert is_unicode(text) is valid
    assert (spelled_out(text) == text) is valid
    assert spelled_out(text).encode() is not None


def test_lone_surrogates_are_spelled_out() -> None:
    assert spelled_out("a\ud800b\udcff") == r"a\ud800b\udcff"


@pytest.mark.parametrize("text", ["web", "web-0", "a.b", "_", "UID_1", "9", "x" * 253])
def test_a_name_is_part_of_a_path(text: str) -> None:
    assert is_path_part(text)


@pytest.mark.parametrize(
    "text",
    ["", ".", "..", ".hidden", "-x", "a/b", "../up", "a\0", "a\n", "a b", "é", "\ud800", "x" * 254],
)
def test_what_leads_elsewhere_is_no_part_of_a_path(text: str) -> None:
    assert not is_path_part(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:secret@host/pods?at=x@y", "https://<masked>@host/pods?at=x@y"),
        ("x: http://token@host: refused", "x: http://<masked>@host: refused"),
        ("https://me:a@b@host", "https://<masked>@host"),
        ("https://host/a@b", "https://host/a@b"),
        ("/etc/manifests/a@b.yaml", "/etc/manifests/a@b.yaml"),
    ],
)
def test_users_and_passwords_of_urls_are_masked(text: str, shown: str) -> None:
    assert without_passwords(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("é \U0001f600", "é \U0001f600"),
        ("\x1b[2J", "\ufffd[2J"),
        ("a\nb\r", "a\ufffdb\ufffd"),
        ("\u202e\x9b", "\ufffd\ufffd"),
    ],
)
def test_a_terminal_acts_on_nothing_that_is_printable(text: str, shown: str) -> None:
    assert printable(text) == shown
