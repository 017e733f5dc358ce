"""Config maps and secrets: the data that variables and volumes of pods are made of.

Bytes are base64 on the wire and bytes here. The content of a secret shows in no `repr`.
"""

from collections.abc import Mapping

from attrs import field, frozen

from trio_kubelet.k8s.base import ApiType, confidential
from trio_kubelet.k8s.meta import ObjectMeta


@frozen(kw_only=True, repr=False, eq=False)
class ConfigMap(ApiType):
    """Texts and bytes under keys; no key is in both maps. An immutable one never changes."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(factory=ObjectMeta)
    data: Mapping[str, str] = field(factory=dict)
    binary_data: Mapping[str, bytes] = field(factory=dict)
    immutable: bool | None = None


@frozen(kw_only=True, repr=False, eq=False)
class Secret(ApiType):
    """Confidential bytes under keys; `string_data` is only ever written, never read."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(factory=ObjectMeta)
    type: str = ""
    data: Mapping[str, bytes] = field(factory=dict, metadata=confidential())
    string_data: Mapping[str, str] = field(factory=dict, metadata=confidential())
    immutable: bool | None = None
