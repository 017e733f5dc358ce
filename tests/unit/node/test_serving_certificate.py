"""The certificate of the node's port: for which names it is, and which there is at first."""

from datetime import timedelta
from pathlib import Path

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from tests.apiserver.server import ApiServer
from tests.trio_clock import TrioClock
from tests.unit.node.authority import NOW, NOW_NS, Authority
from tests.unit.node.signer import Signer
from trio_kubelet.errors import StartError
from trio_kubelet.k8s import (
    CERTIFICATE_SIGNING_REQUESTS,
    Node,
    NodeAddress,
    NodeStatus,
    ObjectMeta,
)
from trio_kubelet.node.certificates import (
    SERVER,
    CertificateNames,
    CertificateStore,
    key_pem,
    new_key,
    read_pair,
    signing_request,
)
from trio_kubelet.node.rotation import Rotation
from trio_kubelet.node.serving_certificate import open_serving_certificate, serving_names

NAMES = CertificateNames("node-1", ("node-1",), ("10.0.0.1",))


def a_node(*addresses: tuple[str, str]) -> Node:
    told = tuple(NodeAddress(type=kind, address=address) for kind, address in addresses)
    return Node(metadata=ObjectMeta(name="node-1"), status=NodeStatus(addresses=told))


@pytest.mark.parametrize(
    ("addresses", "dns_names", "numbers"),
    [
        ([("InternalIP", "10.0.0.1"), ("Hostname", "node-1")], ("node-1",), ("10.0.0.1",)),
        ([("InternalIP", "10.0.0.2"), ("InternalIP", "10.0.0.1")], (), ("10.0.0.1", "10.0.0.2")),
        ([("ExternalIP", "FD00:0::1"), ("ExternalDNS", "b.x")], ("b.x",), ("fd00::1",)),
        ([("Hostname", "10.0.0.7")], (), ("10.0.0.7",)),
        ([("InternalIP", "10.0.0.1"), ("InternalDNS", "10.0.0.9")], ("10.0.0.9",), ("10.0.0.1",)),
        ([("InternalIP", "10.0.0.1"), ("InternalIP", "nonsense")], (), ("10.0.0.1",)),
        ([("InternalIP", "10.0.0.1"), ("Hostname", ""), ("Other", "")], (), ("10.0.0.1",)),
    ],
)
def test_names_are_those_that_the_node_tells(
    addresses: list[tuple[str, str]], dns_names: tuple[str, ...], numbers: tuple[str, ...]
) -> None:
    told = serving_names(a_node(*addresses), may_lack_addresses=False)
    assert told == CertificateNames("node-1", dns_names, numbers)


def test_a_node_without_addresses_has_no_names_unless_it_may() -> None:
    assert serving_names(None, may_lack_addresses=True) is None
    assert serving_names(a_node(), may_lack_addresses=True) is None
    named = a_node(("Hostname", "node-1"))
    assert serving_names(named, may_lack_addresses=False) is None
    assert serving_names(named, may_lack_addresses=True) == CertificateNames("node-1", ("node-1",))


async def opened(folder: Path, server: ApiServer, given: tuple[Path, Path] | None) -> Rotation:
    return await open_serving_certificate(
        CertificateStore(folder / "pki", SERVER),
        given,
        lambda: NAMES,
        server.client(),
        server.clock,
    )


def given_files(
    folder: Path, names: CertificateNames = NAMES, days: float = 10
) -> tuple[Path, Path]:
    key = new_key()
    chain = Authority().sign(signing_request(key, names), until=NOW + timedelta(days=days))
    certificate_file, key_file = folder / "tls.crt", folder / "tls.key"
    certificate_file.write_bytes(chain)
    key_file.write_bytes(key_pem(key))
    return certificate_file, key_file


async def test_the_pair_that_was_given_is_the_first_and_what_was_signed_goes_before_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    server = ApiServer(clock=TrioClock(NOW_NS))
    given = given_files(tmp_path)
    first = await opened(tmp_path, server, given)
    assert first.pair is not None
    shown = read_pair(first.store.current_path.read_bytes())
    assert shown.chain == read_pair(given[0].read_bytes(), given[1].read_bytes()).chain
    given_files(tmp_path)
    again = await opened(tmp_path, server, given)
    assert again.pair is not None
    assert again.pair.chain == first.pair.chain


async def test_a_pair_that_was_given_anew_replaces_one_that_has_expired(tmp_path: Path) -> None:
    later = ApiServer(clock=TrioClock(NOW_NS + round(timedelta(days=20).total_seconds()) * 10**9))
    await opened(tmp_path, ApiServer(clock=TrioClock(NOW_NS)), given_files(tmp_path))
    renewed = given_files(tmp_path, days=30)
    rotation = await opened(tmp_path, later, renewed)
    shown = read_pair(rotation.store.current_path.read_bytes())
    assert shown.chain == read_pair(renewed[0].read_bytes(), renewed[1].read_bytes()).chain
    assert rotation.valid_pair() is not None


@pytest.mark.parametrize("broken", [0, 1])
async def test_a_pair_that_cannot_be_used_fails_the_start(tmp_path: Path, broken: int) -> None:
    given = given_files(tmp_path)
    given[broken].write_text("rubbish")
    with pytest.raises(StartError, match="check tlsCertFile, tlsPrivateKeyFile and --cert-dir"):
        await opened(tmp_path, ApiServer(clock=TrioClock(NOW_NS)), given)


async def test_a_pair_that_lacks_a_name_is_replaced_at_once(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    server = ApiServer(clock=TrioClock(NOW_NS))
    signer = Signer(server, timedelta(days=10))
    given = given_files(tmp_path, evolve(NAMES, addresses=("10.0.0.9",)))
    rotation = await opened(tmp_path, server, given)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(signer.run)
        nursery.start_soon(rotation.run)
        await server.until(lambda: signer.signed == 1, 60)
        nursery.cancel_scope.cancel()
    (request,) = server.all(CERTIFICATE_SIGNING_REQUESTS)
    assert request.spec.signer_name == "kubernetes.io/kubelet-serving"
    assert request.spec.usages == ("digital signature", "server auth")
