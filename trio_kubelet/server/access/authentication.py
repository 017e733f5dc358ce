"""The identity of a request's user: by a client certificate, by a bearer token, or nobody.

Credentials that are there and no good make a request unauthenticated, also where requests
without any are let in. TLS has verified a certificate when the connection was opened; on a
connection that outlives the certificate, or the authorities of then, it is looked at again.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import structlog
import trio
from attrs import define, evolve, field, frozen
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID, ObjectIdentifier

from trio_kubelet.k8s import TOKEN_REVIEWS, TokenReview, TokenReviewSpec
from trio_kubelet.k8s.client import Api, ApiError
from trio_kubelet.server.messages import ClientCertificate, Headers, Peer, Request, TcpPeer
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.tasks.future import Expiring, ExpiringCache

log = structlog.get_logger("server")

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


def bearer_token(headers: Headers) -> str | None:
    """The token that a request shows: empty if it shows none, None if there are several."""
    lines = headers.all("authorization")
    if len(lines) > 1:
        return None
    scheme, _, token = headers.first("authorization").strip().partition(" ")
    return token.strip().partition(" ")[0] if scheme.lower() == "bearer" else ""


REVIEWS_AT_ONCE, REVIEWS_OF_A_PEER = 16, 4

AFTER_A_BAD_TOKEN_SECONDS = 0.1
"""So long the place of a review stays taken when the token was nobody's, against guessing."""


class TokenReviewer:
    """Asks the API server whose a token is; `seconds` is how long its answers hold.

    Of tokens only hashes are kept, which are good for nothing outside this process. Peers take
    turns.
    """

    def __init__(self, api: Api, seconds: float) -> None:
        self._api = api
        self._seconds = seconds
        self._key = secrets.token_bytes(32)
        self._reviews: ExpiringCache[bytes, User | None] = ExpiringCache()
        self._turns = FairLimiter(REVIEWS_AT_ONCE, REVIEWS_OF_A_PEER)

    async def user(self, token: str, peer: Peer) -> User | None:
        """The user whose token it is, None if nobody's. Raises ApiError."""

        async def fetch() -> Expiring[User | None]:
            async with self._turns.share(peer.host if isinstance(peer, TcpPeer) else ""):
                user = await self._review(token)
                if user is None:
                    await trio.sleep(AFTER_A_BAD_TOKEN_SECONDS)
            return Expiring(user, self._seconds)

        digest = hmac.digest(self._key, token.encode(), hashlib.sha256)
        return await self._reviews.get(digest, fetch)

    async def _review(self, token: str) -> User | None:
        review = TokenReview(spec=TokenReviewSpec(token=token))
        status = (await self._api.create(TOKEN_REVIEWS, review)).status
        found = status.user
        if not status.authenticated or found is None:
            return None
        return User(found.username, found.uid, found.groups, found.extra)


@define
class Authenticator:
    """Says who makes a request; `tokens` is None where tokens are not accepted.

    `authorities` is what clients' certificates are verified by now, in PEM.
    """

    clock: Clock
    authorities: Callable[[], bytes] = bytes
    tokens: TokenReviewer | None = None
    anonymous: bool = False
    _parsed: tuple[bytes, tuple[x509.Certificate, ...]] = field(default=(b"", ()), init=False)

    async def user(self, request: Request) -> User | None:
        """The user that makes the request; None if that is not to be known."""
        bad = False
        if request.certificate is not None:
            certificate = self._good(request.certificate)
            bad = certificate is None
            user = user_of_certificate(certificate) if certificate is not None else None
            if user is not None:
                return authenticated(user)
        token = bearer_token(request.headers)
        if self.tokens is not None and token != "":
            user = await self._user_of_token(self.tokens, token, request.peer) if token else None
            return None if user is None else authenticated(user)
        return NOBODY if self.anonymous and not bad else None

    async def _user_of_token(self, tokens: TokenReviewer, token: str, peer: Peer) -> User | None:
        try:
            return await tokens.user(token, peer)
        except ApiError as error:
            log.warning("token review failed", error=str(error))
            return None

    def _good(self, shown: ClientCertificate) -> x509.Certificate | None:
        """The certificate, if it is good now."""
        now = datetime.fromtimestamp(self.clock.now_ns() / 1e9, UTC)
        try:
            certificate = x509.load_der_x509_certificate(shown.der)
        except ValueError as error:
            log.info("client certificate is malformed", error=str(error))
            return None
        if not is_valid_at(certificate, now):
            return None
        if shown.verified_by == self.authorities():
            return certificate
        is_issued = is_issued_by_one_of(certificate, self._parsed_authorities(), now)
        return certificate if is_issued else None

    def _parsed_authorities(self) -> tuple[x509.Certificate, ...]:
        pem = self.authorities()
        if self._parsed[0] != pem:
            self._parsed = pem, _certificates(pem)
        return self._parsed[1]


def _certificates(pem: bytes) -> tuple[x509.Certificate, ...]:
    """The certificates of a bundle; none if it is one that only OpenSSL understands."""
    try:
        return tuple(x509.load_pem_x509_certificates(pem))
    except ValueError:
        return ()
