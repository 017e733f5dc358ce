"""The certificate of the node's port, where the cluster signs it (`serverTLSBootstrap`).

It is for the names and addresses that the Node object tells, so none is requested before there is
one, and another one as soon as they change. The node asks with its own credentials; somebody has
to approve the request, as no part of Kubernetes does so by itself. The first certificate is what an
earlier kubelet has left in --cert-dir, or else, also where that has expired, the pair of
`tlsCertFile`, which is replaced when most of its life is over or when it lacks a name.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path

import trio

from trio_kubelet.errors import StartError
from trio_kubelet.k8s import Node, NodeAddress, NodeAddressType
from trio_kubelet.k8s.client import Api
from trio_kubelet.node.certificates import (
    SERVER_AUTH,
    CertificateNames,
    CertificateStore,
    ClientPair,
    read_pair,
    utc,
)
from trio_kubelet.node.rotation import CertificateKind, Rotation
from trio_kubelet.node.signing_requests import SERVING_SIGNER
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.threads import run_in_thread

KIND = CertificateKind("server", SERVING_SIGNER, SERVER_AUTH)

ADDRESSES = frozenset({NodeAddressType.INTERNAL_IP, NodeAddressType.EXTERNAL_IP})


def serving_names(node: Node | None, *, may_lack_addresses: bool) -> CertificateNames | None:
    """The names that the port of a node is to be verified by; None if they are not known yet.

    As in the Go kubelet a node without an address has none, unless `may_lack_addresses`
    (feature gate AllowDNSOnlyNodeCSR).
    """
    if node is None:
        return None
    dns_names, addresses = set[str](), set[str]()
    for told in node.status.addresses:
        if (address := _address(told)) is not None:
            addresses.add(address)
        elif told.address and told.type not in ADDRESSES:
            dns_names.add(told.address)
    if not addresses and not (may_lack_addresses and dns_names):
        return None
    return CertificateNames(node.metadata.name, tuple(sorted(dns_names)), tuple(sorted(addresses)))


def _address(told: NodeAddress) -> str | None:
    """The address of an entry in the form that certificates are compared in, if it is one."""
    if told.type not in {*ADDRESSES, NodeAddressType.HOSTNAME}:
        return None
    try:
        return str(ip_address(told.address))
    except ValueError:
        return None


async def open_serving_certificate(
    store: CertificateStore,
    configured: tuple[Path, Path] | None,
    names: Callable[[], CertificateNames | None],
    api: Api,
    clock: Clock,
) -> Rotation:
    """Look which certificate there is; nothing is requested yet. Raises StartError.

    `configured` are the files of `tlsCertFile` and `tlsPrivateKeyFile`. The port follows the file
    `store.current_path`, which may not be there at first.
    """
    try:
        pair = await run_in_thread(_find, store, configured, utc(clock.now_ns()))
    except (OSError, ValueError) as error:
        raise StartError(
            f"the server cannot use its certificates: {error}; check tlsCertFile, "
            "tlsPrivateKeyFile and --cert-dir"
        ) from error

    @asynccontextmanager
    async def asking(_pair: ClientPair | None) -> AsyncIterator[Api]:
        await trio.lowlevel.checkpoint()
        yield api

    return Rotation(
        kind=KIND,
        store=store,
        names=names,
        asking=asking,
        take=trio.lowlevel.checkpoint,
        clock=clock,
        pair=pair,
    )


def _find(
    store: CertificateStore, configured: tuple[Path, Path] | None, now: datetime
) -> ClientPair | None:
    """The pair to begin with, which is in its file. Blocks. Raises OSError and ValueError."""
    pair = store.current()
    if configured is not None and (pair is None or not pair.is_valid_at(now)):
        certificate, key = configured
        pair = read_pair(certificate.read_bytes(), key.read_bytes())
        store.take_over(pair, now)
    return pair
