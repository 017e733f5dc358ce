"""Credentials for registries, from the files that container tools share and from pull secrets.

`config.json` (Docker's format, with `auths`) and the older `.dockercfg` are looked for in the
root folder and in the home folder; secrets of the types `kubernetes.io/dockerconfigjson` and
`kubernetes.io/dockercfg` hold the same. An image takes the entries whose registry, and path if
they have one, match; the most exact first, a pod's own before the node's. Nothing here ever logs
a secret.
"""

import base64
import json
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

import structlog
from attrs import evolve, field, frozen

from trio_kubelet.config.records import ImagePullSecret, ImagePullServiceAccount
from trio_kubelet.foreign_text import is_unicode
from trio_kubelet.k8s import Pod, Secret
from trio_kubelet.k8s.image_reference import InvalidReferenceError, parse_reference
from trio_kubelet.references import PullSecrets
from trio_kubelet.runtime.images.access import credential_hash
from trio_kubelet.runtime.images.host_patterns import part_matches
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.tasks.threads import run_in_thread

log = structlog.get_logger("credentials")

_KEY_BY_TYPE = {
    "kubernetes.io/dockerconfigjson": ".dockerconfigjson",
    "kubernetes.io/dockercfg": ".dockercfg",
}
"""The key of a secret that counts, by the secret's type."""

MAX_LOGINS = 1000
"""In one pull secret, and of one pod; each is compared with the image of each container."""
READING_THREADS = 4
KEPT_KEYRINGS = 32

MAX_IMAGE_NAME = 4096
MAX_REGISTRY_KEY = 4096
MAX_HOST = 255
MAX_HOST_PART = 63
"""In characters. DNS has no longer names; the time of a comparison grows with their product."""

_GLOB = re.compile(r"[*?\[\\]")
_DOCKER_HUB = frozenset({"index.docker.io", "docker.io", "registry-1.docker.io"})


@frozen(kw_only=True)
class RegistryCredentials:
    """A user name and password, or a token. Secrets are not in its repr.

    `source` is the pull secret that they are from, or the service account that a credential
    provider gave them for; None for those of the node, which any pod may use.
    """

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    email: str = field(default="", repr=False)
    source: ImagePullSecret | ImagePullServiceAccount | None = field(default=None, repr=False)

    @property
    def hash(self) -> str:
        """The mark that they are recognized by."""
        return credential_hash(self.username, self.password, self.email, self.identity_token)


Entries = tuple[tuple[str, RegistryCredentials], ...]


def _as_entries(entries: Mapping[str, RegistryCredentials] | Entries) -> Entries:
    return tuple(entries.items()) if isinstance(entries, Mapping) else entries


@frozen
class Keyring:
    """Credentials with the registry (and path) that they are for; there may be several for one."""

    entries: Entries = field(default=(), converter=_as_entries)

    def lookup(self, image: str) -> tuple[RegistryCredentials, ...]:
        """The credentials for an image, each once, the most exact first; may be empty."""
        if len(image) > MAX_IMAGE_NAME:
            return ()
        try:
            repository = parse_reference(image).repository
        except InvalidReferenceError:
            return ()
        matching = [entry for entry in self.entries if matches(entry[0], repository)]
        in_order = sorted(matching, key=lambda entry: _exactness(entry[0]), reverse=True)
        return tuple(dict.fromkeys(credentials for _, credentials in in_order))


def secret_keyring(secret: Secret) -> Keyring:
    """The keyring of a pull secret: empty, and named in the log, if it cannot be understood.

    A secret of a megabyte takes a second: that is work for a thread.
    """
    key = _KEY_BY_TYPE.get(secret.type, "")
    content = secret.data.get(key, b"")
    if not content:
        return Keyring()
    try:
        found = parse_keyring(content.decode()).entries
    except ValueError:
        # The error of the JSON parser may quote what it stumbled over.
        log.warning("pull secret is malformed", secret=secret.metadata.key)
        return Keyring()
    if len(found) > MAX_LOGINS:
        log.warning(
            "pull secret has too many logins, ignoring it",
            secret=secret.metadata.key,
            logins=len(found),
            limit=MAX_LOGINS,
        )
        return Keyring()
    return Keyring(tuple((key, _from_secret(secret, credentials)) for key, credentials in found))


def joined(keyrings: Iterable[Keyring]) -> Keyring:
    """The entries of several keyrings in their order, as many as a pod may have."""
    entries = (entry for keyring in keyrings for entry in keyring.entries)
    return Keyring(tuple(islice(entries, MAX_LOGINS)))


def _from_secret(secret: Secret, credentials: RegistryCredentials) -> RegistryCredentials:
    meta = secret.metadata
    return evolve(
        credentials,
        source=ImagePullSecret(
            uid=meta.uid,
            namespace=meta.namespace,
            name=meta.name,
            credential_hash=credentials.hash,
        ),
    )


class PodKeyrings:
    """The contents of the pull secrets of pods. Each version of a secret is read once, in a thread.

    The threads are shared by namespace, as secrets are.
    """

    def __init__(self, pull_secrets: Callable[[Pod], Awaitable[PullSecrets]]) -> None:
        self._pull_secrets = pull_secrets
        self._threads = FairLimiter(READING_THREADS, 1)
        self._read: OrderedDict[str, tuple[Secret, Keyring]] = OrderedDict()

    async def keyring(self, pod: Pod) -> Keyring:
        """The logins in the pull secrets of a pod. Cancelled, it finishes the secret at hand."""
        secrets = (await self._pull_secrets(pod)).secrets
        return joined([await self._keyring(secret) for secret in secrets])

    async def _keyring(self, secret: Secret) -> Keyring:
        meta = secret.metadata
        known = self._known(secret)
        if known is None:
            # One at a time in a namespace: who waits finds what another one has read.
            async with self._threads.share(meta.namespace):
                known = self._known(secret)
                if known is None:
                    known = await run_in_thread(secret_keyring, secret)
                    self._read[meta.key] = (secret, known)
                    if len(self._read) > KEPT_KEYRINGS:
                        self._read.popitem(last=False)
        return known

    def _known(self, secret: Secret) -> Keyring | None:
        """The content of this version of a secret, if it is still known."""
        key = secret.metadata.key
        read = self._read.get(key)
        if read is None or not _same_version(read[0], secret):
            return None
        self._read.move_to_end(key)
        return read[1]


def _same_version(one: Secret, other: Secret) -> bool:
    ours, theirs = one.metadata, other.metadata
    return one is other or (ours.uid, ours.resource_version) == (
        theirs.uid,
        theirs.resource_version,
    )


def matches(key: str, repository: str) -> bool:
    """True if an entry is for a repository such as `registry.example.com:5000/team/image`.

    The host may have globs in its parts (`*.example.com`). The path is any beginning, as in the Go
    kubelet: `team` is for `team-a/image`, too.
    """
    host, path = _host_and_path(key)
    registry, _, name = repository.partition("/")
    if host in _DOCKER_HUB and registry in _DOCKER_HUB:
        return name.startswith(path)
    return _host_matches(host, registry) and name.startswith(path)


def image_matches(pattern: str, repository: str) -> bool:
    """True if an entry of `matchImages` is for a repository: by any beginning of the path."""
    host, slash, path = pattern.partition("/")
    registry, _, name = repository.partition("/")
    return _host_matches(host, registry) and name.startswith(path if slash else "")


def _host_and_path(key: str) -> tuple[str, str]:
    """The place of an entry; the version of the registry's interface is no path of images."""
    host, _, path = _without_scheme(key).partition("/")
    return host, path[3:] if path.startswith(("v1/", "v2/")) else path


def _exactness(key: str) -> tuple[int, int]:
    host, path = _host_and_path(key)
    return len(path), len(host)


def _without_scheme(key: str) -> str:
    if "://" not in key:
        return key
    parts = urlsplit(key)
    return parts.netloc + parts.path


def _host_matches(pattern: str, host: str) -> bool:
    pattern_name, _, pattern_port = pattern.partition(":")
    name, _, port = host.partition(":")
    if pattern_port != port:
        return False
    if pattern_name == name:
        return True
    if not (_GLOB.search(pattern_name) and _is_host(name)):
        return False
    globs, parts = pattern_name.split("."), name.split(".")
    return len(globs) == len(parts) and all(
        part == glob or part_matches(glob, part) for part, glob in zip(parts, globs, strict=True)
    )


def _is_host(name: str) -> bool:
    """True if a host, or a pattern of hosts, is no longer than any in DNS."""
    return len(name) <= MAX_HOST and all(len(part) <= MAX_HOST_PART for part in name.split("."))


def parse_keyring(text: str) -> Keyring:
    """Read either format. Raises ValueError for what is neither."""
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("must be a JSON object")
    auths = document.get("auths", document)
    if not isinstance(auths, dict):
        raise ValueError("auths: must be an object")
    return Keyring(tuple(_entries(auths)))


def _entries(auths: Mapping[str, object]) -> Iterator[tuple[str, RegistryCredentials]]:
    for key, entry in auths.items():
        if not isinstance(entry, dict) or not is_registry(key):
            continue
        username, password, token, email = (
            _text(entry, name) for name in ("username", "password", "identitytoken", "email")
        )
        if encoded := entry.get("auth"):
            username, password = _decoded(key, str(encoded))
        if (username or token) and all(map(is_unicode, (username, password, token, email))):
            yield (
                key,
                RegistryCredentials(
                    username=username, password=password, identity_token=token, email=email
                ),
            )


def _text(entry: Mapping[str, object], name: str) -> str:
    """Return a member of an entry; null is as good as absent."""
    return str(entry.get(name) or "")


def is_registry(key: str) -> bool:
    """True if an entry can be for any image: a key may be endless, or a URL that makes no sense."""
    if len(key) > MAX_REGISTRY_KEY:
        return False
    try:
        host, _ = _host_and_path(key)
    except ValueError:
        return False
    return _is_host(host.partition(":")[0])


def _decoded(key: str, encoded: str) -> tuple[str, str]:
    try:
        username, colon, password = base64.b64decode(encoded).decode().partition(":")
    except ValueError:
        raise ValueError(f"auths[{key!r}].auth: is not base64") from None
    if not colon:
        raise ValueError(f"auths[{key!r}].auth: must be <user>:<password>, encoded")
    return username, password.rstrip("\0")


def credential_files(root_directory: str, home: str) -> tuple[Path, ...]:
    """The files with credentials, of which the first that is there counts."""
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
            text = path.read_text(encoding="utf-8", errors="surrogateescape")
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("registry credentials read failed", path=str(path), error=error.strerror)
            continue
        try:
            return parse_keyring(text)
        except ValueError:
            # The error of the JSON parser may quote what it stumbled over.
            log.warning("registry credentials are malformed", path=str(path))
    return Keyring()
