"""YAML and JSON text as Kubernetes reads it."""

from typing import Any

import pytest

from trio_kubelet.k8s.documents import MAX_CHARACTERS, MAX_DEPTH, DocumentError, load_documents


def value_of(text: str) -> Any:
    (document,) = load_documents(f"key: {text}".encode())
    return document["key"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("yes", True),
        ("On", True),
        ("y", True),
        ("no", False),
        ("OFF", False),
        ("N", False),
        ("tRUE", "tRUE"),
        ("'yes'", "yes"),
        ('"no"', "no"),
        ("!!str yes", "yes"),
        ("~", None),
        ("Null", None),
        ("", None),
        ("''", ""),
        ("0", 0),
        ("-12", -12),
        ("+7", 7),
        ("1_000", 1000),
        ("0644", 0o644),
        ("0o644", 0o644),
        ("0x1F", 31),
        ("-0b101", -5),
        ("08", 8),
        ("1e3", 1000),
        ("80.0", 80),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1e30", 1e30),
        ("12345678901234567890", 12345678901234567890),
        ("1.2.3", "1.2.3"),
        ("12:30:45", "12:30:45"),
        ("2026-01-31", "2026-01-31"),
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"),
        ("100m", "100m"),
        ("1Gi", "1Gi"),
        ("\n- ", [None]),
        ("0x", "0x"),
        ("=", "="),
        ("!!int '5'", 5),
        ("|\n  two\n  lines", "two\nlines"),
        ("[1, a, {b: c}]", [1, "a", {"b": "c"}]),
    ],
)
def test_a_value_is_what_kubernetes_makes_of_it(text: str, value: Any) -> None:
    read = value_of(text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("key", "text"),
    [("80", "80"), ("on", "true"), ("n", "false"), ("1.5", "1.5"), ("'on'", "on")],
)
def test_keys_become_text(key: str, text: str) -> None:
    assert load_documents(f"{key}: x".encode()) == [{text: "x"}]


def test_documents_are_read_one_by_one_and_empty_ones_left_out() -> None:
    assert load_documents(b"a: 1\n---\n# nothing\n---\nb: 2\n...\n") == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize("data", [b"", b"\n", b"# only a comment\n", b"---\n---\n"])
def test_a_file_without_content_has_no_documents(data: bytes) -> None:
    assert load_documents(data) == []


def test_a_byte_order_mark_is_no_content() -> None:
    assert load_documents(b"\xef\xbb\xbfa: 1") == [{"a": 1}]


def test_text_with_a_brace_in_front_is_json() -> None:
    assert load_documents(b' {"a": [1, 2.5, null, "yes"]}') == [{"a": [1, 2.5, None, "yes"]}]


def test_aliases_repeat_and_merge_keys_fill_in() -> None:
    text = b"""
        base: &base {a: 1, b: 2}
        copy: *base
        more: {b: 3, <<: *base}
        both: {<<: [*base, {a: 9, c: 9}], d: 4}
    """
    (document,) = load_documents(text)
    assert document["copy"] == {"a": 1, "b": 2}
    assert document["more"] == {"a": 1, "b": 3}
    assert document["both"] == {"a": 1, "b": 2, "c": 9, "d": 4}


def nine_times(levels: int) -> str:
    """Aliases of aliases: each level is nine times the one before."""
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x]"]
    for level in range(1, levels):
        items = ", ".join([f"*l{level - 1}"] * 9)
        lines.append(f"l{level}: &l{level} [{items}]")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "line 3, column 1: key 'a' is given twice"),
        ('{"a": 1, "a": 2}', "key 'a' is given twice"),
        ("- 1", "document 1 must be a mapping with apiVersion and kind"),
        ("a: 1\n---\ntext", "document 2 must be a mapping with apiVersion and kind"),
        ("a: *b", "line 1, column 4: alias *b has no anchor before it"),
        ("a: &b [*b]", "line 1, column 8: alias *b has no anchor before it"),
        ("a: !!python/name:os.system x", "is not supported"),
        ("a: !custom {b: c}", "tag !custom is not supported"),
        ("a: !!int x", "'x' does not fit its tag int"),
        ("a: {<<: 1}", "<< merges mappings only"),
        ("? [a]\n: b", "line 1, column 3: a key must be text"),
        ("~: b", "a key must be text"),
        ("a: [1, 2", "while parsing a flow sequence"),
        ("a: b: c", "line 1, column 5: mapping values are not allowed"),
        ("a:\n\t- b", "line 2, column 1"),
        ('{"a": }', "line 1, column 7: Expecting value"),
        ('{"a": NaN}', "NaN is not JSON"),
        ("[" * 100_000, f"nested more than {MAX_DEPTH} levels deep"),
        ('{"a":' * 100_000, f"nested more than {MAX_DEPTH} levels deep"),
        ('{"a":' * 200 + "1" + "}" * 200, f"nested more than {MAX_DEPTH} levels deep"),
        (nine_times(8), "aliases count as what they repeat"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        load_documents(text.encode())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"a: \x00", b"a: \xc3", b"\x89PNG\r\n\x1a\n"])
def test_what_is_no_text_is_refused(data: bytes) -> None:
    with pytest.raises(DocumentError):
        load_documents(data)


def test_aliases_of_long_text_count_as_the_text_that_they_repeat() -> None:
    long = "x" * 500_000
    text = f"text: &t {long}\nlist: [{', '.join(['*t'] * 5000)}]"
    with pytest.raises(
        DocumentError, match=f"more than {MAX_CHARACTERS} characters; aliases count"
    ):
        load_documents(text.encode())
    (document,) = load_documents(f"text: &t {long}\nlist: [*t, *t]".encode())
    assert document["list"] == [long, long]
