"""The objects that a pod refers to. Pure."""

from collections.abc import Iterator
from heapq import nsmallest
from typing import TypeVar

from attrs import frozen

from trio_kubelet.k8s import ConfigMap, EnvFromSource, EnvVarSource, Pod, Secret, VolumeProjection


class ObjectError(Exception):
    """An object cannot be had; `str` of it is the message that users see."""


class ObjectNotFoundError(ObjectError):
    """The API server says that there is no such object: an optional reference may do without."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f'{kind} "{name}" not found')


T = TypeVar("T", bound=ConfigMap | Secret)

Key = tuple[str, str]
"""Namespace and name."""

MAX_OBJECTS = 500
"""Config maps of a pod that are kept at hand, and secrets as many: each is followed by a watch."""


def not_registered(key: Key) -> ObjectError:
    """The error for an object that no pod is known to refer to, or as one of too many."""
    return ObjectError(
        f'object "{key[0]}"/"{key[1]}" not registered; of the config maps that a pod refers to '
        f"{MAX_OBJECTS} can be, and as many secrets"
    )


ROOT_CERTIFICATES = "kube-root-ca.crt"
"""The config map that the cluster itself keeps in every namespace, for nearly every pod."""


@frozen(kw_only=True)
class ObjectReferences:
    """The names of objects in the pod's namespace, and whether it projects trust bundles."""

    config_maps: frozenset[str] = frozenset()
    secrets: frozenset[str] = frozenset()
    trust_bundles: bool = False


def object_references(pod: Pod) -> ObjectReferences:
    """Return what the pod's volumes, variables and image pulls refer to.

    Of more than MAX_OBJECTS of a kind these are the first by name.
    """
    config_maps = {*_config_maps_in_volumes(pod), *environment_config_maps(pod)}
    secrets = {*_secrets_in_volumes(pod), *environment_secrets(pod), *pull_secrets(pod)}
    return ObjectReferences(
        config_maps=frozenset(nsmallest(MAX_OBJECTS, config_maps)),
        secrets=frozenset(nsmallest(MAX_OBJECTS, secrets)),
        trust_bundles=any(p.cluster_trust_bundle is not None for p in _projections(pod)),
    )


def pull_secrets(pod: Pod) -> tuple[str, ...]:
    """Return the names of the secrets to pull images with, each once, in their order."""
    return tuple(dict.fromkeys(each.name for each in pod.spec.image_pull_secrets if each.name))


def environment_config_maps(pod: Pod) -> frozenset[str]:
    """Return the names of config maps that variables come from."""
    whole = (source.config_map_ref for source in _whole_sources(pod))
    keys = (source.config_map_key_ref for source in _sources_of_variables(pod))
    return frozenset(each.name for each in (*whole, *keys) if each is not None)


def environment_secrets(pod: Pod) -> frozenset[str]:
    """Return the names of secrets that variables come from."""
    whole = (source.secret_ref for source in _whole_sources(pod))
    keys = (source.secret_key_ref for source in _sources_of_variables(pod))
    return frozenset(each.name for each in (*whole, *keys) if each is not None)


def _whole_sources(pod: Pod) -> Iterator[EnvFromSource]:
    return (source for container in pod.spec.all_containers for source in container.env_from)


def _sources_of_variables(pod: Pod) -> Iterator[EnvVarSource]:
    variables = (variable for container in pod.spec.all_containers for variable in container.env)
    return (variable.value_from for variable in variables if variable.value_from is not None)


def _config_maps_in_volumes(pod: Pod) -> Iterator[str]:
    volumes = (volume.config_map for volume in pod.spec.volumes)
    projected = (projection.config_map for projection in _projections(pod))
    return (each.name for each in (*volumes, *projected) if each is not None)


def _secrets_in_volumes(pod: Pod) -> Iterator[str]:
    volumes = (volume.secret for volume in pod.spec.volumes)
    yield from (each.secret_name for each in volumes if each is not None)
    projected = (projection.secret for projection in _projections(pod))
    yield from (each.name for each in projected if each is not None)
    drivers = (volume.csi.node_publish_secret_ref for volume in pod.spec.volumes if volume.csi)
    yield from (each.name for each in drivers if each is not None)
    flex = (volume.flex_volume.secret_ref for volume in pod.spec.volumes if volume.flex_volume)
    yield from (each.name for each in flex if each is not None)
    disks = (volume.iscsi.secret_ref for volume in pod.spec.volumes if volume.iscsi)
    yield from (each.name for each in disks if each is not None)


def _projections(pod: Pod) -> Iterator[VolumeProjection]:
    projected = (volume.projected for volume in pod.spec.volumes)
    return (source for each in projected if each is not None for source in each.sources)
