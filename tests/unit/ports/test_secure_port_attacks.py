"""Tricks with TLS on the port for others: nobody gets in, and nothing is left of who tried."""

import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
import structlog
import trio
import trustme
from attrs import field, frozen
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.missing import do_without
from tests.unit.ports.test_secure_port import HOST, RIGHTS, Node, until, user
from tests.unit.server.serving import open_files
from trio_kubelet.ports.secure_port import LIMITS
from trio_kubelet.server.access.authentication import (
    AFTER_A_BAD_TOKEN_SECONDS,
    REVIEWS_OF_A_PEER,
)

CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
MANY = 500


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.server.reviews.rights = set(RIGHTS)
    return node


@frozen(kw_only=True)
class Made:
    """A certificate that somebody made, and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)


def made(
    name: str,
    issuer: x509.Name | None = None,
    signed_with: ec.EllipticCurvePrivateKey | None = None,
    usages: Sequence[x509.ObjectIdentifier] = (CLIENT,),
) -> Made:
    """Make a certificate of somebody, signed by himself if by nobody else."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    )
    return Made(certificate=builder.sign(signed_with or key, hashes.SHA256()), key=key)


def authority(node: Node) -> Made:
    """The certificate and the key of the node's authority of clients."""
    pem = node.authority.private_key_pem.bytes()
    key = serialization.load_pem_private_key(pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    certificate = x509.load_pem_x509_certificate(node.authority.cert_pem.bytes())
    return Made(certificate=certificate, key=key)


def showing(node: Node, shown: Made, *others: Made) -> ssl.SSLContext:
    """The context of a client that shows a certificate, and others after it."""
    path = node.folder / "shown.pem"
    key = shown.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    chain = (each.certificate for each in (shown, *others))
    pem = [each.public_bytes(serialization.Encoding.PEM) for each in chain]
    path.write_bytes(b"".join((key, *pem)))
    context = node.trusting()
    context.load_cert_chain(path)
    return context


async def status(node: Node, context: ssl.SSLContext) -> int:
    """What who shows this is answered; 0 if the handshake fails."""
    base = f"https://{HOST}:{node.port}"
    async with httpx.AsyncClient(base_url=base, verify=context, trust_env=False) as client:
        try:
            return (await client.get("/pods")).status_code
        except httpx.TransportError:
            return 0


async def test_a_certificate_counts_only_if_the_authority_made_it_for_clients(node: Node) -> None:
    ca = authority(node)
    of_ca = (ca.certificate.subject, ca.key)
    jo = made("jo", *of_ca)
    forged = made("jo", jo.certificate.subject, jo.key)
    stranger = made("jo", ca.certificate.subject)
    async with node.serving(node.configuration()):
        assert await status(node, showing(node, jo)) == 200
        assert await status(node, showing(node, made("jo", *of_ca, usages=[SERVER]))) == 0
        assert await status(node, showing(node, made("jo"))) == 0, "signed by himself"
        assert await status(node, showing(node, stranger)) == 0, "the authority's name alone"
        assert await status(node, showing(node, forged, jo)) == 0, "signed by who may not sign"


async def test_nobody_is_heard_who_speaks_no_tls(node: Node) -> None:
    texts = (b"GET /pods HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"x" * 70_000)
    with structlog.testing.capture_logs() as logs:
        async with node.serving(node.configuration()):
            for text in texts:
                stream = await trio.open_tcp_stream(HOST, node.port)
                said = b""
                async with stream:
                    try:
                        await stream.send_all(text)
                        async for data in stream:
                            said += data
                    except trio.BrokenResourceError:
                        pass
                assert b"HTTP" not in said
    assert not [entry for entry in logs if entry["log_level"] == "error"]


async def test_handshakes_that_never_end_keep_nobody_out(node: Node) -> None:
    jo = user(node.authority, "jo")
    before = open_files()
    async with node.serving(node.configuration()):
        streams = []
        for _ in range(MANY):
            streams.append(await trio.open_tcp_stream(HOST, node.port))
            await streams[-1].send_all(b"\x16\x03\x01")
        async with node.client(jo) as client:
            await until(client, 200)
        for stream in streams:
            await trio.aclose_forcefully(stream)
        async with node.client(jo) as client:
            assert (await client.get("/pods")).status_code == 200
    assert open_files() <= before


@asynccontextmanager
async def clients(
    node: Node, number: int, address: str, *heads: str, shown: trustme.LeafCert | None = None
) -> AsyncIterator[list[trio.SSLStream[trio.SocketStream]]]:
    """Clients at an address, each of which has asked once, with these lines."""
    context, streams = node.trusting(), list[trio.SSLStream[trio.SocketStream]]()
    if shown is not None:
        shown.configure_cert(context)
    for count in range(number):
        transport = await trio.open_tcp_stream(HOST, node.port, local_address=address)
        streams.append(trio.SSLStream(transport, context, server_hostname=HOST))
        lines = (line.format(count) for line in heads)
        try:
            await streams[-1].send_all("\r\n".join([*lines, "Host: x", "", ""]).encode())
        except trio.BrokenResourceError:
            continue  # It has made room for another.
    try:
        yield streams
    finally:
        for stream in streams:
            await trio.aclose_forcefully(stream)


async def test_tokens_of_nobody_keep_nobody_out(node: Node) -> None:
    jo, guess = user(node.authority, "jo"), ("GET /pods HTTP/1.1", "Authorization: Bearer x{}")
    began_at = trio.current_time()
    async with (
        node.serving(node.configuration()),
        clients(node, 300, "127.0.0.2", *guess),
        clients(node, 300, "127.0.0.3", *guess),
    ):
        for _ in range(20):
            async with node.client(jo) as client:
                assert (await client.get("/pods")).status_code == 200
        asked = sum(request.resource == "tokenreviews" for request in node.server.requests)
        seconds = trio.current_time() - began_at
        rounds = 2 + seconds / AFTER_A_BAD_TOKEN_SECONDS
        assert 0 < asked <= 2 * REVIEWS_OF_A_PEER * rounds, "each waits for its peer's guesses"


async def test_streams_of_one_namespace_leave_room_for_all_others(node: Node) -> None:
    ann = user(node.authority, "ann")
    node.server.reviews.rights.add(("ann", "get", "stats"))
    greedy, other = "GET /stats/greedy HTTP/1.1", "GET /stats/other HTTP/1.1"
    async with (
        node.serving(node.configuration()),
        clients(node, LIMITS.connections_of_a_peer, HOST, greedy, shown=ann) as streams,
    ):
        with trio.fail_after(60):
            said = [bytes(await stream.receive_some()).split()[1] for stream in streams]
        assert said.count(b"200") == LIMITS.lasting_requests
        assert said.count(b"429") == LIMITS.connections_of_a_peer - LIMITS.lasting_requests
        async with node.client(ann) as client:
            assert (await client.get("/stats")).status_code == 200
        async with clients(node, 10, HOST, other, shown=ann) as others:
            for stream in others:
                assert bytes(await stream.receive_some()).split()[1] == b"200"


async def test_tls_is_not_negotiated_again(node: Node) -> None:
    if shutil.which("openssl") is None:
        do_without("there is no program openssl")
    command = ("openssl", "s_client", "-connect", f"{HOST}:{node.port}", "-tls1_2")
    async with node.serving(node.configuration()):
        process = await trio.lowlevel.open_process(
            command,
            stdin=subprocess.PIPE,  # It would end with its input.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stderr is not None
        await process.stdin.send_all(b"R\n")
        said = b""
        while b"no renegotiation" not in said and (piece := await process.stderr.receive_some()):
            said += piece
        process.kill()
        await process.wait()
        await process.stdin.aclose()
        await process.stderr.aclose()
    assert b"no renegotiation" in said
