"""A peer of TLS 1.3 that sends what no library of TLS sends: records by its own choice."""

import ssl
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

HANDSHAKE, DATA = 22, 23
"""Types of records."""


class Records:
    """Makes the records of one end of a connection, from the first after the handshake on.

    The end itself must have sent none. `side` is CLIENT or SERVER; `key_log` is where its context
    has written the secrets of the connection.
    """

    def __init__(self, key_log: Path, side: str) -> None:
        lines = [line.split() for line in key_log.read_text().splitlines()]
        (secret,) = (each[2] for each in lines if each[0] == f"{side}_TRAFFIC_SECRET_0")
        self._use(bytes.fromhex(secret))

    def data(self, content: bytes) -> bytes:
        """A record of data."""
        return self._record(DATA, content)

    def key_update(self) -> bytes:
        """A record by which the keys change, which asks the other end to change its own."""
        record = self._record(HANDSHAKE, b"\x18\0\0\1\1")
        self._use(_expanded(self._secret, b"traffic upd", len(self._secret)))
        return record

    def _use(self, secret: bytes) -> None:
        self._secret = secret
        self._key = AESGCM(_expanded(secret, b"key", 32))
        self._nonce = int.from_bytes(_expanded(secret, b"iv", 12))
        self._number = 0

    def _record(self, kind: int, content: bytes) -> bytes:
        head = b"\x17\3\3" + (len(content) + 17).to_bytes(2)
        nonce = (self._nonce ^ self._number).to_bytes(12)
        self._number += 1
        return head + self._key.encrypt(nonce, content + bytes((kind,)), head)


def log_keys(context: ssl.SSLContext, key_log: Path) -> None:
    """Have the secrets of a context's connection written down; it sends nothing of itself."""
    context.keylog_filename = str(key_log)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if context.protocol is ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0


def _expanded(secret: bytes, label: bytes, size: int) -> bytes:
    """HKDF-Expand-Label of RFC 8446, 7.1, without a context."""
    info = size.to_bytes(2) + bytes((6 + len(label),)) + b"tls13 " + label + b"\0"
    return HKDFExpand(SHA384(), size, info).derive(secret)
