"""TLS with a container that is asked: its certificate is not verified, and its key may be odd.

What a handshake costs is up to the other end: with an RSA key of 16,384 bits, or one with a large
exponent, some ten times what it costs with others. So the time that it takes is counted as work for
the pod's probes.
"""

import ssl
import time
from contextvars import ContextVar

import trio

from trio_kubelet.pod_clients.http2 import PROTOCOL
from trio_kubelet.pod_clients.share import ProbeShare
from trio_kubelet.pod_clients.stream import ProbeStream

_share: ContextVar[ProbeShare] = ContextVar("share")
"""The share that pays for the handshake of the task."""


class _CountedEnd(ssl.SSLObject):
    """One end of a connection, whose handshake is counted."""

    def do_handshake(self) -> None:
        began = time.thread_time()
        try:
            super().do_handshake()
        finally:
            _share.get().use(time.thread_time() - began)


def probe_tls() -> ssl.SSLContext:
    """Make the settings of all connections to containers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.sslobject_class = _CountedEnd
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([PROTOCOL, "http/1.1"])
    # Python's own leave out ciphers that old servers have alone. Without finite-field
    # Diffie-Hellman, which Go does not have either: the server chooses how large its prime is.
    context.set_ciphers("DEFAULT:!kDHE")
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


async def over_probe_tls(
    raw: ProbeStream, context: ssl.SSLContext, host: str, share: ProbeShare
) -> trio.SSLStream[ProbeStream]:
    """Make the handshake. Raises what the stream raises, and trio.BrokenResourceError."""
    stream = trio.SSLStream(raw, context, server_hostname=host, https_compatible=True)
    _share.set(share)
    await stream.do_handshake()
    return stream
