"""From the text of a manifest to the static pods that it asks for.

A manifest is YAML or JSON; several YAML documents stand for several pods, and so do the items of
a PodList or a List. A static pod is named after its node, is bound to it, tolerates every
NoExecute taint (from a file) and begins as Pending. Marks that only an agent may set are taken
off. The document is then defaulted and validated as the API server would do it. It may not refer
to API objects (gate `PreventStaticPodAPIReferences`), as it runs without an API server; the
fields that do are known by their names, wherever they stand in the spec.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping

from attrs import evolve, fields, has

from trio_kubelet.k8s import ObjectMeta, Pod, PodSpec, PodStatus, Toleration
from trio_kubelet.k8s.base import ApiType, wire_name
from trio_kubelet.k8s.codec import decode
from trio_kubelet.k8s.defaults import with_defaults
from trio_kubelet.k8s.documents import DocumentError, load_documents
from trio_kubelet.k8s.errors import ErrorKind, FieldError, ValidationError
from trio_kubelet.k8s.validation import validate_pod
from trio_kubelet.pod_source import (
    CONFIG_HASH,
    CONFIG_MIRROR,
    CONFIG_SEEN,
    CONFIG_SOURCE,
    Source,
)

_LISTS = ("PodList", "List")  # compared, not hashed: a kind may be anything


class InvalidManifest(ValueError):  # noqa: N818 - the field's word, as in the API's "invalid pod"
    """A manifest, or one document of it, is no pod that can run; `problems` says all of why."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


def load_pod_documents(data: bytes) -> tuple[Mapping[str, object], ...]:
    """Return the document of each pod; raises InvalidManifest when the text is not readable.

    A text without any document is an error, too: a file that was truncated to be written again
    looks like that.
    """
    try:
        documents = load_documents(data)
    except DocumentError as error:
        raise InvalidManifest((str(error),)) from error
    if not documents:
        raise InvalidManifest(("there is no pod in it",))
    return tuple(pod for document in documents for pod in _pods(document))


def _pods(document: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    if document.get("kind") not in _LISTS:
        yield document
        return
    items = document.get("items")
    for index, item in enumerate(items if isinstance(items, list) else ()):
        if not isinstance(item, dict):
            detail = "must be a pod"
            raise InvalidManifest(
                (str(FieldError(f"items[{index}]", ErrorKind.INVALID, item, detail)),)
            )
        # Items of a PodList often leave out what the list says of all of them.
        yield {"apiVersion": "v1", "kind": "Pod", **item}


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


DEFAULT_NAMESPACE = "default"
_AGENTS_ANNOTATIONS = frozenset({CONFIG_HASH, CONFIG_MIRROR, CONFIG_SEEN, CONFIG_SOURCE})
_NO_EXECUTE = Toleration(operator="Exists", effect="NoExecute")

# The UID names folders, cgroups and systemd slices, where an underscore stands for a dash.
_UID = re.compile(r"[A-Za-z0-9]([-.A-Za-z0-9]{0,126}[A-Za-z0-9])?")
_MANIFEST_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def checked_pod(document: Mapping[str, object], source: Source, node_name: str) -> Pod:
    """Return the static pod of a document, complete but for its UID.

    `metadata.uid` is the one that the document gives, or "". Raises InvalidManifest with every
    problem found.
    """
    declared = _decoded(document)
    problems = [*_identity_errors(declared.metadata)]
    pod = with_defaults(
        evolve(
            declared,
            metadata=_metadata(declared.metadata, node_name),
            spec=_spec(declared.spec, source, node_name),
            status=PodStatus(phase="Pending"),
        )
    )
    problems += validate_pod(pod)
    problems += (
        FieldError(path, ErrorKind.FORBIDDEN, None, f"static pods may not reference {resource}")
        for path, resource in api_references(declared.spec)
    )
    if problems:
        raise InvalidManifest(map(str, problems))
    return pod


def with_uid(pod: Pod, uid: str) -> Pod:
    """Return the pod with its UID, which is also its `kubernetes.io/config.hash`."""
    annotations = {**pod.metadata.annotations, CONFIG_HASH: uid}
    return evolve(pod, metadata=evolve(pod.metadata, uid=uid, annotations=annotations))


def manifest_uid(
    document: Mapping[str, object], source: Source, origin: str, node_name: str
) -> str:
    """Return the UID that node, origin and text of a document give.

    Comments and the order of keys do not count. A UUID of version 8, so that it can be told
    from UIDs that others made (the Go kubelet's have no dashes).
    """
    text = json.dumps(document, sort_keys=True, default=str)
    digest = bytearray(hashlib.sha256(f"{node_name}\0{source}:{origin}\0{text}".encode()).digest())
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    digits = digest[:16].hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def is_pod_uid(uid: str) -> bool:
    """True if a static pod may have this UID."""
    return _UID.fullmatch(uid) is not None


def is_manifest_uid(uid: str) -> bool:
    """True if `manifest_uid` made this UID."""
    return _MANIFEST_UID.fullmatch(uid) is not None


def _decoded(document: Mapping[str, object]) -> Pod:
    for name, expected in (("kind", "Pod"), ("apiVersion", "v1")):
        if document.get(name) != expected:
            error = FieldError(name, ErrorKind.INVALID, document.get(name), f"must be {expected}")
            raise InvalidManifest((str(error),))
    try:
        return decode(Pod, document)
    except ValidationError as error:
        raise InvalidManifest(map(str, error.errors)) from error


def _identity_errors(declared: ObjectMeta) -> Iterator[FieldError]:
    if not declared.name:
        yield FieldError("metadata.name", ErrorKind.REQUIRED, None, "name is needed for the pod")
    if declared.uid and not is_pod_uid(declared.uid):
        detail = (
            "must consist of letters, digits, '-' and '.', start and end with a letter or digit, "
            "and have at most 128 characters"
        )
        yield FieldError("metadata.uid", ErrorKind.INVALID, declared.uid, detail)


def _metadata(declared: ObjectMeta, node_name: str) -> ObjectMeta:
    annotations = {
        key: value for key, value in declared.annotations.items() if key not in _AGENTS_ANNOTATIONS
    }
    return evolve(
        declared,
        name=f"{declared.name}-{node_name.lower()}",
        namespace=declared.namespace or DEFAULT_NAMESPACE,
        annotations=annotations,
        deletion_timestamp=None,
        deletion_grace_period_seconds=None,
    )


def _spec(declared: PodSpec, source: Source, node_name: str) -> PodSpec:
    if source is not Source.FILE or _NO_EXECUTE in declared.tolerations:
        return evolve(declared, node_name=node_name)
    return evolve(declared, node_name=node_name, tolerations=(*declared.tolerations, _NO_EXECUTE))
