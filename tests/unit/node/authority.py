"""A certificate authority for tests: signs what it is asked to."""

import base64
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
    """Signs requests, with the names that they ask for."""

    leaves_out_names: bool = False
    key: ec.EllipticCurvePrivateKey = field(factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    def sign(
        self, request_pem: bytes, *, until: datetime = NOW + YEAR, begin: datetime | None = None
    ) -> bytes:
        """Sign; without `begin` a certificate is good from two years before its end."""
        request = x509.load_pem_x509_csr(request_pem)
        builder = (
            x509.CertificateBuilder()
            .subject_name(request.subject)
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")]))
            .public_key(request.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(until - 2 * YEAR if begin is None else begin)
            .not_valid_after(until)
        )
        for extension in () if self.leaves_out_names else request.extensions:
            builder = builder.add_extension(extension.value, critical=extension.critical)
        certificate = builder.sign(self.key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM)


def edited(chain_pem: bytes, old: bytes, new: bytes) -> bytes:
    """A certificate with other bytes of the same length in the place of the first such ones."""
    der = x509.load_pem_x509_certificate(chain_pem).public_bytes(serialization.Encoding.DER)
    assert old in der
    assert len(old) == len(new)
    lines = base64.encodebytes(der.replace(old, new, 1))
    return b"-----BEGIN CERTIFICATE-----\n" + lines + b"-----END CERTIFICATE-----\n"


ODD_CERTIFICATES: dict[str, tuple[bytes, bytes]] = {
    "key of an unknown kind": (
        b"\x2a\x86\x48\xce\x3d\x02\x01",
        b"\x2a\x86\x48\xce\x3d\x02\x05",
    ),
    "version of the future": (b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x07"),
    "names of another form": (b"\x55\x1d\x11\x04", b"\x55\x1d\x13\x04"),
    "name of an unsupported type": (b"\x82\x06node-1", b"\xa3\x06node-1"),
}
"""Bytes of a certificate for a port, and such ones in their place that make it unreadable."""
