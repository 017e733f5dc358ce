"""Names of TLS versions, cipher suites and curves in the API, and what they are to OpenSSL.

Suites of TLS 1.3 are known, and have no effect here or in Go: the protocol has only good ones.
Go's suites with RC4 and 3DES are left out, because OpenSSL has none of them any more.
"""

import ssl
from collections.abc import Iterable, Mapping, Sequence

VERSIONS: Mapping[str, ssl.TLSVersion] = {
    "": ssl.TLSVersion.TLSv1_2,
    "VersionTLS10": ssl.TLSVersion.TLSv1_2,
    "VersionTLS11": ssl.TLSVersion.TLSv1_2,
    "VersionTLS12": ssl.TLSVersion.TLSv1_2,
    "VersionTLS13": ssl.TLSVersion.TLSv1_3,
}
"""The lowest version that is spoken: never one below 1.2."""

OLD_VERSIONS = frozenset({"VersionTLS10", "VersionTLS11"})

CIPHERS: Mapping[str, str] = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256": "ECDHE-ECDSA-AES128-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": "ECDHE-RSA-AES128-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256": "AES128-SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
}
CIPHERS_OF_1_3 = frozenset(
    {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
)
DEFAULT_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


CURVES: Mapping[int, str] = {23: "prime256v1", 24: "secp384r1", 25: "secp521r1", 29: "X25519"}
"""The curves for key exchanges, by the numbers that TLS has for them. Python's OpenSSL can be held
to one of these; it has no name for the hybrid ones with ML-KEM, and takes no list."""


def only_curve(numbers: Sequence[int]) -> str:
    """The curve that connections are held to; "" where all of OpenSSL's own may be used."""
    return CURVES.get(numbers[0], "") if len(numbers) == 1 else ""


def openssl_ciphers(names: Iterable[str]) -> str:
    """The suites of TLS 1.2 as OpenSSL wants them; the default ones where none is named."""
    chosen = dict.fromkeys(CIPHERS[name] for name in names if name in CIPHERS)
    return ":".join(chosen) or DEFAULT_CIPHERS


def unknown_ciphers(names: Iterable[str]) -> tuple[str, ...]:
    """The ciphers among these that this agent cannot speak."""
    return tuple(name for name in names if name not in CIPHERS.keys() | CIPHERS_OF_1_3)
