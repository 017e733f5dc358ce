"""Credentials for registries from the files that container tools share.

`config.json` (Docker's format, with `auths`) and the older `.dockercfg` are looked for in the
root folder and in the home folder. An image takes the entries whose registry, and path if they
have one, match; the most exact first. Nothing here ever logs a secret.
"""

import base64
import binascii
import fnmatch
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import structlog
from attrs import field, frozen

from trio_kubelet.k8s.image_reference import InvalidReferenceError, parse_reference

log = structlog.get_logger("credentials")

_DOCKER_HUB = frozenset({"index.docker.io", "docker.io", "registry-1.docker.io"})


@frozen(kw_only=True)
class Credentials:
    """A user name and password, or a token. Secrets are not in its repr."""

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)


@frozen
class Keyring:
    """Credentials by the registry (and path) that they are for."""

    entries: Mapping[str, Credentials]

    def lookup(self, image: str) -> tuple[Credentials, ...]:
        """The credentials for an image, the most exact first; empty if there are none."""
        try:
            repository = parse_reference(image).repository
        except InvalidReferenceError:
            return ()
        matching = [key for key in self.entries if matches(key, repository)]
        return tuple(self.entries[key] for key in sorted(matching, key=len, reverse=True))


def matches(key: str, repository: str) -> bool:
    """Whether an entry is for a repository such as `registry.example.com:5000/team/image`.

    The host may have globs in its parts (`*.example.com`), the path is a prefix.
    """
    host, _, path = _without_scheme(key).partition("/")
    registry, _, name = repository.partition("/")
    if host in _DOCKER_HUB and registry in _DOCKER_HUB:
        return _is_prefix(path.removeprefix("v1").strip("/"), name)
    if not _host_matches(host, registry):
        return False
    return _is_prefix(path.removeprefix("v1").removeprefix("v2").strip("/"), name)


def _without_scheme(key: str) -> str:
    if "://" not in key:
        return key
    parts = urlsplit(key)
    return parts.netloc + parts.path


def _is_prefix(path: str, name: str) -> bool:
    return not path or name == path or name.startswith(path + "/")


def _host_matches(pattern: str, host: str) -> bool:
    pattern_name, _, pattern_port = pattern.partition(":")
    name, _, port = host.partition(":")
    if pattern_port != port:
        return False
    wanted, given = pattern_name.split("."), name.split(".")
    return len(wanted) == len(given) and all(
        fnmatch.fnmatchcase(part, glob) for part, glob in zip(given, wanted, strict=True)
    )


def parse_keyring(text: str) -> Keyring:
    """Read either format. Raises ValueError for what is neither."""
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("must be a JSON object")
    auths = document.get("auths", document)
    if not isinstance(auths, dict):
        raise ValueError("auths: must be an object")
    return Keyring(dict(_entries(auths)))


def _entries(auths: Mapping[str, object]) -> Iterator[tuple[str, Credentials]]:
    for key, entry in auths.items():
        if not isinstance(entry, dict):
            continue
        username = str(entry.get("username", ""))
        password = str(entry.get("password", ""))
        if encoded := entry.get("auth"):
            username, password = _decoded(key, str(encoded))
        token = str(entry.get("identitytoken", ""))
        if username or token:
            yield (
                key,
                Credentials(username=username, password=password, identity_token=token),
            )


def _decoded(key: str, encoded: str) -> tuple[str, str]:
    try:
        username, colon, password = base64.b64decode(encoded).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise ValueError(f"auths[{key!r}].auth: is not base64") from None
    if not colon:
        raise ValueError(f"auths[{key!r}].auth: must be <user>:<password>, encoded")
    return username, password.rstrip("\0")


def credential_files(root_directory: str, home: str) -> tuple[Path, ...]:
    """Where credentials are looked for, in this order; the first file that is there counts."""
    return (
        Path(root_directory, "config.json"),
        Path(home, ".docker", "config.json"),
        Path(root_directory, ".dockercfg"),
        Path(home, ".dockercfg"),
    )


def read_keyring(files: Iterable[Path]) -> Keyring:
    """The keyring of the first file that can be read; empty if there is none. Blocking."""
    for path in files:
        try:
            text = path.read_text()
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("credentials not read", path=str(path), error=error.strerror)
            continue
        try:
            return parse_keyring(text)
        except ValueError:
            # The error of the JSON parser may quote what it stumbled over.
            log.warning("credentials not understood", path=str(path))
    return Keyring({})
