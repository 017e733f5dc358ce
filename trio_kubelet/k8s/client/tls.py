"""TLS as the API server and its clients use it.

Certificates and keys are values here, so that a change is seen by comparing. OpenSSL reads them
from files alone: they get one in memory, which no disk ever sees.
"""

import os
import ssl
from typing import Any

from attrs import field, frozen


@frozen
class Tls:
    """Certificates and keys of a connection in PEM. Without `authority` the system's ones count.

    `server_name` is what the server's certificate must be for, where it is not the URL's host.
    """

    authority: bytes = b""
    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)
    server_name: str = ""
    insecure: bool = False


def ssl_context(tls: Tls) -> ssl.SSLContext:
    """Make the context of new connections; raises ValueError for what is no certificate or key.

    As in Go, any certificate of the authority is an anchor, intermediate ones too.
    """
    context = _NamedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.server_name = tls.server_name
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if tls.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif tls.authority:
        try:
            context.load_verify_locations(cadata=tls.authority.decode("ascii", "ignore"))
        except (ssl.SSLError, ValueError) as error:
            raise ValueError(f"the certificate authority is not usable: {error}") from None
    else:
        context.load_default_certs()
    if tls.certificate:
        try:
            load_pair(context, tls.certificate, tls.key)
        except ssl.SSLError as error:
            why = f"the client certificate and its key are not usable: {error}"
            raise ValueError(why) from None
    return context


class _NamedContext(ssl.SSLContext):
    """Expects a certificate for another name than that of the URL, also behind a proxy."""

    server_name: str = ""

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: Any = None,
    ) -> ssl.SSLObject:
        name = self.server_name or server_hostname
        return super().wrap_bio(incoming, outgoing, server_side, name, session)


def load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Give a context a certificate chain and its key; raises ssl.SSLError.

    Both go through one file; the one that a kubelet rotates holds both already.
    """
    both = certificate if key == certificate else certificate + b"\n" + key
    fd = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(both)
        context.load_cert_chain(f"/proc/self/fd/{fd}", password="")
    finally:
        os.close(fd)
