"""The node's client certificate: its key, the request for it, and the files it is kept in.

The names and the layout are those of the Go kubelet, so that either finds what the other left:
`kubelet-client-<time>.pem` holds certificate and key, `kubelet-client-current.pem` is a link to
the newest, `kubelet-client.key.tmp` the key of a request that is not answered yet. Every file is
0600 and appears whole. All of it blocks.
"""

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from attrs import frozen
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from trio_kubelet.kernel.whole_files import write_whole

ClientKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
"""A key that is made here is ECDSA on P-256; one that an earlier kubelet left may be RSA."""

PAIR_PREFIX = "kubelet-client"
PENDING_KEY = f"{PAIR_PREFIX}.key.tmp"
NODES_GROUP = "system:nodes"
USER_PREFIX = "system:node:"

DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, CLIENT_AUTH = (
    "digital signature",
    "key encipherment",
    "client auth",
)


@frozen
class ClientPair:
    """A certificate chain, leaf first, with its key."""

    chain: tuple[x509.Certificate, ...]
    key: ClientKey

    def is_valid_at(self, now: datetime) -> bool:
        """True if no certificate of the chain has expired, and the key is the leaf's."""
        if any(now > certificate.not_valid_after_utc for certificate in self.chain):
            return False
        return self.chain[0].public_key() == self.key.public_key()


def read_key(pem: bytes) -> ClientKey:
    """Read a private key that has no password; raises ValueError."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(str(error)) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise ValueError("a key for client certificates is ECDSA or RSA")
    return key


def read_pair(pem: bytes, key_pem: bytes | None = None) -> ClientPair:
    """Read a certificate chain and its key, from one text or from two; raises ValueError."""
    chain = tuple(x509.load_pem_x509_certificates(pem))
    return ClientPair(chain, read_key(pem if key_pem is None else key_pem))


def new_key() -> ClientKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ClientKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def signing_request(key: ClientKey, node_name: str) -> bytes:
    """A PKCS#10 request, in PEM, for the certificate of the user `system:node:NAME`."""
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, NODES_GROUP),
            x509.NameAttribute(NameOID.COMMON_NAME, USER_PREFIX + node_name),
        ]
    )
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def is_request_of(request_pem: bytes, key: ClientKey, node_name: str) -> bool:
    try:
        request = x509.load_pem_x509_csr(request_pem)
        ours = x509.load_pem_x509_csr(signing_request(key, node_name))
    except ValueError:
        return False
    return request.subject == ours.subject and request.public_key() == ours.public_key()


def is_certificate_of(chain_pem: bytes, key: ClientKey, now: datetime) -> bool:
    try:
        chain = tuple(x509.load_pem_x509_certificates(chain_pem))
    except ValueError:
        return False
    return ClientPair(chain, key).is_valid_at(now)


def key_usages(key: ClientKey) -> tuple[str, ...]:
    """The usages of the certificate; an ECDSA key enciphers no keys."""
    if isinstance(key, rsa.RSAPrivateKey):
        return (DIGITAL_SIGNATURE, CLIENT_AUTH, KEY_ENCIPHERMENT)
    return (DIGITAL_SIGNATURE, CLIENT_AUTH)


def request_name(key: ClientKey, node_name: str, usages: Sequence[str]) -> str:
    """The name of a request for this key, node and usages: the same for each attempt.

    A hash as the Go kubelet makes it, so that an attempt of either is found by the other.
    """
    public = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    digest = hashes.Hash(hashes.SHA512_256())
    for part in (public, (USER_PREFIX + node_name).encode(), NODES_GROUP.encode()):
        digest.update(_unpadded(part) + b"|")
    for usage in usages:
        digest.update(_unpadded(usage.encode()) + b"|")
    return f"node-csr-{_unpadded(digest.finalize()).decode()}"


def _unpadded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


class CertificateStore:
    """The folder of the node's client certificates (--cert-dir)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self.current_path = self._folder / f"{PAIR_PREFIX}-current.pem"
        self._pending = self._folder / PENDING_KEY

    def current(self) -> ClientPair | None:
        """The pair in use; None if there is none that can be read."""
        try:
            return read_pair(self.current_path.read_bytes())
        except (OSError, ValueError):
            return None

    def key_to_ask_with(self) -> ClientKey:
        """The key of an earlier certificate or request; a new one is kept until it is certified.

        Raises OSError.
        """
        current = self.current()
        if current is not None:
            return current.key
        try:
            return read_key(self._pending.read_bytes())
        except (FileNotFoundError, ValueError):
            return self.fresh_key()

    def fresh_key(self) -> ClientKey:
        """Make a key that replaces the one of a request that came to nothing. Raises OSError."""
        key = new_key()
        write_private(self._pending, key_pem(key))
        return key

    def write(self, chain_pem: bytes, key: ClientKey, now: datetime) -> ClientPair:
        """Make this the pair in use; the key of the request is not needed any more.

        Raises OSError; ValueError if the certificate is not one for the key.
        """
        content = _only_certificates(chain_pem) + key_pem(key)
        pair = read_pair(content)
        if pair.chain[0].public_key() != key.public_key():
            raise ValueError("the certificate that was issued is for another key")
        path = self._folder / f"{PAIR_PREFIX}-{now:%Y-%m-%d-%H-%M-%S}.pem"
        write_private(path, content)
        _point(self.current_path, path)
        self._pending.unlink(missing_ok=True)
        return pair


def write_private(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file that, unless told else, only its owner may read. Raises OSError."""
    write_whole(path, content, mode=mode, folder_mode=0o755, durable=True)


def _point(link: Path, target: Path) -> None:
    """Make a link point somewhere else in one step. A file in its place is an error, no more."""
    if link.exists() and not link.is_symlink():
        raise FileExistsError(17, "it should be a symbolic link and is a file", str(link))
    beside = link.with_name(f".{link.name}.new")
    beside.unlink(missing_ok=True)
    beside.symlink_to(target)
    beside.replace(link)


def _only_certificates(pem: bytes) -> bytes:
    """The certificates of a text, without what a signer may have written around them."""
    chain = x509.load_pem_x509_certificates(pem)
    return b"".join(each.public_bytes(serialization.Encoding.PEM) for each in chain)


def utc(now_ns: int) -> datetime:
    """A time of day as the certificates' have it."""
    return datetime.fromtimestamp(now_ns / 1e9, UTC)
