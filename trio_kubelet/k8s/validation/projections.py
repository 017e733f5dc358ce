"""Files made of keys, fields and tokens: their paths, modes and sources."""

from collections.abc import Iterator

import attrs

from trio_kubelet.k8s.base import wire_name
from trio_kubelet.k8s.errors import (
    FieldError,
    all_invalid,
    forbidden,
    invalid,
    required,
)
from trio_kubelet.k8s.validation import formats
from trio_kubelet.k8s.validation.environment import check_field_of_file, check_resource_of_file
from trio_kubelet.k8s.validation.metadata import check_label_selector
from trio_kubelet.k8s.volumes import (
    ClusterTrustBundleProjection,
    DownwardAPIVolumeFile,
    KeyToPath,
    PodCertificateProjection,
    ServiceAccountTokenProjection,
    VolumeProjection,
)

LARGEST_MODE = 0o777
SHORTEST_TOKEN_SECONDS = 10 * 60
LONGEST_TOKEN_SECONDS = 1 << 32
SHORTEST_CERTIFICATE_SECONDS = 3600
LONGEST_CERTIFICATE_SECONDS = 91 * 24 * 3600
_KEY_TYPES = ("RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519")


def check_default_mode(mode: int | None, path: str) -> Iterator[FieldError]:
    """Check the mode that files get unless they have their own."""
    yield from _check_mode(mode, f"{path}.defaultMode")


def _check_mode(mode: int | None, path: str) -> Iterator[FieldError]:
    if mode is not None and not 0 <= mode <= LARGEST_MODE:
        yield invalid(path, mode, "must be a number between 0 and 0777 (octal), both inclusive")


def check_items(items: tuple[KeyToPath, ...], path: str) -> Iterator[FieldError]:
    """Check which keys become which files."""
    for index, item in enumerate(items):
        where = f"{path}[{index}]"
        if not item.key:
            yield required(f"{where}.key")
        yield from check_file(item.path, f"{where}.path")
        yield from _check_mode(item.mode, f"{where}.mode")


def check_file(value: str, path: str) -> Iterator[FieldError]:
    """Check the path of a file that must be given."""
    if not value:
        yield required(path)
    yield from all_invalid(path, value, formats.file_path(value))


def check_downward_files(
    files: tuple[DownwardAPIVolumeFile, ...], path: str
) -> Iterator[FieldError]:
    """Check files made of fields and resources of the pod."""
    for index, file in enumerate(files):
        where = f"{path}[{index}]"
        yield from check_file(file.path, f"{where}.path")
        yield from _check_mode(file.mode, f"{where}.mode")
        if file.field_ref is not None:
            yield from check_field_of_file(file.field_ref, f"{where}.fieldRef")
            if file.resource_field_ref is not None:
                detail = "fieldRef and resourceFieldRef can not be specified simultaneously"
                yield invalid(where, "resource", detail)
        elif file.resource_field_ref is not None:
            yield from check_resource_of_file(file.resource_field_ref, f"{where}.resourceFieldRef")
        else:
            yield required(where, "one of fieldRef and resourceFieldRef is required")


def check_projections(sources: tuple[VolumeProjection, ...], path: str) -> Iterator[FieldError]:
    """Check the sources of a projected volume; no two may make the same file."""
    files: set[str] = set()
    for index, source in enumerate(sources):
        where = f"{path}[{index}]"
        given = [
            wire_name(attribute)
            for attribute in attrs.fields(VolumeProjection)
            if getattr(source, attribute.name) is not None
        ]
        if len(given) > 1:
            yield forbidden(where, "may not specify more than 1 volume type per source")
        yield from _check_projection(source, where)
        for file in _files_of(source):
            if file in files:
                yield invalid(where, file, "conflicting duplicate paths")
            files.add(file)


def _check_projection(source: VolumeProjection, path: str) -> Iterator[FieldError]:
    objects = {"secret": source.secret, "configMap": source.config_map}
    for name, projection in objects.items():
        if projection is not None:
            if not projection.name:
                yield required(f"{path}.{name}.name")
            yield from check_items(projection.items, f"{path}.{name}.items")
    if source.downward_api is not None:
        yield from check_downward_files(source.downward_api.items, f"{path}.downwardAPI.items")
    if source.service_account_token is not None:
        yield from _check_token(source.service_account_token, f"{path}.serviceAccountToken")
    if source.cluster_trust_bundle is not None:
        yield from _check_trust_bundle(source.cluster_trust_bundle, f"{path}.clusterTrustBundle")
    if source.pod_certificate is not None:
        yield from _check_certificate(source.pod_certificate, f"{path}.podCertificate")


def _check_token(token: ServiceAccountTokenProjection, path: str) -> Iterator[FieldError]:
    seconds, where = token.expiration_seconds, f"{path}.expirationSeconds"
    if seconds is not None and seconds < SHORTEST_TOKEN_SECONDS:
        yield invalid(where, seconds, "may not specify a duration less than 10 minutes")
    if seconds is not None and seconds > LONGEST_TOKEN_SECONDS:
        yield invalid(where, seconds, "may not specify a duration larger than 2^32 seconds")
    yield from check_file(token.path, f"{path}.path")


def _check_trust_bundle(bundle: ClusterTrustBundleProjection, path: str) -> Iterator[FieldError]:
    if bundle.name and bundle.signer_name:
        yield invalid(path, bundle.name, "only one of name and signerName may be used")
    elif bundle.name:
        # The name of a bundle of a signer starts with that signer's name, its slashes as colons.
        problems = formats.dns_subdomain(bundle.name.rpartition(":")[2])
        yield from all_invalid(f"{path}.name", bundle.name, problems)
        if bundle.label_selector is not None:
            detail = "labelSelector must be unset if name is specified"
            yield invalid(f"{path}.labelSelector", bundle.name, detail)
    elif bundle.signer_name:
        yield from _check_signer(bundle.signer_name, f"{path}.signerName")
        yield from check_label_selector(bundle.label_selector, f"{path}.labelSelector")
    else:
        yield required(path, "either name or signerName must be specified")
    yield from check_file(bundle.path, f"{path}.path")


def _check_signer(name: str, path: str) -> Iterator[FieldError]:
    domain, slash, rest = name.partition("/")
    if not slash or not rest:
        detail = "must be a fully qualified domain and path of the form 'example.com/signer-name'"
        yield invalid(path, name, detail)
        return
    yield from all_invalid(path, name, formats.dns_subdomain(domain))


def _check_certificate(certificate: PodCertificateProjection, path: str) -> Iterator[FieldError]:
    if not certificate.signer_name:
        yield required(f"{path}.signerName")
    else:
        yield from _check_signer(certificate.signer_name, f"{path}.signerName")
    if certificate.key_type not in _KEY_TYPES:
        yield invalid(
            f"{path}.keyType", certificate.key_type, f"must be one of {', '.join(_KEY_TYPES)}"
        )
    seconds = certificate.max_expiration_seconds
    if seconds is not None:
        problems = formats.in_range(
            seconds, SHORTEST_CERTIFICATE_SECONDS, LONGEST_CERTIFICATE_SECONDS
        )
        yield from all_invalid(f"{path}.maxExpirationSeconds", seconds, problems)
    files = _certificate_files(certificate)
    if not files:
        detail = "one of credentialBundlePath, keyPath and certificateChainPath is required"
        yield required(path, detail)
    for name, file in files.items():
        yield from all_invalid(f"{path}.{name}", file, formats.file_path(file))


def _certificate_files(certificate: PodCertificateProjection) -> dict[str, str]:
    given = {
        "credentialBundlePath": certificate.credential_bundle_path,
        "keyPath": certificate.key_path,
        "certificateChainPath": certificate.certificate_chain_path,
    }
    return {name: file for name, file in given.items() if file}


def _files_of(source: VolumeProjection) -> Iterator[str]:
    """Return the files that a source makes, as far as they are named in it."""
    for projection in (source.secret, source.config_map):
        if projection is not None:
            yield from (item.path for item in projection.items if item.path)
    if source.downward_api is not None:
        yield from (item.path for item in source.downward_api.items if item.path)
    for single in (source.service_account_token, source.cluster_trust_bundle):
        if single is not None and single.path:
            yield single.path
    if source.pod_certificate is not None:
        yield from _certificate_files(source.pod_certificate).values()
