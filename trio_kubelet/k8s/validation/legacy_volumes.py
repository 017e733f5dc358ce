"""The rules for the sources of the old in-tree drivers."""

import re
from collections.abc import Callable, Iterator
from typing import Any

from trio_kubelet.k8s.errors import (
    FieldError,
    all_invalid,
    invalid,
    required,
    too_long,
    unsupported,
)
from trio_kubelet.k8s.legacy_volumes import (
    AWSElasticBlockStoreVolumeSource,
    AzureDiskVolumeSource,
    CinderVolumeSource,
    FCVolumeSource,
    FlexVolumeSource,
    FlockerVolumeSource,
    GCEPersistentDiskVolumeSource,
    GitRepoVolumeSource,
    ISCSIVolumeSource,
    QuobyteVolumeSource,
    StorageOSVolumeSource,
)
from trio_kubelet.k8s.validation import formats

LEGACY_REQUIRED: dict[str, tuple[str, ...]] = {
    "aws_elastic_block_store": ("volume_id",),
    "azure_disk": ("disk_name", "disk_uri"),
    "azure_file": ("secret_name", "share_name"),
    "cephfs": ("monitors",),
    "cinder": ("volume_id",),
    "flex_volume": ("driver",),
    "gce_persistent_disk": ("pd_name",),
    "git_repo": ("repository",),
    "glusterfs": ("endpoints", "path"),
    "iscsi": ("target_portal", "iqn"),
    "photon_persistent_disk": ("pd_id",),
    "portworx_volume": ("volume_id",),
    "quobyte": ("registry", "volume"),
    "rbd": ("monitors", "image"),
    "scale_io": ("gateway", "system", "volume_name"),
    "storageos": ("volume_name",),
    "vsphere_volume": ("volume_path",),
}

_INITIATOR_FORMS = {
    "iqn": re.compile(r"iqn\.\d{4}-\d{2}\.[A-Za-z0-9-.]+(:[^,;*&$|\s]+)", re.ASCII),
    "eui": re.compile(r"eui.[A-Za-z0-9]{16}"),
    "naa": re.compile(r"naa.[A-Za-z0-9]{32}"),
}
_CACHING_MODES = {"None", "ReadOnly", "ReadWrite"}
_DISK_KINDS = {"Shared", "Dedicated", "Managed"}
_RESERVED_DOMAINS = (".kubernetes.io", ".k8s.io")
_LONGEST_TENANT = 64
_HOST_AND_PORT = "must be a host:port pair or multiple pairs separated by commas"


def _check_iscsi(source: ISCSIVolumeSource, path: str) -> Iterator[FieldError]:
    for name, value in (("iqn", source.iqn), ("initiatorName", source.initiator_name)):
        if value:
            yield from _check_initiator(value, f"{path}.{name}")
    yield from all_invalid(f"{path}.lun", source.lun, formats.in_range(source.lun, 0, 255))
    if (source.chap_auth_discovery or source.chap_auth_session) and source.secret_ref is None:
        yield required(f"{path}.secretRef")


def _check_initiator(value: str, path: str) -> Iterator[FieldError]:
    form = _INITIATOR_FORMS.get(value[:3])
    if form is None:
        yield invalid(path, value, "must be valid format starting with iqn, eui, or naa")
    elif form.fullmatch(value) is None:
        yield invalid(path, value, "must be valid format")


def _check_fc(source: FCVolumeSource, path: str) -> Iterator[FieldError]:
    where = f"{path}.targetWWNs"
    if not source.target_wwns and not source.wwids:
        yield required(where, "must specify either targetWWNs or wwids, but not both")
    if source.target_wwns and source.wwids:
        detail = "targetWWNs and wwids can not be specified simultaneously"
        yield invalid(where, list(source.target_wwns), detail)
    if not source.target_wwns:
        return
    if source.lun is None:
        yield required(f"{path}.lun", "lun is required if targetWWNs is specified")
    else:
        yield from all_invalid(f"{path}.lun", source.lun, formats.in_range(source.lun, 0, 255))


def _check_partition(
    source: AWSElasticBlockStoreVolumeSource | GCEPersistentDiskVolumeSource, path: str
) -> Iterator[FieldError]:
    if source.partition is not None and not 0 <= source.partition <= 255:
        yield invalid(f"{path}.partition", source.partition, "must be between 1 and 255, inclusive")


def _check_azure_disk(source: AzureDiskVolumeSource, path: str) -> Iterator[FieldError]:
    if source.caching_mode and source.caching_mode not in _CACHING_MODES:
        yield unsupported(f"{path}.cachingMode", source.caching_mode, _CACHING_MODES)
    if source.kind and source.kind not in _DISK_KINDS:
        yield unsupported(f"{path}.kind", source.kind, _DISK_KINDS)
    prefix = "/subscriptions/" if source.kind == "Managed" else "https://"
    if source.kind and source.disk_uri and not source.disk_uri.startswith(prefix):
        yield unsupported(f"{path}.diskURI", source.disk_uri, [f"{prefix}..."])


def _check_flex(source: FlexVolumeSource, path: str) -> Iterator[FieldError]:
    for key in source.options:
        domain = f".{key.partition('/')[0].lower()}"
        if domain.endswith(_RESERVED_DOMAINS):
            detail = "kubernetes.io and k8s.io namespaces are reserved"
            yield invalid(f"{path}.options[{key}]", key, detail)


def _check_flocker(source: FlockerVolumeSource, path: str) -> Iterator[FieldError]:
    if not source.dataset_name and not source.dataset_uuid:
        yield required(path, "one of datasetName and datasetUUID is required")
    if source.dataset_name and source.dataset_uuid:
        detail = "datasetName and datasetUUID can not be specified simultaneously"
        yield invalid(path, "resource", detail)
    if "/" in source.dataset_name:
        yield invalid(f"{path}.datasetName", source.dataset_name, "must not contain '/'")


def _check_git_repo(source: GitRepoVolumeSource, path: str) -> Iterator[FieldError]:
    problems = formats.relative_path(source.directory)
    yield from all_invalid(f"{path}.directory", source.directory, problems)


def _check_quobyte(source: QuobyteVolumeSource, path: str) -> Iterator[FieldError]:
    if len(source.tenant) > _LONGEST_TENANT:
        yield too_long(f"{path}.tenant", _LONGEST_TENANT)
    pairs = source.registry.split(",") if source.registry else []
    if any(":" not in pair for pair in pairs):
        yield invalid(f"{path}.registry", source.registry, _HOST_AND_PORT)


def _check_storageos(source: StorageOSVolumeSource, path: str) -> Iterator[FieldError]:
    names = {"volumeName": source.volume_name, "volumeNamespace": source.volume_namespace}
    for name, value in names.items():
        if value:
            yield from all_invalid(f"{path}.{name}", value, formats.dns_label(value))
    yield from _check_secret(source, path)


def _check_secret(
    source: CinderVolumeSource | StorageOSVolumeSource, path: str
) -> Iterator[FieldError]:
    if source.secret_ref is not None and not source.secret_ref.name:
        yield required(f"{path}.secretRef.name")


LEGACY_CHECKS: dict[str, Callable[[Any, str], Iterator[FieldError]]] = {
    "aws_elastic_block_store": _check_partition,
    "azure_disk": _check_azure_disk,
    "cinder": _check_secret,
    "fc": _check_fc,
    "flex_volume": _check_flex,
    "flocker": _check_flocker,
    "gce_persistent_disk": _check_partition,
    "git_repo": _check_git_repo,
    "iscsi": _check_iscsi,
    "quobyte": _check_quobyte,
    "storageos": _check_storageos,
}
