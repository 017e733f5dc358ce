"""The environment of a container: names and values in the order they are declared.

First everything from `envFrom`, then `env` (which wins), then the variables of services that
nothing declared. A `$(VAR)` sees what stands before it and the services' variables. Config maps,
secrets and env files have been fetched before; here they are only looked up. Values are text;
bytes that are not UTF-8 are kept as surrogates and become the same bytes again in CRI.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from attrs import field, frozen

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
from trio_kubelet.runtime.config.config_error import ConfigError
from trio_kubelet.runtime.config.expansion import expand
from trio_kubelet.runtime.config.field_refs import PodAddresses, pod_field, resource_field

T = TypeVar("T")

NO_ENV_FILE = "couldn't parse env file"


def _no_file(_volume: str, path: str, _name: str) -> str:
    raise FileNotFoundError(path)


@frozen(kw_only=True)
class EnvironmentSources:
    """Where values outside the pod come from: of a node without an API server nothing is there.

    What they were fetched from was asked before the pod's containers are made; env files are read
    when they are. `problems` are messages by kind (`configmap`, `secret`) and name, for objects
    that could not be had. `read_env_file` takes volume, path and name, and blocks; it raises
    LookupError, with the message to show, for a variable that is not there, OSError or ValueError
    for a bad file.
    """

    config_maps: Mapping[str, Mapping[str, str]] = field(factory=dict)
    secrets: Mapping[str, Mapping[str, bytes]] = field(factory=dict)
    problems: Mapping[tuple[str, str], str] = field(factory=dict)
    read_env_file: Callable[[str, str, str], str] = _no_file

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

    def file_variable(self, selector: FileKeySelector) -> str | None:
        """A variable in a file on one of the pod's volumes (KEP-3721).

        None if it is optional and not there. Raises ConfigError.
        """
        try:
            return self.read_env_file(selector.volume_name, selector.path, selector.key)
        except (LookupError, OSError, ValueError) as error:
            if selector.optional and isinstance(error, LookupError | FileNotFoundError):
                return None
            missing = isinstance(error, LookupError)
            raise ConfigError(str(error.args[0]) if missing else NO_ENV_FILE) from error

    def _check(self, kind: str, name: str) -> None:
        problem = self.problems.get((kind, name))
        if problem is not None:
            raise ConfigError(problem)


def reads_files(container: Container) -> bool:
    """Whether the environment of a container comes from files, so that making it blocks."""
    return any(
        variable.value_from is not None and variable.value_from.file_key_ref is not None
        for variable in container.env
    )


@frozen(kw_only=True)
class EnvironmentFacts:
    """What the environment needs beside the pod.

    `services` are the variables of the services that the pod may see (none without an API
    server), `allocatable` the node's resources for `resourceFieldRef` without a limit.
    """

    addresses: PodAddresses = field(factory=PodAddresses)
    allocatable: Mapping[str, Quantity] = field(factory=dict)
    services: Mapping[str, str] = field(factory=dict)
    sources: EnvironmentSources = field(factory=EnvironmentSources)


def environment(pod: Pod, container: Container, facts: EnvironmentFacts) -> Mapping[str, str]:
    """The variables of a container, in order, as its `env` and `envFrom` say.

    Raises ConfigError when a source is missing that is not optional.
    """
    variables: dict[str, str] = {}
    for source in container.env_from:
        variables.update(_variables_from(source, facts.sources))
    for declared in container.env:
        value = _value(pod, container, declared, variables, facts)
        if value is not None:
            # A name declared again moves to the end, behind what its value may refer to.
            variables.pop(declared.name, None)
            variables[declared.name] = value
    return variables | {
        name: value for name, value in facts.services.items() if name not in variables
    }


def _variables_from(source: EnvFromSource, sources: EnvironmentSources) -> Mapping[str, str]:
    data: Mapping[str, str] | None = {}
    if source.config_map_ref is not None:
        map_ref = source.config_map_ref
        data = sources.config_map(map_ref.name)
        if data is None and not map_ref.optional:
            raise _not_found("configmap", map_ref.name)
    elif source.secret_ref is not None:
        secret_ref = source.secret_ref
        secret = sources.secret(secret_ref.name)
        if secret is None and not secret_ref.optional:
            raise _not_found("secret", secret_ref.name)
        data = {key: _text(value) for key, value in (secret or {}).items()}
    return {f"{source.prefix}{key}": value for key, value in sorted((data or {}).items())}


def _value(
    pod: Pod,
    container: Container,
    declared: EnvVar,
    variables: Mapping[str, str],
    facts: EnvironmentFacts,
) -> str | None:
    """The value of one variable, or None where an optional source has nothing for it."""
    if declared.value:

        def known(name: str) -> str | None:
            return variables.get(name, facts.services.get(name))

        return expand(declared.value, known)
    source = declared.value_from
    if source is None:
        return ""
    if source.field_ref is not None:
        return pod_field(pod, source.field_ref.field_path, facts.addresses)
    if source.resource_field_ref is not None:
        return resource_field(pod, container, source.resource_field_ref, facts.allocatable)
    return _looked_up(pod, source, facts.sources)


def _looked_up(pod: Pod, source: EnvVarSource, sources: EnvironmentSources) -> str | None:
    namespace = pod.metadata.namespace
    if source.config_map_key_ref is not None:
        selector = source.config_map_key_ref
        return _entry("ConfigMap", namespace, selector, sources.config_map(selector.name))
    if source.secret_key_ref is not None:
        secret_selector = source.secret_key_ref
        data = sources.secret(secret_selector.name)
        value = _entry("Secret", namespace, secret_selector, data)
        return None if value is None else _text(value)
    if source.file_key_ref is not None:
        return sources.file_variable(source.file_key_ref)
    return ""


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
