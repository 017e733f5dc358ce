"""Which objects a pod refers to."""

from tests.unit.references.pods import pod_with
from trio_kubelet.k8s import (
    ClusterTrustBundleProjection,
    ConfigMapKeySelector,
    ConfigMapProjection,
    Container,
    EnvVar,
    EnvVarSource,
    EphemeralContainer,
    Pod,
    PodSpec,
    ProjectedVolumeSource,
    SecretKeySelector,
    SecretProjection,
    Volume,
    VolumeProjection,
)
from trio_kubelet.references.object_references import ObjectReferences, object_references


def variable(*, config_map: str = "", secret: str = "") -> tuple[EnvVar, ...]:
    source = EnvVarSource(
        config_map_key_ref=ConfigMapKeySelector(name=config_map) if config_map else None,
        secret_key_ref=SecretKeySelector(name=secret) if secret else None,
    )
    return (EnvVar(name="X", value_from=source),)


def test_volumes_variables_and_pulls_are_looked_at() -> None:
    pod = pod_with(
        config_map="files", secret="keys", env_map="vars", env_secret="more", pull_secrets=("reg",)
    )
    assert object_references(pod) == ObjectReferences(
        config_maps=frozenset({"files", "vars"}), secrets=frozenset({"keys", "more", "reg"})
    )


def test_all_kinds_of_containers_are_looked_at() -> None:
    pod = Pod(
        spec=PodSpec(
            init_containers=(Container(name="i", env=variable(config_map="a")),),
            containers=(Container(name="c", env=variable(secret="b")),),
            ephemeral_containers=(EphemeralContainer(name="e", env=variable(config_map="c")),),
        )
    )
    assert object_references(pod) == ObjectReferences(
        config_maps=frozenset({"a", "c"}), secrets=frozenset({"b"})
    )


def test_projected_sources_are_looked_at() -> None:
    sources = (
        VolumeProjection(config_map=ConfigMapProjection(name="root-ca")),
        VolumeProjection(secret=SecretProjection(name="keys")),
        VolumeProjection(cluster_trust_bundle=ClusterTrustBundleProjection(name="roots")),
    )
    volume = Volume(name="all", projected=ProjectedVolumeSource(sources=sources))
    assert object_references(pod_with(volumes=(volume,))) == ObjectReferences(
        config_maps=frozenset({"root-ca"}), secrets=frozenset({"keys"}), trust_bundles=True
    )


def test_a_pod_that_refers_to_nothing_needs_nothing() -> None:
    assert object_references(Pod()) == ObjectReferences()
