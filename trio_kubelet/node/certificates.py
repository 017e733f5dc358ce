"""The node's certificates: those that a cluster signs, and one of its own making.

Names and forms are those of the Go kubelet, so that either finds what the other left, all below
--cert-dir. `kubelet-client-<time>.pem` holds certificate and key of the client,
`kubelet-client-current.pem` is a link to the newest, `kubelet-client.key.tmp` the key of the first
request, while that is not answered and certificates are not rotated; `kubelet-server-…` are those
of the node's port. A server that was given no certificate has `kubelet.crt` (the certificate, then
the authority that is made for it alone) and `kubelet.key`, good for a year. Every file appears
whole; keys are 0600. All of it blocks.
"""

import base64
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from attrs import field, frozen
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from trio_kubelet.kernel.whole_files import write_whole

# X.520 allows 64 characters for a user. Names of nodes have up to 253, and no signer of Kubernetes
# minds; the library warns of each that it makes or reads.
warnings.filterwarnings("ignore", "Attribute's length must be", UserWarning)

ClientKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
"""A key that is made here is ECDSA on P-256; one that an earlier kubelet left may be RSA."""

UNREADABLE = (
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""Errors of certificates that are no ValueError."""

CLIENT, SERVER = "kubelet-client", "kubelet-server"
"""The beginnings of the names of files."""

NODES_GROUP = "system:nodes"
USER_PREFIX = "system:node:"

DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, CLIENT_AUTH, SERVER_AUTH = (
    "digital signature",
    "key encipherment",
    "client auth",
    "server auth",
)


@frozen
class ClientPair:
    """A certificate chain, leaf first, with its key; `pem` has both."""

    chain: tuple[x509.Certificate, ...]
    key: ClientKey
    pem: bytes = field(default=b"", repr=False, eq=False)

    @property
    def not_before(self) -> datetime:
        """The time from which the certificate itself is good."""
        return self.chain[0].not_valid_before_utc

    @property
    def not_after(self) -> datetime:
        """The time until which the certificate itself is good."""
        return self.chain[0].not_valid_after_utc

    def is_valid_at(self, now: datetime) -> bool:
        """True if no certificate of the chain has expired, and the key is the leaf's."""
        if any(now > certificate.not_valid_after_utc for certificate in self.chain):
            return False
        return self.chain[0].public_key() == self.key.public_key()


@frozen
class CertificateNames:
    """The names that a certificate of the node is to have: its user's, and those of its port."""

    node_name: str
    dns_names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()

    def are_in(self, certificate: x509.Certificate) -> bool:
        """True if a certificate has all of them; it may have more."""
        subject = certificate.subject
        if USER_PREFIX + self.node_name not in _values(subject, NameOID.COMMON_NAME):
            return False
        if NODES_GROUP not in _values(subject, NameOID.ORGANIZATION_NAME):
            return False
        dns_names, addresses = _alternative_names(certificate)
        return dns_names.issuperset(self.dns_names) and addresses.issuperset(self.addresses)


def _alternative_names(certificate: x509.Certificate) -> tuple[frozenset[str], frozenset[str]]:
    """The DNS names and the addresses that a certificate is for."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset(), frozenset()
    return frozenset(names.get_values_for_type(x509.DNSName)), frozenset(
        map(str, names.get_values_for_type(x509.IPAddress))
    )


def _values(subject: x509.Name, oid: x509.ObjectIdentifier) -> tuple[str | bytes, ...]:
    return tuple(attribute.value for attribute in subject.get_attributes_for_oid(oid))


def read_key(pem: bytes) -> ClientKey:
    """Read a private key that has no password; raises ValueError."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(str(error)) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise ValueError("a key for client certificates is ECDSA or RSA")
    return key


def read_chain(pem: bytes) -> tuple[x509.Certificate, ...]:
    """Read a certificate chain, leaf first; raises ValueError.

    Parts of a certificate are read when they are asked for, each with errors of its own. Those of
    the leaf that are asked for later are read here: a chain that was read once makes no trouble.
    """
    try:
        chain = tuple(x509.load_pem_x509_certificates(pem))
        leaf = chain[0]
        _ = leaf.subject, leaf.public_key(), _alternative_names(leaf)
    except UNREADABLE as error:
        raise ValueError(f"the certificate cannot be read: {error}") from error
    return chain


def read_pair(pem: bytes, key_pem: bytes | None = None) -> ClientPair:
    """Read a certificate chain and its key, from one text or from two; raises ValueError."""
    chain = read_chain(pem)
    if key_pem is None or key_pem == pem:
        return ClientPair(chain, read_key(pem), pem)
    return ClientPair(chain, read_key(key_pem), pem + b"\n" + key_pem)


def issued_pair(chain_pem: bytes, key: ClientKey) -> ClientPair:
    """The pair of what was issued for a key; raises ValueError if it is for another one."""
    pair = read_pair(_only_certificates(chain_pem) + key_pem(key))
    if pair.chain[0].public_key() != key.public_key():
        raise ValueError("the certificate that was issued is for another key")
    return pair


def new_key() -> ClientKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ClientKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def signing_request(key: ClientKey, names: CertificateNames) -> bytes:
    """A PKCS#10 request, in PEM, for a certificate with these names.

    Raises ValueError for a DNS name that no certificate can have.
    """
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, NODES_GROUP),
            x509.NameAttribute(NameOID.COMMON_NAME, USER_PREFIX + names.node_name, _validate=False),
        ]
    )
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in names.dns_names]
    alternatives += [x509.IPAddress(ip_address(address)) for address in names.addresses]
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def is_request_of(request_pem: bytes, key: ClientKey, node_name: str) -> bool:
    try:
        request = x509.load_pem_x509_csr(request_pem)
        ours = x509.load_pem_x509_csr(signing_request(key, CertificateNames(node_name)))
    except ValueError:
        return False
    return request.subject == ours.subject and request.public_key() == ours.public_key()


def is_certificate_of(chain_pem: bytes, key: ClientKey, now: datetime) -> bool:
    try:
        chain = read_chain(chain_pem)
    except ValueError:
        return False
    return ClientPair(chain, key).is_valid_at(now)


def key_usages(key: ClientKey, usage: str = CLIENT_AUTH) -> tuple[str, ...]:
    """The usages of the certificate; an ECDSA key enciphers no keys."""
    if isinstance(key, rsa.RSAPrivateKey):
        return (DIGITAL_SIGNATURE, usage, KEY_ENCIPHERMENT)
    return (DIGITAL_SIGNATURE, usage)


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


DATED = "[0-9]" * 4 + "-[0-9][0-9]" * 5 + ".pem"
"""The end of the name of a pair's file, as a pattern."""


class CertificateStore:
    """The certificates of one kind in the folder of --cert-dir."""

    def __init__(self, folder: Path, prefix: str = CLIENT) -> None:
        self._folder = folder.absolute()
        self._prefix = prefix
        self.current_path = self._folder / f"{prefix}-current.pem"
        self._pending = self._folder / f"{prefix}.key.tmp"

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
        """Make what was issued the pair in use. Raises as `issued_pair` and `put` do."""
        pair = issued_pair(chain_pem, key)
        self.put(pair, now)
        return pair

    def put(self, pair: ClientPair, issued_at: datetime) -> None:
        """Make a pair the one in use; the key of the request is not needed any more.

        Earlier ones that have expired are removed, others left. Raises OSError; called again with
        the same time, it leaves no second file.
        """
        path = self._folder / f"{self._prefix}-{issued_at:%Y-%m-%d-%H-%M-%S}.pem"
        write_private(path, pair.pem)
        _point(self.current_path, path)
        self._pending.unlink(missing_ok=True)
        self._remove_expired(path, issued_at)

    def take_over(self, pair: ClientPair, now: datetime) -> ClientPair:
        """Make a pair that somebody else has got the one in use. Raises as `write` does."""
        return self.write(pair.pem, pair.key, now)

    def _remove_expired(self, newest: Path, now: datetime) -> None:
        for path in self._folder.glob(f"{self._prefix}-{DATED}"):
            try:
                if path != newest and now > read_pair(path.read_bytes()).not_after:
                    path.unlink()
            except (OSError, ValueError):
                continue  # Not a pair of ours, or gone already.


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
    chain = read_chain(pem)
    return b"".join(each.public_bytes(serialization.Encoding.PEM) for each in chain)


def utc(now_ns: int) -> datetime:
    """A time of day as the certificates' have it."""
    return datetime.fromtimestamp(now_ns / 1e9, UTC)


CERTIFICATE, KEY = "kubelet.crt", "kubelet.key"
LIFE = timedelta(days=365)
BACKDATED = timedelta(hours=1)
KEY_BITS = 2048


def ensure_self_signed(folder: Path, host: str, now: datetime) -> tuple[Path, Path]:
    """The files of a certificate that is good now, and of its key. Raises OSError.

    They are made if there are none, or none that are any good.
    """
    certificate_file, key_file = folder / CERTIFICATE, folder / KEY
    if not _is_good(certificate_file, key_file, now):
        certificate, key = self_signed(host, now)
        write_private(key_file, key)
        write_private(certificate_file, certificate, mode=0o644)
    return certificate_file, key_file


def _is_good(certificate_file: Path, key_file: Path, now: datetime) -> bool:
    try:
        pair = read_pair(certificate_file.read_bytes(), key_file.read_bytes())
    except (FileNotFoundError, ValueError):
        return False
    return pair.not_before <= now and pair.is_valid_at(now)


def self_signed(host: str, now: datetime) -> tuple[bytes, bytes]:
    """A certificate for a host with the authority that has issued it, and its key, in PEM."""
    host, stamp = host.lower(), int(now.timestamp())
    authority_key, key = _key(), _key()
    issuer = _name(f"{host}-ca@{stamp}")
    authority = (
        _builder(issuer, issuer, authority_key, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        _builder(_name(f"{host}@{stamp}"), issuer, key, now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return certificate.public_bytes(pem) + authority.public_bytes(pem), key.private_bytes(
        pem, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: rsa.RSAPrivateKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before((now - BACKDATED).astimezone(UTC))
        .not_valid_after((now + LIFE).astimezone(UTC))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=True,
        key_cert_sign=signs_certificates,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
