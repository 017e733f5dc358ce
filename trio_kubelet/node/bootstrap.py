"""The way to a node's first certificate: TLS bootstrapping, as `kubeadm join` relies on it.

With the credentials of --bootstrap-kubeconfig, good for nothing else, the node asks the API server
to sign a certificate for the user `system:node:NAME`, waits until somebody approves it, and writes
the kubeconfig that it works with from then on. A kubeconfig whose certificate is still good ends it
before it begins. Whatever interrupts it, the next attempt uses the same key and the same request.
An API server that is away is waited for; what waiting does not mend is a `BootstrapError`. Where
certificates are rotated, `client_certificate.py` gets the first one, too.

The cluster of the kubeconfig is that of the bootstrap kubeconfig; its user is the link to the
current certificate, so that the file never changes when certificates are rotated.
"""

import base64
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from pathlib import Path

import structlog
import trio
import yaml
from attrs import frozen

from state_machines.backoff import BackoffPolicy
from trio_kubelet.k8s import (
    CERTIFICATE_SIGNING_REQUESTS,
    CertificateSigningRequest,
    CertificateSigningRequestSpec,
    ObjectMeta,
)
from trio_kubelet.k8s.client import (
    Api,
    ApiError,
    Kubeconfig,
    KubeconfigError,
    open_api_clients,
    read_kubeconfig,
)
from trio_kubelet.k8s.client.kubeconfig import CredentialSource, KubeconfigCluster
from trio_kubelet.node.certificates import (
    CertificateNames,
    CertificateStore,
    ClientKey,
    ClientPair,
    is_certificate_of,
    is_request_of,
    key_usages,
    read_pair,
    request_name,
    signing_request,
    utc,
    write_private,
)
from trio_kubelet.node.signing_requests import (
    CLIENT_SIGNER,
    RequestGoneError,
    RequestRefusedError,
    wait_for_certificate,
)
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.retries import Retries
from trio_kubelet.tasks.threads import run_in_thread

log = structlog.get_logger("bootstrap")


def node_kubeconfig(cluster: KubeconfigCluster, pair_path: Path) -> bytes:
    """The kubeconfig of a node whose certificate and key are in one file."""
    document = {
        "apiVersion": "v1",
        "clusters": [{"cluster": dict(_cluster(cluster)), "name": "default-cluster"}],
        "contexts": [
            {
                "context": {
                    "cluster": "default-cluster",
                    "namespace": "default",
                    "user": "default-auth",
                },
                "name": "default-context",
            }
        ],
        "current-context": "default-context",
        "kind": "Config",
        "users": [
            {
                "name": "default-auth",
                "user": {"client-certificate": str(pair_path), "client-key": str(pair_path)},
            }
        ],
    }
    return yaml.safe_dump(document).encode()


def why_not_valid(path: Path, now: datetime) -> str:
    """Why a kubeconfig holds no client certificate that is good now; empty if it holds one.

    One with another kind of credentials (a token, a plugin) is not valid either: a node that is
    told to bootstrap works with a certificate.
    """
    if not path.exists():
        return f"{path} does not exist"
    try:
        config = read_kubeconfig(path)
        if not config.user.client_certificate:
            return f"{path} has no client certificate"
        pair = kubeconfig_pair(config)
    except KubeconfigError as error:
        return str(error)
    except (OSError, ValueError) as error:
        return f"the client certificate of {path} cannot be read: {error}"
    return "" if pair.is_valid_at(now) else f"the client certificate of {path} has expired"


def kubeconfig_pair(config: Kubeconfig) -> ClientPair:
    """The client certificate of a kubeconfig's user. Blocks; raises OSError and ValueError."""
    user = config.user
    return read_pair(_content(user.client_certificate), _content(user.client_key))


def _cluster(cluster: KubeconfigCluster) -> Mapping[str, object]:
    authority = cluster.certificate_authority
    fields: dict[str, object] = {
        "server": cluster.server,
        "certificate-authority": str(authority.path.absolute()) if authority.path else "",
        "certificate-authority-data": base64.b64encode(authority.data).decode(),
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "proxy-url": cluster.proxy_url,
        "tls-server-name": cluster.tls_server_name,
    }
    return {name: value for name, value in fields.items() if value}


def _content(material: CredentialSource) -> bytes:
    return material.data if material.path is None else material.path.read_bytes()


APPROVAL_SECONDS = 3600.0
"""A request that nobody approves; the API server forgets it after a day."""

RETRY = BackoffPolicy(initial_seconds=0.5, cap_seconds=15.0)
UNAUTHORIZED = 401

Connect = Callable[[Kubeconfig], AbstractAsyncContextManager[Api]]
"""Opens a client with the credentials of a kubeconfig."""


@asynccontextmanager
async def connect_to(kubeconfig: Kubeconfig) -> AsyncIterator[Api]:
    """A client for as long as the block lasts."""
    async with open_api_clients(kubeconfig) as clients:
        yield clients.main


class BootstrapError(Exception):
    """The node gets no certificate: one line that says why and what to do."""


async def bootstrap(
    *,
    kubeconfig: Path,
    bootstrap_kubeconfig: Path,
    cert_dir: Path,
    node_name: str,
    clock: Clock,
    connect: Connect = connect_to,
) -> None:
    """Return when `kubeconfig` holds a client certificate that is good now.

    Raises BootstrapError. When cancelled, key and request stay for the next attempt.
    """
    reason = await run_in_thread(why_not_valid, kubeconfig, utc(clock.now_ns()))
    if not reason:
        log.debug("kubeconfig is valid, bootstrap skipped", path=str(kubeconfig))
        return
    log.info("requesting a client certificate", kubeconfig=str(kubeconfig), because=reason)
    try:
        granted = await run_in_thread(read_kubeconfig, bootstrap_kubeconfig)
    except KubeconfigError as error:
        raise BootstrapError(f"--bootstrap-kubeconfig: {error}") from error
    store = CertificateStore(cert_dir)
    try:
        async with connect(granted) as api:
            asking = _Asking(api, store, node_name, bootstrap_kubeconfig, clock)
            chain, key = await asking.certificate()
        await run_in_thread(store.write, chain, key, utc(clock.now_ns()))
        content = node_kubeconfig(granted.cluster, store.current_path)
        await run_in_thread(write_private, kubeconfig, content)
    except (OSError, ValueError) as error:
        raise BootstrapError(f"the client certificate cannot be kept: {error}") from error
    log.info("client certificate written", path=str(store.current_path))


@frozen
class _Asking:
    """One attempt to get a certificate."""

    api: Api
    store: CertificateStore
    node_name: str
    credentials: Path
    clock: Clock

    async def certificate(self) -> tuple[bytes, ClientKey]:
        """The chain that was issued, in PEM, and the key it is for. Raises BootstrapError."""
        key = await run_in_thread(self.store.key_to_ask_with)
        request = await self._insist(key)
        if request is None:
            key = await run_in_thread(self.store.fresh_key)
            request = await self._insist(key)
        if request is None:
            raise BootstrapError("the API server has a request of this name for something else")
        name = request.metadata.name
        approve = f"kubectl certificate approve {name}"
        log.info(
            "waiting for the certificate signing request to be approved",
            request=name,
            approve=approve,
        )
        try:
            with trio.move_on_after(APPROVAL_SECONDS):
                return await wait_for_certificate(self.api, request), key
        except RequestRefusedError as refusal:
            delete = f"delete it (kubectl delete csr {name}) and start the agent again"
            raise BootstrapError(f"{refusal}; {delete}") from refusal
        except RequestGoneError as gone:
            raise BootstrapError(f"{gone}; start the agent again") from gone
        raise BootstrapError(
            f"nobody approved the certificate signing request {name} within an hour; see whether "
            f"it is still there (kubectl get csr), approve it with: {approve}"
        )

    async def _insist(self, key: ClientKey) -> CertificateSigningRequest | None:
        """Ask until the API server answers; None if its answer cannot be used with this key."""
        retries = Retries(RETRY)
        while True:
            try:
                return await self._request(key)
            except ApiError as error:
                if not error.is_retriable:
                    raise BootstrapError(_refusal(error, self.credentials)) from error
                retries.warn(log, "API server unreachable, will retry", error=str(error))
            await retries.wait()

    async def _request(self, key: ClientKey) -> CertificateSigningRequest | None:
        """The request for this key, made or found; None if one of its name cannot be used."""
        usages = key_usages(key)
        name = request_name(key, self.node_name, usages)
        spec = CertificateSigningRequestSpec(
            request=signing_request(key, CertificateNames(self.node_name)),
            signer_name=CLIENT_SIGNER,
            usages=usages,
        )
        wanted = CertificateSigningRequest(metadata=ObjectMeta(name=name), spec=spec)
        try:
            return await self.api.create(CERTIFICATE_SIGNING_REQUESTS, wanted)
        except ApiError as error:
            if not error.is_already_exists:
                raise
        found = await self.api.get(CERTIFICATE_SIGNING_REQUESTS, name)
        return found if self._is_usable(found, key) else None

    def _is_usable(self, found: CertificateSigningRequest, key: ClientKey) -> bool:
        """True if a request that is there is ours, and what was issued for it still good."""
        ours = is_request_of(found.spec.request, key, self.node_name)
        if found.spec.signer_name != CLIENT_SIGNER or not ours:
            return False
        issued = found.status.certificate
        return not issued or is_certificate_of(issued, key, utc(self.clock.now_ns()))


def _refusal(error: ApiError, credentials: Path) -> str:
    if error.code == UNAUTHORIZED:
        return (
            f"the API server does not accept the credentials in {credentials}; a bootstrap token "
            "may have expired: make a new one (kubeadm token create)"
        )
    if error.is_forbidden:
        return (
            f"the credentials in {credentials} may not request certificates; bind their group to "
            f"the cluster role system:node-bootstrapper: {error}"
        )
    return f"the API server refused to take a certificate signing request: {error}"
