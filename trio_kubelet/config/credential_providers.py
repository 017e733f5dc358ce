"""The image credential providers that the flags of a node name.

`--image-credential-provider-config` is a file, or a folder whose files (`*.json`, `*.yaml`,
`*.yml`) are read in the order of their names. All of it is checked before the agent starts, in the
Go kubelet's words: what is in the files, and that the programs are there. Everything here blocks.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from attrs import frozen

from trio_kubelet.config.codec import decode
from trio_kubelet.config.records import (
    CredentialProvider,
    CredentialProviderConfig,
    CredentialProviderConfigV1,
    CredentialProviderV1,
    ServiceAccountTokenAttributes,
)
from trio_kubelet.k8s.documents import DocumentError, load_documents
from trio_kubelet.k8s.validation.formats import qualified_name
from trio_kubelet.kernel.bounded_files import read_bounded

MAX_FILE_BYTES = 1 << 20
"""Of one file with providers."""

KIND = "CredentialProviderConfig"
GROUP = "kubelet.config.k8s.io"
_CONFIG_TYPES: dict[str, type[Any]] = {
    f"{GROUP}/v1": CredentialProviderConfigV1,
    f"{GROUP}/v1beta1": CredentialProviderConfig,
    f"{GROUP}/v1alpha1": CredentialProviderConfig,
}
"""By the version of a file."""

PROVIDER_V1 = "credentialprovider.kubelet.k8s.io/v1"
PROVIDER_VERSIONS = (
    PROVIDER_V1,
    "credentialprovider.kubelet.k8s.io/v1alpha1",
    "credentialprovider.kubelet.k8s.io/v1beta1",
)
"""The versions of the questions to providers, and of their answers."""

CACHE_OF_ACCOUNT, CACHE_OF_TOKEN = "ServiceAccount", "Token"
CACHE_TYPES = (CACHE_OF_ACCOUNT, CACHE_OF_TOKEN)
SUFFIXES = frozenset({".json", ".yaml", ".yml"})
_LENGTH_BYTES = 8

_END_OF_HOST = re.compile(r"[/?#]")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\x00-\x20\x7f%\\^`{|}\[:]+)(:[0-9]*)?")
"""A port is a number: a pattern with another one would be for no image."""
_NO_URL = re.compile(r"[\x00-\x1f\x7f]|%(?![0-9A-Fa-f]{2})")


@frozen(kw_only=True)
class CredentialProviders:
    """The providers in the order in which their credentials are tried, and where they are."""

    providers: tuple[CredentialProvider, ...] = ()
    folder: Path = Path()
    hash: str = ""
    """Over the content of the files, as a metric shows it."""


def token_attributes(provider: CredentialProvider) -> ServiceAccountTokenAttributes | None:
    """The token that a provider is given; None if it gets none."""
    return provider.token_attributes if isinstance(provider, CredentialProviderV1) else None


def load_credential_providers(
    config: str, folder: str, *, takes_tokens: bool
) -> tuple[CredentialProviders, tuple[str, ...]]:
    """The providers that both flags name, and all that is wrong with them. Raises nothing.

    `takes_tokens` is the gate KubeletServiceAccountTokenForCredentialProviders.
    """
    if not (config or folder):
        return CredentialProviders(), ()
    files = _Files()
    files.read(config)
    providers = tuple(files.providers)
    problems = [
        *_folder_problems(folder),
        *files.problems,
        *(() if files.problems else _problems(providers, takes_tokens=takes_tokens)),
    ]
    if not problems:
        problems += _program_problems(providers, Path(folder))
    found = CredentialProviders(
        providers=providers, folder=Path(folder), hash=f"sha256:{files.digest.hexdigest()}"
    )
    return found, tuple(problems)


class _Files:
    """Reads the files one by one, and collects what is in them and what is wrong."""

    def __init__(self) -> None:
        self.providers: list[CredentialProvider] = []
        self.problems: list[str] = []
        self.digest = hashlib.sha256()

    def read(self, config: str) -> None:
        """Read a file, or the files of a folder."""
        if not config:
            self.problems.append("credential provider config path is empty")
            return
        path = Path(config)
        try:
            paths = self._in_folder(path) if path.is_dir() else [path]
        except OSError as error:
            self.problems.append(f'unable to read directory "{path}": {error.strerror}')
            return
        for each in paths:
            try:
                data = read_bounded(each, MAX_FILE_BYTES)
            except OSError as error:
                self.problems.append(f'unable to read file "{each}": {error.strerror}')
                continue
            self.digest.update(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
            self._take(each, data)

    def _in_folder(self, folder: Path) -> list[Path]:
        found = [each for each in folder.iterdir() if each.suffix in SUFFIXES and not each.is_dir()]
        if not found:
            self.problems.append(f'no configuration files found in directory "{folder}"')
        return sorted(found)

    def _take(self, path: Path, data: bytes) -> None:
        try:
            documents = load_documents(data)
        except DocumentError as error:
            self.problems.append(f'error decoding config "{path}": {error}')
            return
        if len(documents) > 1:
            self.problems.append(f'error decoding config "{path}": must have one document')
            return
        document = dict(documents[0]) if documents else {}
        version, kind = str(document.pop("apiVersion", "")), document.pop("kind", "")
        if kind != KIND or version not in _CONFIG_TYPES:
            needed = f"must be {KIND} of {' or '.join(_CONFIG_TYPES)}"
            self.problems.append(f'error decoding config "{path}": {needed}')
            return
        decoded = decode(_CONFIG_TYPES[version], document)
        self.problems += [f'error decoding config "{path}": {each}' for each in decoded.problems]
        self.problems += [
            f'error decoding config "{path}": unknown field "{each}"' for each in decoded.unknown
        ]
        self.providers += decoded.value.providers


def _folder_problems(folder: str) -> Iterator[str]:
    try:
        Path(folder or "/nonexistent").stat()
    except FileNotFoundError:
        yield f"plugin binary directory {folder} did not exist"
    except OSError as error:
        yield f"error inspecting binary directory {folder}: {error.strerror}"


def _program_problems(providers: Sequence[CredentialProvider], folder: Path) -> Iterator[str]:
    for provider in providers:
        program = folder / provider.name
        try:
            is_there = program.is_file()
        except OSError as error:  # A name may be longer than any file's.
            yield f"error inspecting binary executable {program}: {error.strerror}"
            continue
        if not is_there:
            yield f"plugin binary executable {program} did not exist"
        elif not os.access(program, os.X_OK):
            yield f"error inspecting binary executable {program}: permission denied"


def _problems(providers: Sequence[CredentialProvider], *, takes_tokens: bool) -> Iterator[str]:
    if not providers:
        yield "providers: Required value: at least 1 item in plugins is required"
    names = [provider.name for provider in providers]
    for index, provider in enumerate(providers):
        path = f"providers[{index}]"
        if provider.name in names[:index]:
            yield f'{path}.name: Duplicate value: "{provider.name}"'
        yield from _provider_problems(path, provider)
        attributes = token_attributes(provider)
        if attributes is not None:
            if not takes_tokens:
                yield (
                    f"{path}.tokenAttributes: Forbidden: tokenAttributes is not supported when "
                    "KubeletServiceAccountTokenForCredentialProviders feature gate is disabled"
                )
            if provider.api_version != PROVIDER_V1:
                yield (
                    f"{path}.tokenAttributes: Forbidden: tokenAttributes is only supported for "
                    f"{PROVIDER_V1} API version"
                )
            yield from _token_problems(f"{path}.tokenAttributes", attributes)


def _provider_problems(path: str, provider: CredentialProvider) -> Iterator[str]:
    name = provider.name
    for wrong, is_wrong in (
        ("provider name cannot be empty", not name),
        ("provider name cannot contain '/'", "/" in name),
        ("provider name cannot contain spaces", " " in name),
        (f"provider name cannot be '{name}'", name in (".", "..")),
        ("provider name cannot contain a null character", "\0" in name),
    ):
        if is_wrong:
            yield f'{path}.name: Invalid value: "{name}": {wrong}'
    if not provider.api_version:
        yield f"{path}.apiVersion: Required value"
    elif provider.api_version not in PROVIDER_VERSIONS:
        yield f"{path}.apiVersion: {_unsupported(provider.api_version, PROVIDER_VERSIONS)}"
    if not provider.match_images:
        yield f"{path}.matchImages: Required value: at least 1 item in matchImages is required"
    for pattern in provider.match_images:
        if not _is_url(pattern):
            yield f'{path}.matchImages: Invalid value: "{pattern}": match image is invalid'
    if provider.default_cache_duration is None:
        yield f"{path}.defaultCacheDuration: Required value"
    elif provider.default_cache_duration < timedelta():
        yield f"{path}.defaultCacheDuration: Invalid value: must be greater than or equal to 0"


def _token_problems(path: str, attributes: ServiceAccountTokenAttributes) -> Iterator[str]:
    required = attributes.required_service_account_annotation_keys
    optional = attributes.optional_service_account_annotation_keys
    if not attributes.service_account_token_audience:
        yield f"{path}.serviceAccountTokenAudience: Required value"
    if attributes.require_service_account is None:
        yield f"{path}.requireServiceAccount: Required value"
    elif required and not attributes.require_service_account:
        yield (
            f"{path}.requiredServiceAccountAnnotationKeys: Forbidden: requireServiceAccount cannot "
            "be false when requiredServiceAccountAnnotationKeys is set"
        )
    for name, keys in (("required", required), ("optional", optional)):
        field = f"{path}.{name}ServiceAccountAnnotationKeys"
        for index, key in enumerate(keys):
            if key in keys[:index]:
                yield f'{field}: Duplicate value: "{key}"'
            for problem in qualified_name(key.lower()):
                yield f'{field}: Invalid value: "{key}": {problem}'
    if both := sorted({*required} & {*optional}):
        yield f"{path}: Invalid value: {both}: annotation keys cannot be both required and optional"
    if not attributes.cache_type:
        yield (
            f"{path}.cacheType: Required value: cacheType is required to be set when "
            f"tokenAttributes is specified. Supported values are: {', '.join(CACHE_TYPES)}"
        )
    elif attributes.cache_type not in CACHE_TYPES:
        yield f"{path}.cacheType: {_unsupported(attributes.cache_type, CACHE_TYPES)}"


def _unsupported(value: str, supported: Sequence[str]) -> str:
    values = ", ".join(f'"{each}"' for each in supported)
    return f'Unsupported value: "{value}": supported values: {values}'


def _is_url(pattern: str) -> bool:
    """True if `https://` and the pattern are a URL with a host, as Go reads URLs."""
    host = _END_OF_HOST.split(pattern, maxsplit=1)[0].rpartition("@")[2]
    return bool(_HOST.fullmatch(host)) and not _NO_URL.search(pattern)
