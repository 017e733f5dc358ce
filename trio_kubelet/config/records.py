"""The other kinds of the API group `kubelet.config.k8s.io`.

`CredentialProviderConfig` is in the files behind `--image-credential-provider-config`
(`credential_providers.py`); in version v1 alone a provider may have `tokenAttributes`. The image
pull records are files of the agent's own, under its root folder, in a form that the Go kubelet
shares. `SerializedNodeConfigSource` is a remnant of a feature that Kubernetes took out; it is known
so that such a file is recognized for what it is.
"""

# ruff: noqa: RUF009 - option(), nullable() and part() declare attrs fields

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from attrs import frozen

from trio_kubelet.config.codec import nullable, option


@frozen(kw_only=True)
class ExecEnvVar:
    """An environment variable of a credential provider's process."""

    name: str = option("name", "", always=True)
    value: str = option("value", "", always=True)


@frozen(kw_only=True)
class CredentialProvider:
    """A program that is asked for registry credentials when an image matches."""

    name: str = option("name", "", always=True)
    match_images: tuple[str, ...] = option("matchImages", (), always=True)
    default_cache_duration: timedelta | None = nullable("defaultCacheDuration")
    api_version: str = option("apiVersion", "", always=True)
    args: tuple[str, ...] = option("args", ())
    env: tuple[ExecEnvVar, ...] = option("env", ())


@frozen(kw_only=True)
class CredentialProviderConfig:
    """The credential providers, in the order in which they are asked."""

    providers: tuple[CredentialProvider, ...] = option("providers", (), always=True)


@frozen(kw_only=True)
class ServiceAccountTokenAttributes:
    """The token of a pod's service account that a provider is given, and its annotations."""

    service_account_token_audience: str = option("serviceAccountTokenAudience", "", always=True)
    cache_type: str = option("cacheType", "", always=True)
    require_service_account: bool | None = nullable("requireServiceAccount")
    required_service_account_annotation_keys: tuple[str, ...] = option(
        "requiredServiceAccountAnnotationKeys", ()
    )
    optional_service_account_annotation_keys: tuple[str, ...] = option(
        "optionalServiceAccountAnnotationKeys", ()
    )


@frozen(kw_only=True)
class CredentialProviderV1(CredentialProvider):
    """A provider of v1, which may be given tokens of service accounts."""

    token_attributes: ServiceAccountTokenAttributes | None = nullable("tokenAttributes")


@frozen(kw_only=True)
class CredentialProviderConfigV1:
    """The credential providers of v1."""

    providers: tuple[CredentialProviderV1, ...] = option("providers", (), always=True)


@frozen(kw_only=True)
class ImagePullIntent:
    """Says that the pull of an image was begun; its end takes it away."""

    image: str = option("image", "", always=True)


@frozen(kw_only=True)
class ImagePullSecret:
    """A Secret that an image was pulled with, and the SHA-256 of the credentials in it."""

    uid: str = option("uid", "", always=True)
    namespace: str = option("namespace", "", always=True)
    name: str = option("name", "", always=True)
    credential_hash: str = option("credentialHash", "", always=True)


@frozen(kw_only=True)
class ImagePullServiceAccount:
    """A service account whose token a credential provider turned into the pull's credentials."""

    uid: str = option("uid", "", always=True)
    namespace: str = option("namespace", "", always=True)
    name: str = option("name", "", always=True)


@frozen(kw_only=True)
class ImagePullCredentials:
    """With what an image was pulled, and so who may use it without proving access again."""

    kubernetes_secrets: tuple[ImagePullSecret, ...] = option("kubernetesSecrets", ())
    kubernetes_service_accounts: tuple[ImagePullServiceAccount, ...] = option(
        "kubernetesServiceAccounts", ()
    )
    node_pods_accessible: bool = option("nodePodsAccessible", False)


@frozen(kw_only=True)
class ImagePulledRecord:
    """An image that this node pulled. `last_updated_time` is RFC 3339."""

    last_updated_time: str = option("lastUpdatedTime", "", always=True)
    image_ref: str = option("imageRef", "", always=True)
    credential_mapping: Mapping[str, ImagePullCredentials] = option("credentialMapping", {})


@frozen(kw_only=True)
class SerializedNodeConfigSource:
    """The source of a dynamic configuration."""

    source: Mapping[str, Any] = option("source", {})
