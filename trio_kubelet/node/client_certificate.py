"""The certificate with which the node asks the API server, where certificates are rotated.

The first one comes from wherever there is one: the pair that an earlier agent has left, or that of
the kubeconfig, which is taken over and replaced at once, as kubeadm relies on it. Where neither is
good, one is requested with the bootstrap credentials, as soon as the agent has started, and again
in the same process if the certificate has expired while nobody renewed it. Until there is one, the
API server counts as away. An agent that has no certificate and no credentials to ask for one ends
after five minutes, so that whoever starts it again can bring it some.

As in the Go kubelet, the certificate takes the place of all other credentials of the kubeconfig.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import structlog
import trio
from attrs import define, frozen

from trio_kubelet.errors import StartError
from trio_kubelet.k8s.client import Api, ApiClients, ApiError, Kubeconfig, read_kubeconfig
from trio_kubelet.k8s.client.credentials import CredentialError
from trio_kubelet.k8s.client.kubeconfig import KubeconfigError, KubeconfigUser
from trio_kubelet.node.bootstrap import (
    UNAUTHORIZED,
    connect_to,
    kubeconfig_pair,
    node_kubeconfig,
    why_not_valid,
)
from trio_kubelet.node.certificates import (
    CLIENT_AUTH,
    CertificateNames,
    CertificateStore,
    ClientPair,
    utc,
    write_private,
)
from trio_kubelet.node.rotation import CertificateKind, Rotation
from trio_kubelet.node.signing_requests import (
    CLIENT_SIGNER,
    RequestGoneError,
    RequestRefusedError,
)
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.threads import run_in_thread

log = structlog.get_logger("certificates")

KIND = CertificateKind("client", CLIENT_SIGNER, CLIENT_AUTH)

EXIT_SECONDS = 300.0
"""An agent without certificate and without credentials to get one ends after so long."""

Connect = Callable[[Kubeconfig], AbstractAsyncContextManager[Api]]


@frozen(kw_only=True)
class ClientFiles:
    """The files of the node's credentials; `bootstrap` is None where there is no such flag."""

    kubeconfig: Path
    bootstrap: Path | None
    cert_dir: Path


@frozen
class _Found:
    """The state at the start: the cluster to ask, a pair if one is good, and whose."""

    config: Kubeconfig
    pair: ClientPair | None = None
    is_foreign: bool = False


@define(eq=False)
class RotatedClientCertificate:
    """Keeps the node's client certificate good. `open_client_certificate` makes it."""

    config: Kubeconfig
    """The cluster to ask; its user counts only while there is no certificate."""

    rotation: Rotation
    _files: ClientFiles
    _connect: Connect
    _clients: ApiClients | None = None
    _without_since: float | None = None

    def pem(self) -> bytes:
        """Chain and key that are to be used now; raises CredentialError while there are none."""
        pair = self.rotation.valid_pair()
        if pair is None:
            raise CredentialError("the node has no client certificate that is good now")
        return pair.pem

    async def run(self, clients: ApiClients) -> None:
        """Keep the certificate good, and the connections of `clients` up to date, forever.

        Raises StartError when there are no credentials of any kind any more.
        """
        self._clients = clients
        await self.rotation.run()

    @asynccontextmanager
    async def asking(self, pair: ClientPair | None) -> AsyncIterator[Api]:
        """A client that may request a certificate: as the node, or with what it began with."""
        if pair is not None and self._clients is not None:
            self._without_since = None
            yield self._clients.main
            return
        try:
            config = await run_in_thread(self._initial_credentials)
        except KubeconfigError as error:
            self._is_without(str(error))
            raise
        async with self._connect(config) as api:
            try:
                yield api
            except ApiError as error:
                if error.code == UNAUTHORIZED:
                    self._is_without(f"the API server does not accept those of {config.path}")
                raise
            except (RequestGoneError, RequestRefusedError):
                self._without_since = None  # Its request was taken: the credentials are good.
                raise
        self._without_since = None

    async def take(self) -> None:
        """Use a new pair: write the kubeconfig where it lacks one, and begin new connections."""
        self._without_since = None
        path, store = self._files.kubeconfig, self.rotation.store
        now = utc(self.rotation.clock.now_ns())
        try:
            reason = await run_in_thread(why_not_valid, path, now)
            if reason and self._files.bootstrap is not None:
                content = node_kubeconfig(self.config.cluster, store.current_path)
                await run_in_thread(write_private, path, content)
                log.info("kubeconfig written", path=str(path), because=reason)
        except OSError as error:
            log.error("kubeconfig cannot be written", path=str(path), error=str(error))
        if self._clients is not None:
            try:
                await self._clients.renew_connections()
            except CredentialError as error:
                log.error("client certificate cannot be used", error=str(error))

    def _initial_credentials(self) -> Kubeconfig:
        """Credentials for a node without a certificate. Blocks; raises KubeconfigError."""
        if self._files.bootstrap is not None:
            return read_kubeconfig(self._files.bootstrap)
        config = read_kubeconfig(self._files.kubeconfig)
        if not _can_ask(config.user):
            raise KubeconfigError(
                f"{config.path}: its client certificate is not good any more, and there are no "
                "other credentials"
            )
        return config

    def _is_without(self, why: str) -> None:
        """Take note that nothing can be asked for; raises StartError if that lasts."""
        now = trio.current_time()
        if self._without_since is None:
            self._without_since = now
        if now - self._without_since >= EXIT_SECONDS:
            raise StartError(
                "no valid client certificate is found, and there are no credentials to request "
                f"one with: {why}; put a kubeconfig with new ones where --bootstrap-kubeconfig says"
            )


def _can_ask(user: KubeconfigUser) -> bool:
    """True if a user has credentials that do not expire with a certificate."""
    return bool(user.token or user.token_file or user.exec or user.username)


async def open_client_certificate(
    files: ClientFiles, node_name: str, clock: Clock, connect: Connect = connect_to
) -> RotatedClientCertificate:
    """Look which certificate there is; nothing is requested yet. Raises StartError."""
    store = CertificateStore(files.cert_dir)
    names = CertificateNames(node_name)
    try:
        found = await run_in_thread(_find, files, store, names, clock)
    except KubeconfigError as error:
        raise StartError(str(error)) from error
    except (OSError, ValueError) as error:
        raise StartError(f"the client certificate cannot be kept: {error}") from error
    certificate: RotatedClientCertificate

    rotation = Rotation(
        kind=KIND,
        store=store,
        names=lambda: names,
        asking=lambda pair: certificate.asking(pair),
        take=lambda: certificate.take(),
        clock=clock,
        pair=found.pair,
        must_rotate=found.is_foreign,
        ends_with_certificate=True,
    )
    certificate = RotatedClientCertificate(found.config, rotation, files, connect)
    return certificate


def _find(
    files: ClientFiles, store: CertificateStore, names: CertificateNames, clock: Clock
) -> _Found:
    """Find the pair to begin with. Blocks. Raises KubeconfigError, OSError, ValueError."""
    now = utc(clock.now_ns())
    stored = store.current()
    if stored is not None and stored.is_valid_at(now) and names.are_in(stored.chain[0]):
        try:
            return _Found(read_kubeconfig(files.kubeconfig), stored)
        except KubeconfigError as error:
            log.info("kubeconfig cannot be used, requesting a new certificate", error=str(error))
    reason = why_not_valid(files.kubeconfig, now)
    if not reason:
        config = read_kubeconfig(files.kubeconfig)
        pair = kubeconfig_pair(config)
        if pair.pem != (stored.pem if stored is not None else b""):
            pair = store.take_over(pair, now)
        return _Found(config, pair, is_foreign=True)
    log.info("requesting a client certificate", kubeconfig=str(files.kubeconfig), because=reason)
    if files.bootstrap is not None:
        try:
            return _Found(read_kubeconfig(files.bootstrap))
        except KubeconfigError as error:
            raise KubeconfigError(f"{reason}; --bootstrap-kubeconfig: {error}") from error
    config = read_kubeconfig(files.kubeconfig)
    if not _can_ask(config.user):
        raise KubeconfigError(f"{reason}, and there is no --bootstrap-kubeconfig to get another")
    return _Found(config)
