"""TLS for the node's port: contexts made of files, and listeners that take the newest one.

A client is asked for a certificate where there are authorities to verify it by, and need not show
one. Sessions are not resumed: each connection shows its certificate anew. When a file changes,
new connections get a new context; open connections keep theirs. Files that cannot be used leave
the previous context in place. Before a cluster has signed the first certificate every handshake
ends with the alert `internal_error`, as on a Go kubelet.
"""

import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import structlog
import trio
from attrs import evolve, field, frozen

from trio_kubelet.config.tls_names import DEFAULT_CIPHERS
from trio_kubelet.k8s.client.tls import load_pair
from trio_kubelet.kernel.bounded_files import read_bounded
from trio_kubelet.kernel.path_watch import PathWatch
from trio_kubelet.server.messages import ClientCertificate
from trio_kubelet.tasks.threads import run_in_thread
from trio_kubelet.tls_stream import TlsStream

log = structlog.get_logger("server")

MAX_FILE_BYTES = 4 << 20
"""Of the certificate, the key, the authorities."""
RE_READ_SECONDS = 60.0
"""The interval of reads though no change was seen: links may lead to other folders.

A certificate that is in memory only, as the disk does not take it, is shown after so long."""


@frozen
class ServerTls:
    """The settings of connections; certificates, keys and authorities as PEM, ciphers as OpenSSL's.

    Without `certificate` no handshake succeeds, without `authorities` no client is asked for one.
    `curve` is the only one for key exchanges, if any.
    """

    certificate: bytes | None
    key: bytes = field(repr=False)
    authorities: bytes | None = None
    minimum_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    ciphers: str = DEFAULT_CIPHERS
    curve: str = ""


class ServerContext(ssl.SSLContext):
    """The context of connections, which remembers whom it trusts."""

    authorities: bytes = b""


def server_context(tls: ServerTls) -> ServerContext:
    """Make the context of new connections; raises ValueError that says what is not usable."""
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = tls.minimum_version
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.set_ciphers(tls.ciphers)
    except ssl.SSLError as error:
        raise ValueError(f"the cipher suites are not usable: {error}") from None
    if tls.curve:
        context.set_ecdh_curve(tls.curve)
    if tls.certificate is not None:
        try:
            load_pair(context, tls.certificate, tls.key)
        except ssl.SSLError as error:
            raise ValueError(f"the certificate and its key are not usable: {error}") from None
    else:
        context.sni_callback = _end_handshake  # Called whether a client sends a name or not.
    if tls.authorities is not None:
        _verify_clients(context, tls.authorities)
    return context


def _end_handshake(_connection: object, _name: str | None, _context: ssl.SSLContext) -> int:
    return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR


def _verify_clients(context: ServerContext, authorities: bytes) -> None:
    """Any certificate of the bundle is an anchor, as in Go; a bundle without one is not usable."""
    try:
        context.load_verify_locations(cadata=authorities.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError) as error:
        why = f"the certificate authorities of clients are not usable: {error}"
        raise ValueError(why) from None
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.authorities = authorities


class TlsListener(trio.abc.Listener[TlsStream]):
    """Wraps the connections of another listener; who serves them makes the handshake."""

    def __init__(
        self, transport: trio.SocketListener, context: Callable[[], ssl.SSLContext]
    ) -> None:
        self._transport = transport
        self._context = context

    async def accept(self) -> TlsStream:
        """Wait for a connection; it gets the current context."""
        return TlsStream(await self._transport.accept(), self._context())

    async def aclose(self) -> None:
        """Close the listener below."""
        await self._transport.aclose()


def over_tls(
    listeners: Sequence[trio.SocketListener], context: Callable[[], ssl.SSLContext]
) -> Sequence[TlsListener]:
    """The same addresses, over TLS."""
    return [TlsListener(listener, context) for listener in listeners]


def shown_certificate(stream: TlsStream) -> ClientCertificate | None:
    """The certificates that a client has shown, once its handshake is over."""
    der, context = stream.certificate, stream.context
    if der is None or not isinstance(context, ServerContext):
        return None
    return ClientCertificate(der, context.authorities)


@frozen
class TlsFiles:
    """The files of certificate, key and clients' authorities, with the other settings of TLS.

    One file may hold certificate and key. `is_awaited` says that it may not be there yet.
    `unwritten()` gives what it should have while the disk does not take that, else nothing.
    """

    certificate: Path
    key: Path
    authorities: Path | None = None
    minimum_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    ciphers: str = DEFAULT_CIPHERS
    curve: str = ""
    is_awaited: bool = False
    unwritten: Callable[[], bytes] = bytes

    @property
    def paths(self) -> tuple[Path, ...]:
        """All of them."""
        return tuple(filter(None, {self.certificate: 0, self.key: 0, self.authorities: 0}))

    def read(self) -> ServerTls:
        """The content of the files now. Blocks; raises OSError."""
        certificate = self.unwritten() or self._certificate()
        return ServerTls(
            certificate=certificate,
            key=certificate or b""
            if self.key == self.certificate
            else read_bounded(self.key, MAX_FILE_BYTES),
            authorities=read_bounded(self.authorities, MAX_FILE_BYTES)
            if self.authorities
            else None,
            minimum_version=self.minimum_version,
            ciphers=self.ciphers,
            curve=self.curve,
        )

    def _certificate(self) -> bytes | None:
        try:
            return read_bounded(self.certificate, MAX_FILE_BYTES)
        except FileNotFoundError:
            if self.is_awaited:
                return None
            raise


class CurrentTls:
    """Holds the newest `context`. `open` makes it."""

    def __init__(self, files: TlsFiles, tls: ServerTls) -> None:
        self.context = server_context(tls)
        self._files = files
        self._tls = tls
        self._limiter = trio.CapacityLimiter(1)

    @classmethod
    async def open(cls, files: TlsFiles) -> Self:
        """Read the files and make the context. Raises OSError and ValueError."""
        tls = await run_in_thread(files.read)
        try:
            return cls(files, tls)
        except ValueError as error:
            if not files.is_awaited:
                raise
            log.warning("certificate cannot be used, waiting for another", error=str(error))
            return cls(files, evolve(tls, certificate=None))

    async def reload(self) -> None:
        """Read the files and make the context anew if they have changed; OSError, ValueError."""
        tls = await run_in_thread(self._files.read, limiter=self._limiter)
        if tls == self._tls:
            return
        self.context, self._tls = server_context(tls), tls
        log.info("server certificates reloaded", files=[str(path) for path in self._files.paths])

    async def follow(self) -> None:
        """Load the files whenever one of them changes, forever."""
        async with trio.open_nursery() as nursery:
            for path in self._files.paths:
                nursery.start_soon(self._follow, path)

    async def _follow(self, path: Path) -> None:
        complained = ""
        with PathWatch(path) as watch:
            while True:
                await run_in_thread(watch.arm, limiter=self._limiter)
                try:
                    await self.reload()
                    complained = ""
                except (OSError, ValueError) as error:
                    if str(error) != complained:
                        log.warning(
                            "certificate reload failed, keeping the previous certificates",
                            error=str(error),
                        )
                    complained = str(error)
                with trio.move_on_after(RE_READ_SECONDS):
                    await watch.changed()
