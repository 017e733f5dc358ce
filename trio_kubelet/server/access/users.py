"""The user of a request, by a certificate or by the word of the API server; pure."""

from collections.abc import Mapping
from datetime import datetime

from attrs import evolve, field, frozen
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID, ObjectIdentifier

ANONYMOUS = "system:anonymous"
AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"

CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"
_UID = ObjectIdentifier("1.3.6.1.4.1.57683.2")


@frozen
class User:
    """A user as the API server knows users."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(factory=dict)


NOBODY = User(ANONYMOUS, groups=(UNAUTHENTICATED,))
"""The user without credentials, where such requests are let in at all."""


def authenticated(user: User) -> User:
    """The user with the group of all who have shown credentials."""
    if user.name == ANONYMOUS or {AUTHENTICATED, UNAUTHENTICATED} & set(user.groups):
        return user
    return evolve(user, groups=(*user.groups, AUTHENTICATED))


def user_of_certificate(certificate: x509.Certificate) -> User | None:
    """Name and groups as Kubernetes reads them off a certificate; None if it names nobody."""
    names = _values(certificate, NameOID.COMMON_NAME)
    if not names or not names[-1]:
        return None
    uids = _values(certificate, _UID)
    fingerprint = certificate.fingerprint(hashes.SHA256()).hex()
    return User(
        name=names[-1],
        uid=uids[-1] if uids else "",
        groups=_values(certificate, NameOID.ORGANIZATION_NAME),
        extra={CREDENTIAL_ID: (f"X509SHA256={fingerprint}",)},
    )


def is_valid_at(certificate: x509.Certificate, now: datetime) -> bool:
    """True if `now` is within a certificate's life."""
    return certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc


def is_issued_by_one_of(
    certificate: x509.Certificate, authorities: tuple[x509.Certificate, ...], now: datetime
) -> bool:
    """True if one of the authorities has signed this certificate itself, and is valid now."""
    return any(
        is_valid_at(authority, now) and _has_issued(authority, certificate)
        for authority in authorities
    )


def _has_issued(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _values(certificate: x509.Certificate, oid: ObjectIdentifier) -> tuple[str, ...]:
    found = certificate.subject.get_attributes_for_oid(oid)
    return tuple(each.value for each in found if isinstance(each.value, str))
