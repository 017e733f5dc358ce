"""Volumes: unique names, exactly one source each, and what each source must have.

The required fields stand in one table; sources with more rules have a function of their own in
a second one. The sources of the old drivers are in `legacy_volumes.py`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import attrs

from state_machines.image import PullPolicy
from trio_kubelet.k8s.base import ApiType, wire_name, wire_name_of
from trio_kubelet.k8s.claims import (
    PersistentVolumeAccessMode,
    PersistentVolumeClaimTemplate,
    PersistentVolumeMode,
)
from trio_kubelet.k8s.errors import (
    FieldError,
    all_invalid,
    duplicate,
    forbidden,
    invalid,
    required,
    too_long,
    unsupported,
)
from trio_kubelet.k8s.meta import ObjectMeta
from trio_kubelet.k8s.pod import Pod
from trio_kubelet.k8s.quantity import Quantity
from trio_kubelet.k8s.validation import formats
from trio_kubelet.k8s.validation.environment import check_object_name
from trio_kubelet.k8s.validation.legacy_volumes import LEGACY_CHECKS, LEGACY_REQUIRED
from trio_kubelet.k8s.validation.metadata import (
    check_annotations,
    check_label_selector,
    check_labels,
)
from trio_kubelet.k8s.validation.projections import (
    check_default_mode,
    check_downward_files,
    check_items,
    check_projections,
)
from trio_kubelet.k8s.volumes import (
    ConfigMapVolumeSource,
    CSIVolumeSource,
    DownwardAPIVolumeSource,
    EmptyDirVolumeSource,
    EphemeralVolumeSource,
    HostPathType,
    HostPathVolumeSource,
    ImageVolumeSource,
    NFSVolumeSource,
    ProjectedVolumeSource,
    SecretVolumeSource,
    Volume,
)

LONGEST_DRIVER_NAME = 63

_REQUIRED: dict[str, tuple[str, ...]] = {
    "host_path": ("path",),
    "secret": ("secret_name",),
    "config_map": ("name",),
    "nfs": ("server", "path"),
    "persistent_volume_claim": ("claim_name",),
    "csi": ("driver",),
    "ephemeral": ("volume_claim_template",),
    "image": ("reference",),
    **LEGACY_REQUIRED,
}

Check = Callable[[Any, str], Iterator[FieldError]]


def check_volumes(pod: Pod, path: str) -> Iterator[FieldError]:
    """Check the volumes of a pod."""
    seen: set[str] = set()
    ephemeral_claims = {
        f"{pod.metadata.name}-{volume.name}"
        for volume in pod.spec.volumes
        if volume.ephemeral is not None
    }
    for index, volume in enumerate(pod.spec.volumes):
        where = f"{path}[{index}]"
        if not volume.name:
            yield required(f"{where}.name")
        else:
            yield from all_invalid(f"{where}.name", volume.name, formats.dns_label(volume.name))
            if volume.name in seen:
                yield duplicate(f"{where}.name", volume.name)
        seen.add(volume.name)
        yield from _check_source(volume, where)
        yield from _check_claim_names(volume, pod.metadata, ephemeral_claims, where)


def _check_source(volume: Volume, path: str) -> Iterator[FieldError]:
    found = False
    for name, wire in _SOURCES.items():
        source = getattr(volume, name)
        if source is None:
            continue
        if found:
            yield forbidden(f"{path}.{wire}", "may not specify more than 1 volume type")
            continue
        found = True
        yield from _check_required(source, _REQUIRED.get(name, ()), f"{path}.{wire}")
        if name in _CHECKS:
            yield from _CHECKS[name](source, f"{path}.{wire}")
    if not found:
        yield required(path, "must specify a volume type")


def _check_required(source: ApiType, names: tuple[str, ...], path: str) -> Iterator[FieldError]:
    for name in names:
        if not getattr(source, name):
            yield required(f"{path}.{wire_name_of(type(source), name)}")


def _check_claim_names(
    volume: Volume, meta: ObjectMeta, ephemeral_claims: set[str], path: str
) -> Iterator[FieldError]:
    claim = volume.persistent_volume_claim
    if claim is not None and claim.claim_name in ephemeral_claims:
        detail = "must not reference a PVC that gets created for an ephemeral volume"
        yield invalid(f"{path}.persistentVolumeClaim.claimName", claim.claim_name, detail)
    if volume.ephemeral is not None and meta.name and volume.name:
        name = f"{meta.name}-{volume.name}"
        problems = (f'PVC name "{name}": {problem}' for problem in formats.dns_subdomain(name))
        yield from all_invalid(f"{path}.name", volume.name, problems)


def _check_empty_dir(source: EmptyDirVolumeSource, path: str) -> Iterator[FieldError]:
    if source.size_limit is not None and source.size_limit < Quantity(0):
        detail = "SizeLimit field must be a valid resource quantity"
        yield forbidden(f"{path}.sizeLimit", detail)


def _check_host_path(source: HostPathVolumeSource, path: str) -> Iterator[FieldError]:
    problems = formats.path_without_backsteps(source.path)
    yield from all_invalid(f"{path}.path", source.path, problems)
    if source.type is not None and source.type not in list(HostPathType):
        yield unsupported(f"{path}.type", source.type, HostPathType)


def _check_files(
    source: ConfigMapVolumeSource | SecretVolumeSource, path: str
) -> Iterator[FieldError]:
    yield from check_default_mode(source.default_mode, path)
    yield from check_items(source.items, f"{path}.items")


def _check_downward(source: DownwardAPIVolumeSource, path: str) -> Iterator[FieldError]:
    yield from check_default_mode(source.default_mode, path)
    yield from check_downward_files(source.items, f"{path}.items")


def _check_projected(source: ProjectedVolumeSource, path: str) -> Iterator[FieldError]:
    yield from check_default_mode(source.default_mode, path)
    yield from check_projections(source.sources, f"{path}.sources")


def _check_nfs(source: NFSVolumeSource, path: str) -> Iterator[FieldError]:
    if source.path and not source.path.startswith("/"):
        yield invalid(f"{path}.path", source.path, "must be an absolute path")


def _check_csi(source: CSIVolumeSource, path: str) -> Iterator[FieldError]:
    where = f"{path}.driver"
    if len(source.driver) > LONGEST_DRIVER_NAME:
        yield too_long(where, LONGEST_DRIVER_NAME)
    if source.driver:
        problems = formats.dns_subdomain(source.driver.lower())
        yield from all_invalid(where, source.driver, problems)
    if source.node_publish_secret_ref is not None:
        name = source.node_publish_secret_ref.name
        yield from check_object_name(name, f"{path}.nodePublishSecretRef.name")


def _check_ephemeral(source: EphemeralVolumeSource, path: str) -> Iterator[FieldError]:
    if source.volume_claim_template is not None:
        where = f"{path}.volumeClaimTemplate"
        yield from _check_claim_template(source.volume_claim_template, where)


def _check_claim_template(
    template: PersistentVolumeClaimTemplate, path: str
) -> Iterator[FieldError]:
    meta = template.metadata
    if meta is not None:
        yield from check_labels(meta.labels, f"{path}.metadata.labels")
        yield from check_annotations(meta.annotations, f"{path}.metadata.annotations")
        bare = attrs.evolve(meta, labels={}, annotations={})
        for attribute in attrs.fields(ObjectMeta):
            if getattr(bare, attribute.name):
                yield forbidden(f"{path}.metadata.{wire_name(attribute)}", "cannot be set")
    claim, where = template.spec, f"{path}.spec"
    if not claim.access_modes:
        yield required(f"{where}.accessModes", "at least 1 access mode is required")
    for mode in claim.access_modes:
        if mode not in list(PersistentVolumeAccessMode):
            yield unsupported(f"{where}.accessModes", mode, PersistentVolumeAccessMode)
    alone = PersistentVolumeAccessMode.READ_WRITE_ONCE_POD
    if alone in claim.access_modes and len(set(claim.access_modes)) > 1:
        detail = f"may not use {alone} with other access modes"
        yield forbidden(f"{where}.accessModes", detail)
    if claim.volume_mode and claim.volume_mode not in list(PersistentVolumeMode):
        yield unsupported(f"{where}.volumeMode", claim.volume_mode, PersistentVolumeMode)
    yield from check_label_selector(claim.selector, f"{where}.selector")
    size = claim.resources.requests.get("storage") if claim.resources is not None else None
    if size is None:
        yield required(f"{where}.resources[storage]")
    elif size <= Quantity(0):
        yield invalid(f"{where}.resources[storage]", str(size), "must be greater than zero")
    if claim.storage_class_name:
        problems = formats.dns_subdomain(claim.storage_class_name)
        yield from all_invalid(f"{where}.storageClassName", claim.storage_class_name, problems)


def _check_image(source: ImageVolumeSource, path: str) -> Iterator[FieldError]:
    if source.pull_policy and source.pull_policy not in list(PullPolicy):
        yield unsupported(f"{path}.pullPolicy", source.pull_policy, PullPolicy)


_SOURCES = {
    attribute.name: wire_name(attribute)
    for attribute in attrs.fields(Volume)
    if attribute.name != "name"
}

_CHECKS: dict[str, Check] = {
    "empty_dir": _check_empty_dir,
    "host_path": _check_host_path,
    "config_map": _check_files,
    "secret": _check_files,
    "downward_api": _check_downward,
    "projected": _check_projected,
    "nfs": _check_nfs,
    "csi": _check_csi,
    "ephemeral": _check_ephemeral,
    "image": _check_image,
    **LEGACY_CHECKS,
}
