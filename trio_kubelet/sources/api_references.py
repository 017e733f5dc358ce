"""Finds what a pod's spec takes from other API objects.

A static pod runs without an API server, so it may not refer to any (gate
`PreventStaticPodAPIReferences`). The fields are known by their names, wherever they stand in
the spec; the plural of the resource that each refers to is that of the API.
"""

from collections.abc import Iterator, Mapping

from attrs import fields, has

from trio_kubelet.k8s import PodSpec
from trio_kubelet.k8s.base import ApiType, wire_name

_REFERENCES: Mapping[str, str] = {
    "service_account": "serviceaccounts",
    "service_account_name": "serviceaccounts",
    "service_account_token": "serviceaccounts",
    "image_pull_secrets": "secrets",
    "secret": "secrets",
    "secret_ref": "secrets",
    "secret_key_ref": "secrets",
    "azure_file": "secrets",
    "config_map": "configmaps",
    "config_map_ref": "configmaps",
    "config_map_key_ref": "configmaps",
    "resource_claims": "resourceclaims",
    "csi": "csidrivers (via CSI volumes)",
    "glusterfs": "endpoints (via glusterFS volumes)",
    "persistent_volume_claim": "persistentvolumeclaims",
    "ephemeral": "persistentvolumeclaims (via ephemeral volumes)",
    "cluster_trust_bundle": "clustertrustbundles",
    "pod_certificate": "podcertificates",
}
"""Field → the resource it refers to."""


def api_references(spec: PodSpec) -> Iterator[tuple[str, str]]:
    """Yield path and resource of each reference: `("spec.volumes[0].secret", "secrets")`."""
    return _references(spec, "spec")


def _references(value: ApiType, path: str) -> Iterator[tuple[str, str]]:
    for attribute in fields(type(value)):
        part = getattr(value, attribute.name)
        if part is None or part in ("", ()):
            continue
        where = f"{path}.{wire_name(attribute)}"
        if attribute.name in _REFERENCES:
            yield where, _REFERENCES[attribute.name]
        elif isinstance(part, tuple):
            for index, item in enumerate(part):
                if has(type(item)) and isinstance(item, ApiType):
                    yield from _references(item, f"{where}[{index}]")
        elif isinstance(part, ApiType):
            yield from _references(part, where)
