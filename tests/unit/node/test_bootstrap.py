"""How a node gets its first certificate."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import yaml
from attrs import define, evolve, field
from trio.testing import MockClock

from tests.apiserver.faults import RequestFault
from tests.apiserver.server import ApiServer
from tests.trio_clock import TrioClock
from tests.unit.node.authority import NOW, NOW_NS, YEAR, Authority
from trio_kubelet.k8s import (
    CERTIFICATE_SIGNING_REQUESTS,
    CertificateSigningRequest,
    CertificateSigningRequestCondition,
    CertificateSigningRequestStatus,
)
from trio_kubelet.k8s.client import Api, Kubeconfig
from trio_kubelet.node.bootstrap import BootstrapError, bootstrap, why_not_valid
from trio_kubelet.node.certificates import CertificateStore, key_pem

BOOTSTRAP = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "bootstrap",
    "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443"}}],
    "users": [{"name": "u", "user": {"token": "abcdef.0123456789abcdef"}}],
    "contexts": [{"name": "bootstrap", "context": {"cluster": "c", "user": "u"}}],
}


@define
class Scene:
    """A machine that wants to become a node, a cluster, and who signs there."""

    folder: Path
    server: ApiServer = field(factory=lambda: ApiServer(clock=TrioClock(NOW_NS)))
    authority: Authority = field(factory=Authority)
    connected_with: list[Path] = field(factory=list)

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubelet.conf"

    @property
    def store(self) -> CertificateStore:
        return CertificateStore(self.folder / "pki")

    @property
    def requests(self) -> tuple[CertificateSigningRequest, ...]:
        return self.server.all(CERTIFICATE_SIGNING_REQUESTS)

    async def run(self) -> None:
        granted = self.folder / "bootstrap.conf"
        granted.write_text(yaml.safe_dump(BOOTSTRAP))
        await bootstrap(
            kubeconfig=self.kubeconfig,
            bootstrap_kubeconfig=granted,
            cert_dir=self.folder / "pki",
            node_name="node-1",
            connect=self._connect,
            clock=TrioClock(NOW_NS),
        )

    @asynccontextmanager
    async def _connect(self, kubeconfig: Kubeconfig) -> AsyncIterator[Api]:
        self.connected_with.append(kubeconfig.path)
        yield self.server.client()

    async def approve(self, *, until_years: int = 1) -> None:
        """As approver and signer of the cluster do, one after the other."""
        await self.server.until(lambda: self.requests)
        (request,) = self.requests
        self.decide("Approved", request)
        await trio.sleep(1)
        (request,) = self.requests
        chain = self.authority.sign(request.spec.request, until=NOW + until_years * YEAR)
        status = evolve(request.status, certificate=chain)
        self.server.update(
            CERTIFICATE_SIGNING_REQUESTS, evolve(request, status=status), subresource="status"
        )

    def decide(self, kind: str, request: CertificateSigningRequest) -> None:
        condition = CertificateSigningRequestCondition(
            type=kind, status="True", reason="ByHand", message="because"
        )
        status = CertificateSigningRequestStatus(conditions=(condition,))
        self.server.update(
            CERTIFICATE_SIGNING_REQUESTS, evolve(request, status=status), subresource="status"
        )


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


async def test_a_new_node_asks_waits_and_writes_its_kubeconfig(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.approve)
        await scene.run()
    (request,) = scene.requests
    assert request.metadata.name.startswith("node-csr-")
    assert request.spec.signer_name == "kubernetes.io/kube-apiserver-client-kubelet"
    assert request.spec.usages == ("digital signature", "client auth")
    assert why_not_valid(scene.kubeconfig, NOW) == ""
    assert scene.kubeconfig.stat().st_mode & 0o777 == 0o600
    assert scene.connected_with == [scene.folder / "bootstrap.conf"]
    assert not list((scene.folder / "pki").glob("*.tmp"))


async def test_a_good_kubeconfig_needs_no_bootstrap(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.approve)
        await scene.run()
    before = scene.kubeconfig.read_bytes()
    asked = len(scene.server.requests)
    await scene.run()
    assert len(scene.server.requests) == asked
    assert scene.kubeconfig.read_bytes() == before


async def test_an_attempt_that_was_interrupted_goes_on_with_key_and_request(
    scene: Scene, autojump_clock: MockClock
) -> None:
    with trio.move_on_after(5):
        await scene.run()
    (first,) = scene.requests
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.approve)
        await scene.run()
    assert [request.metadata.uid for request in scene.requests] == [first.metadata.uid]


async def test_a_certificate_that_was_issued_meanwhile_is_taken(
    scene: Scene, autojump_clock: MockClock
) -> None:
    with trio.move_on_after(5):
        await scene.run()
    await scene.approve()
    await scene.run()
    assert len(scene.requests) == 1
    assert why_not_valid(scene.kubeconfig, NOW) == ""


async def test_a_request_whose_certificate_has_expired_is_replaced_with_a_new_key(
    scene: Scene, autojump_clock: MockClock
) -> None:
    with trio.move_on_after(5):
        await scene.run()
    old = key_pem(scene.store.key_to_ask_with())
    await scene.approve(until_years=-1)
    with trio.move_on_after(5):
        await scene.run()
    assert len(scene.requests) == 2
    assert key_pem(scene.store.key_to_ask_with()) != old


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("Denied", "is denied, reason: ByHand, message: because; delete it"),
        ("Failed", "failed, reason: ByHand, message: because; delete it"),
    ],
)
async def test_a_refusal_ends_it_with_what_to_do(
    scene: Scene, autojump_clock: MockClock, kind: str, words: str
) -> None:
    with trio.move_on_after(5):
        await scene.run()
    (request,) = scene.requests
    scene.decide(kind, request)
    with pytest.raises(BootstrapError) as raised:
        await scene.run()
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


async def test_a_request_that_somebody_deletes_ends_it(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async def delete() -> None:
        await scene.server.until(lambda: scene.requests)
        await trio.sleep(1)
        scene.server.delete(CERTIFICATE_SIGNING_REQUESTS, scene.requests[0].metadata.name)

    async def run() -> None:
        with pytest.raises(BootstrapError, match="was deleted"):
            await scene.run()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(delete)
        nursery.start_soon(run)


async def test_nobody_is_waited_for_longer_than_an_hour(
    scene: Scene, autojump_clock: MockClock
) -> None:
    with pytest.raises(BootstrapError, match="kubectl certificate approve node-csr-"):
        await scene.run()
    assert trio.current_time() == pytest.approx(3600, abs=1)


async def test_an_api_server_that_is_away_is_waited_for(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.server.go_away()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.run)
        await trio.sleep(300)
        scene.server.come_back()
        await scene.approve()
    assert why_not_valid(scene.kubeconfig, NOW) == ""


@pytest.mark.parametrize(
    ("code", "words"),
    [(401, "kubeadm token create"), (403, "system:node-bootstrapper"), (422, "refused to take")],
)
async def test_credentials_that_do_not_do_are_named(
    scene: Scene, autojump_clock: MockClock, code: int, words: str
) -> None:
    scene.server.faults.add(RequestFault(verb="create", code=code))
    with pytest.raises(BootstrapError) as raised:
        await scene.run()
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


async def test_a_bootstrap_kubeconfig_that_is_not_there_is_named(
    scene: Scene, autojump_clock: MockClock
) -> None:
    missing = scene.folder / "missing.conf"
    with pytest.raises(BootstrapError, match=r"--bootstrap-kubeconfig: .*missing\.conf"):
        await bootstrap(
            kubeconfig=scene.kubeconfig,
            bootstrap_kubeconfig=missing,
            cert_dir=scene.folder / "pki",
            node_name="node-1",
            connect=scene._connect,
            clock=TrioClock(NOW_NS),
        )
