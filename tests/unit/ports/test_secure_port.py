"""The node's port for others: TLS, who is let in for what, and which files it is made of."""

import errno
import ssl
import stat
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trustme
from attrs import define, evolve, field
from cryptography import x509

from lab.ports import free_port
from tests.apiserver.server import ApiServer
from trio_kubelet.config import KubeletConfiguration, Settings
from trio_kubelet.config.gates import FeatureGates
from trio_kubelet.config.model import NodeOptions
from trio_kubelet.config.parts import (
    KubeletAnonymousAuthentication,
    KubeletAuthentication,
    KubeletAuthorization,
    KubeletWebhookAuthentication,
    KubeletWebhookAuthorization,
    KubeletX509Authentication,
)
from trio_kubelet.errors import StartError
from trio_kubelet.kernel.inotify import Inotify
from trio_kubelet.ports.secure_port import SecurePort, SignedPair, access_problem
from trio_kubelet.server import Request, Response, Route
from trio_kubelet.server.router import RUN_IN_POD, Right
from trio_kubelet.server.tls import CurrentTls, TlsFiles
from trio_kubelet.tasks.clock import SystemClock

HOST = "127.0.0.1"
OWN_SIGNED = KubeletAuthentication(webhook=KubeletWebhookAuthentication(enabled=False))
ALL_ALLOWED = KubeletAuthorization(mode="AlwaysAllow")


async def who(request: Request) -> Response:
    return Response(body=request.path.encode())


@define
class Endless:
    """What a handler that waits for ever has seen."""

    begun: trio.Event = field(factory=trio.Event)
    cancelled: trio.Event = field(factory=trio.Event)

    async def answer(self, _request: Request) -> Response:
        self.begun.set()
        try:
            await trio.Event().wait()
        finally:
            self.cancelled.set()
        return Response()


async def stream(request: Request) -> Response:
    request.will_last()

    async def body() -> AsyncGenerator[bytes, None]:
        yield b"begun"
        await trio.sleep_forever()

    return Response(body=body())


RIGHTS_OF = {
    "pods": Right(fine_grained="pods"),
    "stats": Right(subresource="stats"),
    "healthz": Right(fine_grained="healthz"),
}
ROUTES = [Route("GET", f"/{name}", who, right) for name, right in RIGHTS_OF.items()]


@define
class Node:
    """The files of a node in a folder, its authority of clients, and its API server."""

    folder: Path
    authority: trustme.CA = field(factory=trustme.CA)
    server: ApiServer = field(factory=ApiServer)
    port: int = field(factory=free_port)
    endless: Endless = field(factory=Endless)

    def configuration(self, **changes: Any) -> KubeletConfiguration:
        serving = self.authority.issue_cert(HOST)
        serving.private_key_pem.write_to_path(str(self.folder / "tls.key"))
        (self.folder / "tls.crt").write_bytes(serving.cert_chain_pems[0].bytes())
        self.authority.cert_pem.write_to_path(str(self.folder / "ca.crt"))
        given = KubeletConfiguration(
            address=HOST,
            port=self.port,
            tls_cert_file=str(self.folder / "tls.crt"),
            tls_private_key_file=str(self.folder / "tls.key"),
            authentication=KubeletAuthentication(
                x509=KubeletX509Authentication(client_ca_file=str(self.folder / "ca.crt"))
            ),
        )
        return evolve(given, **changes)

    @asynccontextmanager
    async def serving(
        self,
        configuration: KubeletConfiguration,
        *,
        has_api_server: bool = True,
        gates: FeatureGates | None = None,
        signed: SignedPair | None = None,
    ) -> AsyncIterator[None]:
        options = NodeOptions(cert_dir=str(self.folder / "pki"))
        port = SecurePort(
            settings=Settings(
                configuration=configuration, options=options, gates=gates or FeatureGates()
            ),
            clock=SystemClock(),
            node_name="a",
            routes=(
                *ROUTES,
                Route("POST", "/run", self.endless.answer, RUN_IN_POD),
                Route("GET", "/stats/{namespace}", stream, RIGHTS_OF["stats"]),
            ),
            reviews=self.server.client() if has_api_server else None,
            signed=signed,
        )
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                await nursery.start(port.serve)
                yield
                nursery.cancel_scope.cancel()

    def trusting(self, authority: trustme.CA | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context()
        (authority or self.authority).configure_trust(context)
        return context

    def client(self, shown: trustme.LeafCert | None = None) -> httpx.AsyncClient:
        context = self.trusting()
        if shown is not None:
            shown.configure_cert(context)
        base = f"https://{HOST}:{self.port}"
        return httpx.AsyncClient(base_url=base, verify=context, trust_env=False)


def user(authority: trustme.CA, name: str, **more: Any) -> trustme.LeafCert:
    return authority.issue_cert(f"{name}.test", common_name=name, **more)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


RIGHTS = {("jo", "get", "pods"), ("ann", "get", "proxy"), ("token-user", "get", "stats")}


@pytest.mark.parametrize(
    ("who", "statuses"),
    [
        ("", (401, 401, 401, 401)),
        ("certificate jo", (200, 403, 403, 403)),
        ("certificate ann", (200, 403, 200, 404)),
        ("certificate nobody", (403, 403, 403, 403)),
        ("token good", (403, 200, 403, 403)),
        ("token bad", (401, 401, 401, 401)),
    ],
)
async def test_who_may_ask_for_what(node: Node, who: str, statuses: tuple[int, ...]) -> None:
    node.server.reviews.rights = set(RIGHTS)
    node.server.reviews.users["good"] = {"username": "token-user"}
    how, _, name = who.partition(" ")
    shown = user(node.authority, name) if how == "certificate" else None
    headers = {"Authorization": f"Bearer {name}"} if how == "token" else {}
    async with node.serving(node.configuration()), node.client(shown) as client:
        paths = ("/pods", "/stats", "/healthz", "/nowhere")
        answers = [await client.get(path, headers=headers) for path in paths]
    assert tuple(answer.status_code for answer in answers) == statuses


NOTHING_KEPT = timedelta(0)


@pytest.mark.parametrize(
    ("tokens", "rights", "path", "status", "asked"),
    [
        ({}, {}, "/stats", 200, {"tokenreviews": 1, "subjectaccessreviews": 1}),
        ({}, {}, "/nowhere", 403, {"tokenreviews": 1, "subjectaccessreviews": 1}),
        (
            {"cache_ttl": NOTHING_KEPT},
            {},
            "/stats",
            200,
            {"tokenreviews": 3, "subjectaccessreviews": 1},
        ),
        (
            {},
            {"cache_authorized_ttl": NOTHING_KEPT},
            "/stats",
            200,
            {"tokenreviews": 1, "subjectaccessreviews": 3},
        ),
        (
            {},
            {"cache_authorized_ttl": NOTHING_KEPT},
            "/nowhere",
            403,
            {"tokenreviews": 1, "subjectaccessreviews": 1},
        ),
        (
            {},
            {"cache_unauthorized_ttl": NOTHING_KEPT},
            "/nowhere",
            403,
            {"tokenreviews": 1, "subjectaccessreviews": 3},
        ),
    ],
)
async def test_answers_of_the_api_server_are_kept_as_long_as_is_set(
    node: Node,
    tokens: dict[str, Any],
    rights: dict[str, Any],
    path: str,
    status: int,
    asked: dict[str, int],
) -> None:
    node.server.reviews.rights = set(RIGHTS)
    node.server.reviews.users["good"] = {"username": "token-user"}
    configuration = node.configuration(
        authentication=KubeletAuthentication(webhook=KubeletWebhookAuthentication(**tokens)),
        authorization=KubeletAuthorization(webhook=KubeletWebhookAuthorization(**rights)),
    )
    async with node.serving(configuration), node.client() as client:
        for _ in range(3):
            answer = await client.get(path, headers={"Authorization": "Bearer good"})
            assert answer.status_code == status
    assert Counter(request.resource for request in node.server.requests) == asked


@pytest.mark.parametrize(("fine_grained", "status"), [(True, 200), (False, 403)])
async def test_rights_are_as_fine_as_the_gate_says(
    node: Node, fine_grained: bool, status: int
) -> None:
    node.server.reviews.rights = set(RIGHTS)
    gates = FeatureGates({**FeatureGates(), "KubeletFineGrainedAuthz": fine_grained})
    async with (
        node.serving(node.configuration(), gates=gates),
        node.client(user(node.authority, "jo")) as client,
    ):
        assert (await client.get("/pods")).status_code == status


@pytest.mark.parametrize("goodbye", [True, False], ids=["says goodbye", "just goes"])
async def test_a_handler_does_not_go_on_for_a_client_that_has_gone(
    node: Node, goodbye: bool
) -> None:
    node.server.reviews.rights = {("jo", "create", "proxy")}
    context = node.trusting()
    user(node.authority, "jo").configure_cert(context)
    async with node.serving(node.configuration()):
        stream = await trio.open_ssl_over_tcp_stream(
            HOST, node.port, ssl_context=context, https_compatible=True
        )
        await stream.send_all(b"POST /run HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        await node.endless.begun.wait()
        await (stream if goodbye else stream.transport_stream).aclose()
        await node.endless.cancelled.wait()


@pytest.mark.parametrize("wrong", ["another authority", "expired"])
async def test_a_wrong_certificate_ends_the_handshake(node: Node, wrong: str) -> None:
    yesterday = datetime.now(UTC) - timedelta(days=1)
    stranger = (
        user(node.authority, "jo", not_before=yesterday - timedelta(days=1), not_after=yesterday)
        if wrong == "expired"
        else user(trustme.CA(), "jo")
    )
    node.server.reviews.rights = set(RIGHTS)
    async with node.serving(node.configuration()), node.client(stranger) as client:
        with pytest.raises(httpx.TransportError):
            await client.get("/pods")


@pytest.mark.parametrize(("anonymous", "status"), [(True, 200), (False, 401)])
async def test_who_shows_nothing_is_let_in_only_where_that_is_set(
    node: Node, anonymous: bool, status: int
) -> None:
    authentication = evolve(OWN_SIGNED, anonymous=KubeletAnonymousAuthentication(enabled=anonymous))
    configuration = node.configuration(authentication=authentication, authorization=ALL_ALLOWED)
    async with node.serving(configuration, has_api_server=False), node.client() as client:
        assert (await client.get("/pods")).status_code == status


async def test_certificates_are_read_again_when_they_change(node: Node) -> None:
    node.server.reviews.rights = set(RIGHTS)
    others = trustme.CA()
    both = node.authority.cert_pem.bytes() + others.cert_pem.bytes()
    async with (
        node.serving(node.configuration()),
        node.client(user(others, "jo")) as stranger,
        node.client(user(node.authority, "jo")) as known,
    ):
        assert (await known.get("/pods")).status_code == 200
        (node.folder / "ca.crt").write_bytes(both)
        await until(stranger, 200)
        assert (await known.get("/pods")).status_code == 200, "its connection goes on"
        (node.folder / "ca.crt").write_bytes(others.cert_pem.bytes())
        await until(known, 401)
        assert (await stranger.get("/pods")).status_code == 200


async def test_certificates_are_read_again_where_the_kernel_tells_of_no_change(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_queue_left(*_: object) -> None:
        raise OSError(errno.EMFILE, "inotify_init1: Too many open files")

    monkeypatch.setattr(Inotify, "__init__", no_queue_left)
    monkeypatch.setattr("trio_kubelet.server.tls.RE_READ_SECONDS", 0.01)
    node.server.reviews.rights = set(RIGHTS)
    others = trustme.CA()
    async with node.serving(node.configuration()), node.client(user(others, "jo")) as stranger:
        (node.folder / "ca.crt").write_bytes(others.cert_pem.bytes())
        with trio.fail_after(60):
            await until(stranger, 200)


async def test_a_port_whose_files_no_thread_can_be_started_for_is_there_and_reads_them_later(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = trio.Event()

    async def refuse(*_: object, **_options: object) -> None:
        await trio.lowlevel.checkpoint()
        refused.set()
        raise RuntimeError("can't start new thread")

    with trio.fail_after(60):
        async with node.serving(node.configuration()):
            before = await shown_serial(node.port)
            with monkeypatch.context() as without_threads:
                without_threads.setattr(trio.to_thread, "run_sync", refuse)
                (node.folder / "tls.crt").write_bytes(b"rubbish")
                await refused.wait()
                assert await shown_serial(node.port) == before
            node.configuration()
            while await shown_serial(node.port) == before:  # each handshake takes a while
                pass


@pytest.mark.parametrize("text", ["rubbish", ""], ids=["rubbish", "empty"])
@pytest.mark.parametrize("broken", ["tls.crt", "tls.key", "ca.crt"])
async def test_files_that_cannot_be_used_change_nothing(node: Node, broken: str, text: str) -> None:
    node.configuration()
    certificate, key, authorities = (node.folder / n for n in ("tls.crt", "tls.key", "ca.crt"))
    tls = await CurrentTls.open(TlsFiles(certificate, key, authorities))
    before = tls.context
    (node.folder / broken).write_text(text)
    with pytest.raises(ValueError, match="not usable"):
        await tls.reload()
    assert tls.context is before


async def until(client: httpx.AsyncClient, status: int) -> None:
    """Ask until the answer is this one; a handshake that fails is none."""
    while True:
        try:
            if (await client.get("/pods")).status_code == status:
                return
        except httpx.TransportError:
            pass
        await trio.sleep(0.01)


async def shown_serial(port: int, name: str = HOST) -> int:
    """The serial number of the certificate that a port shows to who asks for a name."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = await trio.open_tcp_stream(HOST, port)
    stream = trio.SSLStream(connection, context, server_hostname=name, https_compatible=True)
    async with stream:
        await stream.do_handshake()
        shown = stream.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


async def test_a_serving_certificate_that_changes_is_shown_to_new_connections(node: Node) -> None:
    configuration = node.configuration()
    async with node.serving(configuration):
        before = await shown_serial(node.port)
        (node.folder / "tls.crt").write_bytes(b"rubbish")
        assert await shown_serial(node.port) == before, "what cannot be used changes nothing"
        node.configuration()
        while await shown_serial(node.port) == before:  # each handshake takes a while
            pass


@pytest.mark.parametrize(
    ("configured", "wanted", "spoken"),
    [
        ({}, {}, "TLSv1.3"),
        ({}, {"maximum_version": ssl.TLSVersion.TLSv1_2}, "TLSv1.2"),
        ({"tls_min_version": "VersionTLS13"}, {"maximum_version": ssl.TLSVersion.TLSv1_2}, ""),
        ({"tls_min_version": "VersionTLS10"}, {"maximum_version": ssl.TLSVersion.TLSv1_1}, ""),
        (
            {"tls_cipher_suites": ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",)},
            {"maximum_version": ssl.TLSVersion.TLSv1_2, "cipher": "ECDHE-ECDSA-AES256-GCM-SHA384"},
            "TLSv1.2",
        ),
        (
            {"tls_cipher_suites": ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",)},
            {"maximum_version": ssl.TLSVersion.TLSv1_2, "cipher": "ECDHE-ECDSA-AES128-GCM-SHA256"},
            "",
        ),
        ({"tls_curve_preferences": (24,)}, {"curve": "secp384r1"}, "TLSv1.3"),
        ({"tls_curve_preferences": (24,)}, {"curve": "prime256v1"}, ""),
        ({"tls_curve_preferences": (24, 25)}, {"curve": "prime256v1"}, "TLSv1.3"),
    ],
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
async def test_versions_suites_and_curves_are_those_that_are_set(
    node: Node, configured: dict[str, Any], wanted: dict[str, Any], spoken: str
) -> None:
    context = node.trusting()
    if "cipher" in wanted:
        context.set_ciphers(str(wanted.pop("cipher")))
    if "curve" in wanted:
        context.set_ecdh_curve(str(wanted.pop("curve")))
    if wanted:
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.maximum_version = wanted["maximum_version"]
    async with node.serving(node.configuration(**configured)):
        stream = await trio.open_ssl_over_tcp_stream(HOST, node.port, ssl_context=context)
        try:
            await stream.do_handshake()
            version = stream.version()
        except trio.BrokenResourceError:
            version = ""
        await trio.aclose_forcefully(stream)
    assert version == spoken


async def test_a_node_without_a_certificate_makes_one(node: Node) -> None:
    configuration = node.configuration(
        tls_cert_file="",
        tls_private_key_file="",
        authentication=OWN_SIGNED,
        authorization=ALL_ALLOWED,
    )
    pki = node.folder / "pki"
    async with node.serving(configuration, has_api_server=False):
        files = {each.name: each for each in pki.iterdir()}
    assert {name: stat.S_IMODE(each.stat().st_mode) for name, each in files.items()} == {
        "kubelet.crt": 0o644,
        "kubelet.key": 0o600,
    }
    leaf, authority = x509.load_pem_x509_certificates(files["kubelet.crt"].read_bytes())
    leaf.verify_directly_issued_by(authority)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["a"]


@pytest.mark.parametrize(
    ("changes", "has_api_server", "words"),
    [
        ({}, True, ""),
        ({}, False, "authentication.webhook.enabled"),
        ({"authentication": OWN_SIGNED}, False, "authorization.mode"),
        ({"authentication": OWN_SIGNED, "authorization": ALL_ALLOWED}, False, ""),
    ],
)
def test_what_asks_an_api_server_needs_one(
    changes: dict[str, Any], has_api_server: bool, words: str
) -> None:
    configuration = evolve(KubeletConfiguration(), **changes)
    problem = access_problem(configuration, has_api_server=has_api_server)
    assert (problem == "") == (words == "")
    assert words in problem


@pytest.mark.parametrize("text", ["rubbish", "", None], ids=["rubbish", "empty", "not there"])
@pytest.mark.parametrize("broken", ["tls.crt", "tls.key", "ca.crt"])
async def test_a_start_with_bad_files_fails(node: Node, broken: str, text: str | None) -> None:
    configuration = node.configuration()
    if text is None:
        (node.folder / broken).unlink()
    else:
        (node.folder / broken).write_text(text)
    with pytest.RaisesGroup(StartError, flatten_subgroups=True):
        async with node.serving(configuration):
            pass
