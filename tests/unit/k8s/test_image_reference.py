"""Image references, short and full."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.k8s.image_reference import (
    MAX_NAME_BYTES,
    InvalidReferenceError,
    is_too_long,
    parse_reference,
    shown_name,
)

DIGEST = "sha256:" + "0" * 64
SHA384 = "sha384:" + "1" * 96
SHA512 = "sha512:" + "a" * 128
FULL = {
    "busybox": "docker.io/library/busybox:latest",
    "busybox:1.36": "docker.io/library/busybox:1.36",
    "docker.io/busybox": "docker.io/library/busybox:latest",
    "index.docker.io/a/b": "docker.io/a/b:latest",
    "a/b": "docker.io/a/b:latest",
    "localhost/a": "localhost/a:latest",
    "registry.test:5000/a/b-c__d:x": "registry.test:5000/a/b-c__d:x",
    f"busybox@{DIGEST}": f"docker.io/library/busybox@{DIGEST}",
    f"busybox:1@{DIGEST}": f"docker.io/library/busybox@{DIGEST}",
    f"busybox@{SHA384}": f"docker.io/library/busybox@{SHA384}",
    f"registry.test/a:1@{SHA512}": f"registry.test/a@{SHA512}",
    "[::1]:5000/a": "[::1]:5000/a:latest",
}


@pytest.mark.parametrize("text", FULL)
def test_short_names_mean_full_ones(text: str) -> None:
    assert str(parse_reference(text)) == FULL[text]


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "a:",
        "A",
        "a b",
        "a//b",
        "-a",
        "a@sha256:1",
        "a:b:c",
        "a/",
        "a:" + "x" * 129,
        "a:٣/b",
    ],
)
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(InvalidReferenceError, match="invalid reference format"):
        parse_reference(text)


@pytest.mark.parametrize(
    ("name", "too_long"),
    [
        ("a" * MAX_NAME_BYTES, False),
        ("a" * (MAX_NAME_BYTES + 1), True),
        ("é" * (MAX_NAME_BYTES // 2), False),
        ("é" * (MAX_NAME_BYTES // 2 + 1), True),
        ("\ud800" * MAX_NAME_BYTES, True),
    ],
)
def test_a_name_that_is_too_long_is_refused_and_shown_in_part(name: str, too_long: bool) -> None:
    assert is_too_long(name) is too_long
    if too_long:
        with pytest.raises(InvalidReferenceError, match="must have at most 4096 bytes"):
            parse_reference(name)
    assert shown_name(name) == (name[:128] + "..." if too_long else name)


@pytest.mark.parametrize(
    ("digest", "why"),
    [
        ("sha512:" + "a" * 64, "invalid checksum digest length"),
        ("sha256:" + "a" * 128, "invalid checksum digest length"),
        ("sha512:" + "A" * 128, "invalid checksum digest format"),
        ("md5:" + "a" * 32, "unsupported digest algorithm"),
        ("sha512:" + "a" * 31, "invalid reference format"),
        ("sha512:" + "g" * 128, "invalid reference format"),
        ("", "invalid reference format"),
    ],
)
def test_a_digest_must_be_one_of_a_known_algorithm(digest: str, why: str) -> None:
    with pytest.raises(InvalidReferenceError, match=f"^{why}$"):
        parse_reference(f"busybox@{digest}")


@given(st.from_regex(r"[a-z0-9.:/@_-]{1,40}", fullmatch=True))
def test_the_full_form_means_itself(text: str) -> None:
    try:
        full = str(parse_reference(text))
    except InvalidReferenceError:
        return
    assert str(parse_reference(full)) == full
