"""The environment of a container: names and values in the order they are declared.

First everything from `envFrom`, then `env` (which wins), then the variables of services that
nothing declared. A `$(VAR)` sees what stands before it and the services' variables. Config maps,
secrets have been fetched before; here they are only looked up. Values are text;
bytes that are not UTF-8 are kept as surrogates and become the same bytes again in CRI.
"""

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from attrs import field, frozen

from trio_kubelet.errors import ConfigError
from trio_kubelet.k8s import (
    ConfigMapKeySelector,
    Container,
    EnvFromSource,
    EnvVar,
    EnvVarSource,
    FileKeySelector,
    Pod,
    Quantity,
    SecretKeySelector,
)
from trio_kubelet.references.services import MAX_VARIABLES
from trio_kubelet.runtime.config.expansion import (
    MAX_BYTES,
    STRING_OVERHEAD_BYTES,
    TooLargeError,
    byte_size,
    expand,
)
from trio_kubelet.runtime.config.field_refs import PodAddresses, pod_field, resource_field

T = TypeVar("T")

NO_ENV_FILE = "couldn't parse env file"
MAX_WRITTEN_BYTES = 4 * MAX_BYTES
MAX_WRITTEN_VARIABLES = 2 * MAX_VARIABLES
"""Of all that is written, also what is overridden by what comes later: that is work, too."""
WITH_OVERRIDDEN = "with those that later ones override"
LARGE = 500
"""As many variables take some milliseconds to be put together."""
LARGE_BYTES = 128 << 10
"""As much text may be all dollars, which take as long."""

ReadEnvFile = Callable[[str, str, str], str]
"""Gives the value that a file declares: by volume, path and name. Blocks.

Raises LookupError, with the message to show, for a variable that is not there, OSError or
ValueError for a bad file.
"""


def _no_file(_volume: str, path: str, _name: str) -> str:
    raise FileNotFoundError(path)


@frozen(kw_only=True)
class EnvironmentSources:
    """The sources of values outside the pod: a node without an API server has none.

    What they were fetched from was asked before the pod's containers are made; env files are read
    when they are. `problems` are messages by kind (`configmap`, `secret`) and name, for objects
    that could not be had. `env_file_reader` makes what reads the env files of one container; it
    reads each file once.
    """

    config_maps: Mapping[str, Mapping[str, str]] = field(factory=dict)
    secrets: Mapping[str, Mapping[str, bytes]] = field(factory=dict)
    problems: Mapping[tuple[str, str], str] = field(factory=dict)
    env_file_reader: Callable[[], ReadEnvFile] = lambda: _no_file

    def config_map(self, name: str) -> Mapping[str, str] | None:
        """The data of a config map, None if there is none.

        Raises ConfigError where the API server did not tell.
        """
        self._check("configmap", name)
        return self.config_maps.get(name)

    def secret(self, name: str) -> Mapping[str, bytes] | None:
        """The data of a secret; as `config_map`."""
        self._check("secret", name)
        return self.secrets.get(name)

    def _check(self, kind: str, name: str) -> None:
        problem = self.problems.get((kind, name))
        if problem is not None:
            raise ConfigError(problem)


@frozen(kw_only=True)
class EnvironmentFacts:
    """The facts that the environment needs beside the pod.

    `services` are the variables of the services that the pod may see (none without an API
    server), `allocatable` the node's resources for `resourceFieldRef` without a limit.
    """

    addresses: PodAddresses = field(factory=PodAddresses)
    allocatable: Mapping[str, Quantity] = field(factory=dict)
    services: Mapping[str, str] = field(factory=dict)
    sources: EnvironmentSources = field(factory=EnvironmentSources)


def blocks_or_is_large(container: Container, facts: EnvironmentFacts) -> bool:
    """True if making the environment of a container is work for a thread.

    Each reference may double what there is so far. Stops counting as soon as it is known.
    """
    count, size, references = len(container.env) + len(facts.services), 0, 0
    if count > LARGE or len(container.env_from) > LARGE:
        return True
    for source in container.env_from:
        values = _raw_values(source, facts.sources)
        count += len(values)
        if count > LARGE:
            return True
        size += sum(len(value) for value in values)
    for variable in container.env:
        if variable.value_from is not None and variable.value_from.file_key_ref is not None:
            return True
        size += len(variable.value)
        references += variable.value.count("$(")
    return references > LARGE or size << references > LARGE_BYTES


def _raw_values(
    source: EnvFromSource, sources: EnvironmentSources
) -> Collection[str] | Collection[bytes]:
    if source.config_map_ref is not None:
        return sources.config_maps.get(source.config_map_ref.name, {}).values()
    if source.secret_ref is not None:
        return sources.secrets.get(source.secret_ref.name, {}).values()
    return ()


def environment(pod: Pod, container: Container, facts: EnvironmentFacts) -> Mapping[str, str]:
    """The variables of a container, in order, as its `env` and `envFrom` say.

    Raises ConfigError when a source is missing that is not optional, and for more than
    MAX_VARIABLES or MAX_BYTES, or when it takes too much to make them,
    before that is made.
    """
    made = _Environment(pod, container, facts)
    for source in container.env_from:
        made.add_all(source)
    for declared in container.env:
        made.add(declared)
    made.add_services()
    return made.variables


class _Environment:
    """The variables of one container that are known so far, and how large they are together."""

    def __init__(self, pod: Pod, container: Container, facts: EnvironmentFacts) -> None:
        self.variables: dict[str, str] = {}
        self._bytes = 0
        self._written_bytes = self._written = 0
        self._pod = pod
        self._container = container
        self._facts = facts
        self._read_env_file = facts.sources.env_file_reader()

    def add_all(self, source: EnvFromSource) -> None:
        """Add all entries of a config map or secret; what comes later wins."""
        for key, value in sorted(self._entries(source).items()):
            self._put(f"{source.prefix}{key}", value)

    def add(self, declared: EnvVar) -> None:
        """Add a variable of `env`; a name declared again moves behind what it may refer to."""
        try:
            value = self._value(declared)
        except TooLargeError:
            raise self._too_large(declared.name, f"{MAX_BYTES} bytes") from None
        if value is not None:
            self._remove(declared.name)
            self._put(declared.name, value)

    def add_services(self) -> None:
        """Add the variables of services that nothing has declared."""
        for name, value in self._facts.services.items():
            if name not in self.variables:
                self._put(name, value)

    def _put(self, name: str, value: str) -> None:
        if (old := self.variables.get(name)) is not None:
            self._bytes -= _size(name, old)
        size = _size(name, value)
        self._bytes += size
        self._written_bytes += size
        self._written += 1
        if self._bytes > MAX_BYTES:
            raise self._too_large(name, f"{MAX_BYTES} bytes")
        if self._written_bytes > MAX_WRITTEN_BYTES:
            raise self._too_large(name, f"{MAX_WRITTEN_BYTES} bytes {WITH_OVERRIDDEN}")
        if self._written > MAX_WRITTEN_VARIABLES:
            raise self._too_large(name, f"{MAX_WRITTEN_VARIABLES} variables {WITH_OVERRIDDEN}")
        self.variables[name] = value
        if len(self.variables) > MAX_VARIABLES:
            raise self._too_large(name, f"{MAX_VARIABLES} variables")

    def _remove(self, name: str) -> None:
        if (old := self.variables.pop(name, None)) is not None:
            self._bytes -= _size(name, old)

    def _too_large(self, name: str, limit: str) -> ConfigError:
        return ConfigError(
            f'environment of container "{self._container.name}" is too large: with variable '
            f'"{name:.253}" it would have more than {limit}'
        )

    def _entries(self, source: EnvFromSource) -> Mapping[str, str]:
        data: Mapping[str, str] | None = {}
        if source.config_map_ref is not None:
            map_ref = source.config_map_ref
            data = self._facts.sources.config_map(map_ref.name)
            if data is None and not map_ref.optional:
                raise _not_found("configmap", map_ref.name)
        elif source.secret_ref is not None:
            secret_ref = source.secret_ref
            secret = self._facts.sources.secret(secret_ref.name)
            if secret is None and not secret_ref.optional:
                raise _not_found("secret", secret_ref.name)
            data = {key: _text(value) for key, value in (secret or {}).items()}
        return data or {}

    def _value(self, declared: EnvVar) -> str | None:
        """The value of one variable, or None where an optional source has nothing for it."""
        if declared.value:
            old = self.variables.get(declared.name)
            replaced = 0 if old is None else _size(declared.name, old)
            return expand(declared.value, self._known, MAX_BYTES - self._bytes + replaced)
        source = declared.value_from
        if source is None:
            return ""
        facts = self._facts
        if source.field_ref is not None:
            return pod_field(self._pod, source.field_ref.field_path, facts.addresses)
        if source.resource_field_ref is not None:
            reference = source.resource_field_ref
            return resource_field(self._pod, self._container, reference, facts.allocatable)
        return self._looked_up(source, facts.sources)

    def _known(self, name: str) -> str | None:
        return self.variables.get(name, self._facts.services.get(name))

    def _looked_up(self, source: EnvVarSource, sources: EnvironmentSources) -> str | None:
        namespace = self._pod.metadata.namespace
        if source.config_map_key_ref is not None:
            selector = source.config_map_key_ref
            return _entry("ConfigMap", namespace, selector, sources.config_map(selector.name))
        if source.secret_key_ref is not None:
            secret_selector = source.secret_key_ref
            data = sources.secret(secret_selector.name)
            value = _entry("Secret", namespace, secret_selector, data)
            return None if value is None else _text(value)
        if source.file_key_ref is not None:
            return self._declared_in_file(source.file_key_ref)
        return ""

    def _declared_in_file(self, selector: FileKeySelector) -> str | None:
        """A variable in a file on one of the pod's volumes (KEP-3721).

        None if it is optional and not there. Raises ConfigError.
        """
        try:
            return self._read_env_file(selector.volume_name, selector.path, selector.key)
        except (LookupError, OSError, ValueError) as error:
            if selector.optional and isinstance(error, LookupError | FileNotFoundError):
                return None
            missing = isinstance(error, LookupError)
            raise ConfigError(str(error.args[0]) if missing else NO_ENV_FILE) from error


def _size(name: str, value: str) -> int:
    return byte_size(name) + 1 + byte_size(value) + STRING_OVERHEAD_BYTES


def _entry(
    kind: str,
    namespace: str,
    selector: ConfigMapKeySelector | SecretKeySelector,
    data: Mapping[str, T] | None,
) -> T | None:
    if data is None and not selector.optional:
        raise _not_found(kind.lower(), selector.name)
    found = data or {}
    if selector.key not in found and not selector.optional:
        raise ConfigError(f"couldn't find key {selector.key} in {kind} {namespace}/{selector.name}")
    return found.get(selector.key)


def _not_found(kind: str, name: str) -> ConfigError:
    return ConfigError(f'{kind} "{name}" not found')


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")
