"""The port's certificate where settings name none: signed by the node itself, or by a cluster."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
import trustme

from tests.unit.ports.test_secure_port import HOST, Node, shown_serial
from trio_kubelet.node.certificates import (
    SERVER,
    CertificateStore,
    ClientPair,
    ensure_self_signed,
    read_pair,
)
from trio_kubelet.ports.secure_port import SignedPair


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize("left", ["", "rubbish"], ids=["nothing left", "rubbish left"])
async def test_a_certificate_that_the_cluster_signs_is_waited_for_and_followed(
    node: Node, left: str
) -> None:
    current = node.folder / "pki" / "kubelet-server-current.pem"
    if left:
        current.parent.mkdir()
        current.with_name("left.pem").write_text(left)
        current.symlink_to(current.with_name("left.pem"))
    async with node.serving(node.configuration(), signed=SignedPair(current)):
        for name in (HOST, "node-1"):  # An address is not sent, a name is.
            with pytest.raises(trio.BrokenResourceError) as caught:
                await shown_serial(node.port, name)
            assert "INTERNAL_ERROR" in str(caught.value.__cause__)
        store = CertificateStore(current.parent, SERVER)
        serials = list[int]()
        for day in (1, 2):
            pair = trustme_pair(node.authority)
            store.take_over(pair, datetime(2026, 1, day, tzinfo=UTC))
            serials.append(pair.chain[0].serial_number)
            with suppress(trio.BrokenResourceError):
                while await shown_serial(node.port) != serials[-1]:
                    pass
        assert await shown_serial(node.port) == serials[-1] != serials[0]


async def test_a_certificate_that_the_disk_does_not_take_is_shown_and_then_followed(
    node: Node,
) -> None:
    store = CertificateStore(node.folder / "pki", SERVER)
    pairs = [trustme_pair(node.authority) for _ in range(2)]
    serials = [pair.chain[0].serial_number for pair in pairs]
    unwritten = pairs[0].pem
    signed = SignedPair(store.current_path, lambda: unwritten)
    async with node.serving(node.configuration(), signed=signed):
        assert await shown_serial(node.port) == serials[0]
        store.take_over(pairs[1], datetime(2026, 1, 1, tzinfo=UTC))
        unwritten = b""  # Not before: a thread may read at any moment.
        while await shown_serial(node.port) != serials[1]:
            pass


def trustme_pair(authority: trustme.CA) -> ClientPair:
    serving = authority.issue_cert(HOST)
    return read_pair(serving.cert_chain_pems[0].bytes(), serving.private_key_pem.bytes())


def test_a_certificate_of_ones_own_is_kept_while_it_is_good(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    certificate, key = ensure_self_signed(tmp_path, "a", now)
    first = certificate.read_bytes(), key.read_bytes()
    ensure_self_signed(tmp_path, "a", now + timedelta(days=364))
    assert (certificate.read_bytes(), key.read_bytes()) == first
    ensure_self_signed(tmp_path, "a", now + timedelta(days=366))
    assert certificate.read_bytes() != first[0]
    key.write_bytes(first[1])
    ensure_self_signed(tmp_path, "a", now)
    assert key.read_bytes() != first[1], "the key of another certificate is no good"
