"""Pods that refer to things, for the tests of this part."""

from trio_kubelet.k8s import (
    ConfigMapEnvSource,
    ConfigMapVolumeSource,
    Container,
    EnvFromSource,
    LocalObjectReference,
    ObjectMeta,
    Pod,
    PodSpec,
    SecretEnvSource,
    SecretVolumeSource,
    Volume,
)


def pod_with(
    uid: str = "u1",
    *,
    config_map: str = "",
    secret: str = "",
    env_map: str = "",
    env_secret: str = "",
    pull_secrets: tuple[str, ...] = (),
    volumes: tuple[Volume, ...] = (),
) -> Pod:
    """A pod in the namespace `shop`."""
    env_from = []
    if env_map:
        env_from.append(EnvFromSource(config_map_ref=ConfigMapEnvSource(name=env_map)))
    if env_secret:
        env_from.append(EnvFromSource(secret_ref=SecretEnvSource(name=env_secret)))
    if config_map:
        volumes += (Volume(name="cm", config_map=ConfigMapVolumeSource(name=config_map)),)
    if secret:
        volumes += (Volume(name="sec", secret=SecretVolumeSource(secret_name=secret)),)
    return Pod(
        metadata=ObjectMeta(name=f"pod-{uid}", namespace="shop", uid=uid),
        spec=PodSpec(
            service_account_name="robot",
            containers=(Container(name="c", env_from=tuple(env_from)),),
            image_pull_secrets=tuple(LocalObjectReference(name=name) for name in pull_secrets),
            volumes=volumes,
        ),
    )
