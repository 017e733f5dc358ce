"""Which objects a pod refers to. Pure."""

from collections.abc import Iterator

from attrs import frozen

from trio_kubelet.k8s import Container, Pod, VolumeProjection

ROOT_CERTIFICATES = "kube-root-ca.crt"
"""The config map that the cluster itself keeps in every namespace, for nearly every pod."""


@frozen(kw_only=True)
class ObjectReferences:
    """The names of objects in the pod's namespace, and whether it projects trust bundles."""

    config_maps: frozenset[str] = frozenset()
    secrets: frozenset[str] = frozenset()
    trust_bundles: bool = False


def object_references(pod: Pod) -> ObjectReferences:
    """Return what the pod's volumes, variables and image pulls refer to."""
    projections = tuple(_projections(pod))
    return ObjectReferences(
        config_maps=frozenset((*_config_maps_in_volumes(pod), *environment_config_maps(pod))),
        secrets=frozenset(
            (*_secrets_in_volumes(pod), *environment_secrets(pod), *pull_secrets(pod))
        ),
        trust_bundles=any(each.cluster_trust_bundle is not None for each in projections),
    )


def pull_secrets(pod: Pod) -> tuple[str, ...]:
    """Return the names of the secrets to pull images with, in their order."""
    return tuple(each.name for each in pod.spec.image_pull_secrets if each.name)


def environment_config_maps(pod: Pod) -> frozenset[str]:
    """Return the names of config maps that variables come from."""
    names = set()
    for container in _containers(pod):
        for whole in container.env_from:
            if whole.config_map_ref is not None:
                names.add(whole.config_map_ref.name)
        for variable in container.env:
            source = variable.value_from
            if source is not None and source.config_map_key_ref is not None:
                names.add(source.config_map_key_ref.name)
    return frozenset(names)


def environment_secrets(pod: Pod) -> frozenset[str]:
    """Return the names of secrets that variables come from."""
    names = set()
    for container in _containers(pod):
        for whole in container.env_from:
            if whole.secret_ref is not None:
                names.add(whole.secret_ref.name)
        for variable in container.env:
            source = variable.value_from
            if source is not None and source.secret_key_ref is not None:
                names.add(source.secret_key_ref.name)
    return frozenset(names)


def _config_maps_in_volumes(pod: Pod) -> Iterator[str]:
    for volume in pod.spec.volumes:
        if volume.config_map is not None:
            yield volume.config_map.name
    for projection in _projections(pod):
        if projection.config_map is not None:
            yield projection.config_map.name


def _secrets_in_volumes(pod: Pod) -> Iterator[str]:
    for volume in pod.spec.volumes:
        if volume.secret is not None:
            yield volume.secret.secret_name
    for projection in _projections(pod):
        if projection.secret is not None:
            yield projection.secret.name


def _projections(pod: Pod) -> Iterator[VolumeProjection]:
    for volume in pod.spec.volumes:
        if volume.projected is not None:
            yield from volume.projected.sources


def _containers(pod: Pod) -> Iterator[Container]:
    yield from pod.spec.init_containers
    yield from pod.spec.containers
    yield from pod.spec.ephemeral_containers
