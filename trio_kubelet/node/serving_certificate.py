"""A certificate of the node's own making, for a server that was given none.

Names and forms are the Go kubelet's: `kubelet.crt` (the certificate, then the authority that is
made for it alone) and `kubelet.key` below --cert-dir, good for a year. Either finds what the other
has made. All of it blocks.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from trio_kubelet.node.client_certificate import write_private

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
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
    except (FileNotFoundError, ValueError, TypeError):
        return False
    ours = certificate.public_key() == key.public_key()
    return ours and certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc


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
