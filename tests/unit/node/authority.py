"""A certificate authority for tests: signs what it is asked to."""

from datetime import UTC, datetime, timedelta

from attrs import define, field
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
NOW_NS = round(NOW.timestamp()) * 1_000_000_000
YEAR = timedelta(days=365)


@define
class Authority:
    """Signs requests; a certificate is good from an hour ago."""

    key: ec.EllipticCurvePrivateKey = field(factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    def sign(self, request_pem: bytes, *, until: datetime = NOW + YEAR) -> bytes:
        request = x509.load_pem_x509_csr(request_pem)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(request.subject)
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")]))
            .public_key(request.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(until - 2 * YEAR)
            .not_valid_after(until)
            .sign(self.key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)
