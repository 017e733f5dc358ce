"""Patterns for parts of hosts: as Go's `filepath.Match`, in a time that is known."""

import pytest

from trio_kubelet.runtime.images.host_patterns import part_matches


@pytest.mark.parametrize(
    ("pattern", "part", "expected"),
    [
        ("", "", True),
        ("", "a", False),
        ("*", "", True),
        ("*", "anything", True),
        ("eu-*", "eu-1", True),
        ("eu-*", "us-eu-1", False),
        ("*-eu", "one-eu", True),
        ("*-eu", "one-eu-1", False),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("a*b*c", "a-b-b-c", True),
        ("a*b*c", "a-c-b", False),
        ("*ab*ab*", "abab", True),
        ("*ab*ab*", "aab", False),
        ("?", "", False),
        ("?", "a", True),
        ("*?*a?", "xab", True),
        ("[a-c]", "b", True),
        ("[a-c]", "d", False),
        ("[^a-c]", "d", True),
        ("[^a-c]", "b", False),
        ("[ab-dx]1", "c1", True),
        ("[!a]", "!", True),
        ("[!a]", "b", False),
        (r"[\]]", "]", True),
        (r"[\^a]", "^", True),
        (r"\*", "*", True),
        (r"\*", "a", False),
        ("[", "[", False),
        ("[]", "]", False),
        ("[^", "a", False),
        ("[-]", "-", False),
        ("[a-]", "a", False),
        ("[a-", "a", False),
        ("a\\", "a\\", False),
        ("*[", "a", False),
    ],
)
def test_which_parts_a_pattern_is_for(pattern: str, part: str, expected: bool) -> None:
    assert part_matches(pattern, part) == expected
