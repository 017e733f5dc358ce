"""Image references: the short names that people write, in the full form that a runtime stores.

`busybox` is `docker.io/library/busybox:latest`. A reference has a tag, a digest or both; with a
digest the tag says nothing and is dropped.
"""

import re

from attrs import frozen

_DOMAIN = re.compile(r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]+)?")
_PATH = re.compile(
    r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*)*"
)
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(
    r"(?P<algorithm>[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*):"
    r"(?P<encoded>[0-9A-Fa-f]{32,})"
)
_ENCODED_LENGTHS = {"sha256": 64, "sha384": 96, "sha512": 128}
"""The algorithms of digests, and the length of each one's digests in hexadecimal."""


MAX_NAME_BYTES = 4096
"""Registries have no longer names, of which the Go kubelet takes some 800 bytes at most."""
SHOWN_CHARACTERS = 128
"""Of a name that is longer than any can be."""


class InvalidReferenceError(ValueError):
    """The text is no image reference; the message is the runtime's wording."""


@frozen
class Reference:
    """A full reference: `domain/path`, and a tag or a digest."""

    repository: str
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        return (
            f"{self.repository}@{self.digest}" if self.digest else f"{self.repository}:{self.tag}"
        )

    @property
    def domain(self) -> str:
        """The registry's host, with its port if given."""
        return self.repository.partition("/")[0]


def parse_reference(text: str) -> Reference:
    """The full form of what a person wrote. Raises `InvalidReferenceError`."""
    if is_too_long(text):
        raise InvalidReferenceError(
            f"invalid reference format: must have at most {MAX_NAME_BYTES} bytes"
        )
    name, at, digest = text.partition("@")
    if at:
        _check_digest(digest)
    domain, rest = _domain_and_rest(name)
    path, colon, tag = rest.partition(":")
    if path.lower() != path:
        raise InvalidReferenceError(
            f"invalid reference format: repository name ({path}) must be lowercase"
        )
    valid = (
        _DOMAIN.fullmatch(domain) and _PATH.fullmatch(path) and (not colon or _TAG.fullmatch(tag))
    )
    if not valid:
        raise InvalidReferenceError("invalid reference format")
    if digest:
        return Reference(f"{domain}/{path}", digest=digest)
    return Reference(f"{domain}/{path}", tag=tag or "latest")


def full_image_name(image: str) -> str:
    """Return the full form of a name as text; what is no reference stays as it is written."""
    try:
        return str(parse_reference(image))
    except InvalidReferenceError:
        return image


def is_too_long(text: str) -> bool:
    """True if the text is too long for the name of any image, which nothing is to be done with."""
    return len(text) > MAX_NAME_BYTES or (
        not text.isascii() and len(text.encode(errors="surrogatepass")) > MAX_NAME_BYTES
    )


def shown_name(image: str) -> str:
    """Return the name of an image as statuses and messages have it: one that is too long is cut."""
    return f"{image[:SHOWN_CHARACTERS]}..." if is_too_long(image) else image


def _check_digest(digest: str) -> None:
    match = _DIGEST.fullmatch(digest)
    if match is None:
        raise InvalidReferenceError("invalid reference format")
    length = _ENCODED_LENGTHS.get(match["algorithm"])
    if length is None:
        raise InvalidReferenceError("unsupported digest algorithm")
    if len(match["encoded"]) != length:
        raise InvalidReferenceError("invalid checksum digest length")
    if match["encoded"] != match["encoded"].lower():
        raise InvalidReferenceError("invalid checksum digest format")


def _domain_and_rest(name: str) -> tuple[str, str]:
    first, slash, rest = name.partition("/")
    if not slash:
        return "docker.io", f"library/{name}"
    if "." in first or ":" in first or first == "localhost" or first.lower() != first:
        if first in ("docker.io", "index.docker.io"):
            return "docker.io", rest if "/" in rest else f"library/{rest}"
        return first, rest
    return "docker.io", name


def name_alone(image: str) -> str:
    """Return the name of an image as it is written, without tag and digest.

    The Go kubelet keys its pull records by it, and compares it with its allowlist, since v1.36;
    before, it did both with the full name (`docker.io/library/busybox`).
    """
    name = image.partition("@")[0]
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.partition(":")[0]


def with_default_tag(image: str) -> str:
    """Return the name that the runtime is asked for: with the tag `latest` where there is none."""
    name, at, _digest = image.partition("@")
    tagged = ":" in name.rpartition("/")[2]
    return image if at or tagged else f"{name}:latest"
