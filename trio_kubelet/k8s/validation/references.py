"""What a pod needs from an API server.

A static pod must run without one, so a manifest that refers to such objects is refused (gate
`PreventStaticPodAPIReferences`).
"""

from collections.abc import Iterator

from trio_kubelet.k8s.container import Container
from trio_kubelet.k8s.errors import FieldError, forbidden
from trio_kubelet.k8s.pod import Pod, PodSpec
from trio_kubelet.k8s.validation.containers import containers_with_paths

_SOURCES = {
    "config_map": "configMap",
    "secret": "secret",
    "persistent_volume_claim": "persistentVolumeClaim",
    "ephemeral": "ephemeral",
}
_PROJECTIONS = {
    "config_map": "configMap",
    "secret": "secret",
    "service_account_token": "serviceAccountToken",
    "cluster_trust_bundle": "clusterTrustBundle",
    "pod_certificate": "podCertificate",
}


def api_references(pod: Pod) -> tuple[FieldError, ...]:
    """Return each field of a pod that refers to an object only an API server has."""
    detail = "static pods may not reference objects of the API server"
    return tuple(forbidden(path, detail) for path in _paths(pod.spec))


def _paths(spec: PodSpec) -> Iterator[str]:
    if spec.service_account_name:
        yield "spec.serviceAccountName"
    if spec.image_pull_secrets:
        yield "spec.imagePullSecrets"
    if spec.resource_claims:
        yield "spec.resourceClaims"
    for path, container in containers_with_paths(spec):
        yield from _container_paths(container, path)
    for index, volume in enumerate(spec.volumes):
        path = f"spec.volumes[{index}]"
        yield from (f"{path}.{wire}" for name, wire in _SOURCES.items() if _has(volume, name))
        projected = volume.projected
        for place, source in enumerate(projected.sources if projected is not None else ()):
            below = f"{path}.projected.sources[{place}]"
            yield from (
                f"{below}.{wire}" for name, wire in _PROJECTIONS.items() if _has(source, name)
            )
        csi = volume.csi
        if csi is not None and csi.node_publish_secret_ref is not None:
            yield f"{path}.csi.nodePublishSecretRef"


def _container_paths(container: Container, path: str) -> Iterator[str]:
    for index, source in enumerate(container.env_from):
        for name, wire in (("config_map_ref", "configMapRef"), ("secret_ref", "secretRef")):
            if _has(source, name):
                yield f"{path}.envFrom[{index}].{wire}"
    for index, variable in enumerate(container.env):
        names = (("config_map_key_ref", "configMapKeyRef"), ("secret_key_ref", "secretKeyRef"))
        for name, wire in names:
            if variable.value_from is not None and _has(variable.value_from, name):
                yield f"{path}.env[{index}].valueFrom.{wire}"


def _has(value: object, name: str) -> bool:
    return getattr(value, name) is not None
