"""The node's port for others: HTTPS, and nothing is answered before it is known who asks.

The start fails if a client cannot be authenticated as the configuration says: a port that would
let in nobody, or everybody by accident, is not opened.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import structlog
import trio
from attrs import field, frozen

from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.config.settings import Settings
from trio_kubelet.config.tls_names import VERSIONS, only_curve, openssl_ciphers
from trio_kubelet.errors import StartError
from trio_kubelet.k8s.client import Api
from trio_kubelet.ports.listeners import listening
from trio_kubelet.server import Handler, Limits, Route, Router, serve_http
from trio_kubelet.server.access import (
    AnswerSeconds,
    Authenticator,
    Authorize,
    TokenReviewer,
    Webhook,
    allow_always,
    guard,
)
from trio_kubelet.server.tls import CurrentTls, TlsFiles, over_tls
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.threads import run_in_thread

log = structlog.get_logger("server")

LIMITS = Limits(
    connections=512,
    connections_of_a_peer=400,
    lasting_requests=320,
    take_seconds=4 * 3600.0,
)
"""All that users ask of a node's pods comes from the API server: one peer with many of them. Of its
connections 80 are left for requests that do not last.

Who reads a log page by page (`kubectl logs POD | less`) takes nothing while he reads one. The Go
kubelet gives a response four hours; here who takes nothing goes first to make room.
"""


@frozen
class SignedPair:
    """The file of certificate and key where a cluster signs them; it may not be there yet.

    `unwritten()` gives what it should have while the disk does not take that, else nothing.
    """

    path: Path
    unwritten: Callable[[], bytes] = bytes


@frozen(kw_only=True)
class SecurePort:
    """Serves `routes` until it is cancelled.

    `reviews` is the API server, None on a node that has none. `watched` makes a handler that tells
    of each request, let in or not, by the labels of the routes. `signed` is the certificate where a
    cluster signs it.
    """

    settings: Settings
    clock: Clock
    node_name: str
    routes: Sequence[Route]
    reviews: Api | None = None
    signed: SignedPair | None = None
    watched: Callable[[Handler, frozenset[str]], Handler] = lambda handler, _labels: handler
    limits: Limits = field(default=LIMITS)

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve. Raises StartError."""
        configuration = self.settings.configuration
        if problem := access_problem(configuration, has_api_server=self.reviews is not None):
            raise StartError(problem)
        files = await self._files()
        try:
            tls = await CurrentTls.open(files)
        except (OSError, ValueError) as error:
            raise StartError(
                f"the server cannot use its certificates: {error}; check tlsCertFile, "
                "tlsPrivateKeyFile, authentication.x509.clientCAFile and --cert-dir"
            ) from error
        listeners = await listening(configuration.address, configuration.port, "port")
        router, labels = Router(self.routes), frozenset(route.label for route in self.routes)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tls.follow)
            await serve_http(
                over_tls(listeners, lambda: tls.context),
                self.watched(self._guarded(router, tls), labels),
                limits=self.limits,
                task_status=task_status,
            )

    async def _files(self) -> TlsFiles:
        configuration = self.settings.configuration
        certificate = Path(configuration.tls_cert_file)
        key = Path(configuration.tls_private_key_file)
        if self.signed is not None:
            certificate = key = self.signed.path
        elif not configuration.tls_cert_file:
            certificate, key = await self._self_signed()
        authorities = configuration.authentication.x509.client_ca_file
        return TlsFiles(
            certificate=certificate,
            key=key,
            authorities=Path(authorities) if authorities else None,
            minimum_version=VERSIONS[configuration.tls_min_version],
            ciphers=openssl_ciphers(configuration.tls_cipher_suites),
            curve=only_curve(configuration.tls_curve_preferences),
            is_awaited=self.signed is not None,
            unwritten=self.signed.unwritten if self.signed is not None else bytes,
        )

    async def _self_signed(self) -> tuple[Path, Path]:
        # Here, because a node with a certificate of its own needs nothing of it.
        from trio_kubelet.node.certificates import ensure_self_signed

        folder = Path(self.settings.options.cert_dir)
        now = datetime.fromtimestamp(self.clock.now_ns() / 1e9, UTC)
        try:
            return await run_in_thread(ensure_self_signed, folder, self.node_name, now)
        except OSError as error:
            raise StartError(
                f"{error.filename or folder}: {error.strerror}; the server's certificate cannot "
                "be kept there, check --cert-dir"
            ) from error

    def _guarded(self, router: Router, tls: CurrentTls) -> Handler:
        authentication = self.settings.configuration.authentication
        tokens = None
        if authentication.webhook.enabled and self.reviews is not None:
            seconds = authentication.webhook.cache_ttl.total_seconds()
            tokens = TokenReviewer(self.reviews, seconds)
        authenticator = Authenticator(
            clock=self.clock,
            authorities=lambda: tls.context.authorities,
            tokens=tokens,
            anonymous=authentication.anonymous.enabled,
        )
        return guard(
            router,
            authenticator,
            self._authorize(),
            fine_grained=self.settings.gates["KubeletFineGrainedAuthz"],
        )

    def _authorize(self) -> Authorize:
        authorization = self.settings.configuration.authorization
        if authorization.mode == "AlwaysAllow":
            return allow_always
        assert self.reviews is not None, "looked at before"
        seconds = AnswerSeconds(
            allowed=authorization.webhook.cache_authorized_ttl.total_seconds(),
            denied=authorization.webhook.cache_unauthorized_ttl.total_seconds(),
        )
        return Webhook(self.reviews, self.node_name, seconds).allows


def access_problem(configuration: KubeletConfiguration, *, has_api_server: bool) -> str:
    """Why nobody could be let in as the configuration says; empty if that can be done."""
    if has_api_server:
        return ""
    if configuration.authentication.webhook.enabled:
        return (
            "authentication.webhook.enabled: bearer tokens are reviewed by an API server, and "
            "there is none without --kubeconfig; set it to false, or set enableServer to false"
        )
    if configuration.authorization.mode == "Webhook":
        return (
            'authorization.mode: "Webhook" asks an API server, and there is none without '
            '--kubeconfig; set it to "AlwaysAllow" (for all who are authenticated), or set '
            "enableServer to false"
        )
    return ""
