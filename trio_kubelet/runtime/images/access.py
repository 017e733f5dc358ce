"""The use of images that are on the node already: the rules of KEP-2535, without any I/O.

An image may have been pulled with one tenant's credentials, and the runtime gives it to whoever
names it. So there is a record of each image that this node pulled, which says for each name that
it was pulled by whether all pods may use it or with which secrets and service accounts access was
proven. A pod may use the image if it shows one of them; if it does not, the registry is asked, by
pulling again.
"""

import hashlib
from collections.abc import Iterable, Sequence
from enum import StrEnum

from attrs import evolve, frozen

from trio_kubelet.config.records import (
    ImagePullCredentials,
    ImagePulledRecord,
    ImagePullSecret,
    ImagePullServiceAccount,
)
from trio_kubelet.k8s import Time
from trio_kubelet.k8s.image_reference import full_image_name, name_alone
from trio_kubelet.k8s.json_text import go_json

RECORDED_SECRETS = 100
"""Secrets that are only recognized are recorded while a name has fewer (KEP-2535, against endless
writes where namespaces come and go). What is proven by a pull is always recorded."""


class VerificationPolicy(StrEnum):
    """`imagePullCredentialsVerificationPolicy`: of which images access is to be proven."""

    NEVER_VERIFY = "NeverVerify"
    NEVER_VERIFY_PRELOADED_IMAGES = "NeverVerifyPreloadedImages"
    NEVER_VERIFY_ALLOWLISTED_IMAGES = "NeverVerifyAllowlistedImages"
    ALWAYS_VERIFY = "AlwaysVerify"


@frozen(kw_only=True)
class Verification:
    """The policy, and `preloadedImagesVerificationAllowlist`.

    An entry of the list is the name of an image without tag and digest, or `<prefix>/*`.
    """

    policy: VerificationPolicy = VerificationPolicy.NEVER_VERIFY_PRELOADED_IMAGES
    allowlist: tuple[str, ...] = ()

    def is_needed(self, image: str, *, pulled_here: bool) -> bool:
        """True if a pod has to prove access to an image, by the name that its container gives.

        `pulled_here`: there is a record of its pull, or of one that may be under way.
        """
        match self.policy:
            case VerificationPolicy.NEVER_VERIFY:
                return False
            case VerificationPolicy.NEVER_VERIFY_PRELOADED_IMAGES:
                return pulled_here
            case VerificationPolicy.NEVER_VERIFY_ALLOWLISTED_IMAGES:
                return not any(_matches(entry, name_alone(image)) for entry in self.allowlist)
            case VerificationPolicy.ALWAYS_VERIFY:
                return True


def _matches(entry: str, name: str) -> bool:
    if entry.endswith("/*"):
        return name.startswith(entry.removesuffix("*"))
    return name == entry


def may_have_brought(pulls: Iterable[str], names: Iterable[str]) -> bool:
    """True if one of the pulls, each by its image's name, may have brought an image.

    `names` are all that lead to the image: the one that a container gives, and its tags and
    digests as the runtime lists them. A pull gives the image its own name, so another tag or
    digest of the same image is no way round, and other images of the repository are not affected.
    """
    pulled = {full_image_name(name) for name in pulls}
    return bool(pulled) and not pulled.isdisjoint(map(full_image_name, names))


def credential_hash(username: str, password: str, email: str, identity_token: str) -> str:
    """Return the SHA-256 by which the Go kubelet recognizes credentials.

    It is made over the JSON of all that is not empty. Only tokens are our own addition: the Go
    kubelet does not read them from secrets.
    """
    parts = {
        "username": username,
        "password": password,
        "email": email,
        "identitytoken": identity_token,
    }
    text = go_json({name: part for name, part in parts.items() if part})
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


class AccessCheck(StrEnum):
    """Results of a check of a pod's access to an image, in the words of KEP-2535's metric."""

    POLICY_ALLOWED = "credentialPolicyAllowed"
    """Access to this image need not be proven."""
    RECORD_FOUND = "credentialRecordFound"
    """It was proven before."""
    MUST_AUTHENTICATE = "mustAuthenticate"
    """The registry is to be asked."""


@frozen
class Access:
    """True if a pod may use an image; `proof` is a secret that is to be recorded with it."""

    is_allowed: bool
    proof: ImagePullSecret | None = None


def access(known: ImagePullCredentials, own: Iterable[ImagePullSecret]) -> Access:
    """Return what a pod's own secrets (those for this image) are worth (KEP-2535).

    A secret is recognized by the login in it, whatever its name, and by its name, namespace and
    UID, whatever is in it now: a login that was exchanged need not be proven anew.
    """
    if known.node_pods_accessible:
        return Access(True)
    recorded = known.kubernetes_secrets
    logins = {secret.credential_hash for secret in recorded if secret.credential_hash}
    places = {_place(secret) for secret in recorded}
    recognized = [
        secret for secret in own if secret.credential_hash in logins or _place(secret) in places
    ]
    if not recognized:
        return Access(False)
    is_news = set(recorded).isdisjoint(recognized) and len(recorded) < RECORDED_SECRETS
    return Access(True, recognized[0] if is_news else None)


def with_access(
    record: ImagePulledRecord, image: str, credentials: ImagePullCredentials | None, now: Time
) -> ImagePulledRecord:
    """Return the record with what a pull of `image` was made with; itself if that says no more.

    None: nobody knows with what it was pulled, so that nobody has proven access by that.
    """
    if credentials is None:
        return record
    name = name_alone(image)
    before = record.credential_mapping.get(name)
    after = credentials if before is None else _merged(before, credentials)
    if after == before:
        return record
    mapping = {**record.credential_mapping, name: after}
    return evolve(record, credential_mapping=mapping, last_updated_time=str(now))


def _merged(before: ImagePullCredentials, new: ImagePullCredentials) -> ImagePullCredentials:
    if before.node_pods_accessible:
        return before
    if new.node_pods_accessible:
        return ImagePullCredentials(node_pods_accessible=True)
    accounts = {*before.kubernetes_service_accounts, *new.kubernetes_service_accounts}
    return evolve(
        before,
        kubernetes_secrets=_united(before.kubernetes_secrets, new.kubernetes_secrets),
        kubernetes_service_accounts=(
            before.kubernetes_service_accounts
            if accounts == {*before.kubernetes_service_accounts}
            else tuple(sorted(accounts, key=_place))
        ),
    )


def _united(
    before: Sequence[ImagePullSecret], new: Sequence[ImagePullSecret]
) -> tuple[ImagePullSecret, ...]:
    """Each secret once, with its newest content, in the order in which the Go kubelet has them."""
    if set(new) <= set(before):
        return tuple(before)
    secrets = {_place(secret): secret for secret in (*before, *new)}
    return tuple(secrets[place] for place in sorted(secrets))


def _place(source: ImagePullSecret | ImagePullServiceAccount) -> tuple[str, str, str]:
    return source.namespace, source.name, source.uid
