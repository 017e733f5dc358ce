"""A node whose client certificate is rotated: where it begins, and what it falls back to."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import trio
import yaml
from attrs import define, field
from trio.testing import MockClock

from tests.apiserver.faults import RequestFault
from tests.apiserver.server import ApiServer
from tests.trio_clock import TrioClock
from tests.unit.node.authority import NOW, NOW_NS, YEAR, Authority
from tests.unit.node.signer import Mood, Signer
from tests.unit.node.test_bootstrap import BOOTSTRAP
from trio_kubelet.errors import StartError
from trio_kubelet.k8s import CERTIFICATE_SIGNING_REQUESTS
from trio_kubelet.k8s.client import Api, ApiClients, Kubeconfig, read_kubeconfig
from trio_kubelet.k8s.client.credentials import CredentialError
from trio_kubelet.node.bootstrap import node_kubeconfig, why_not_valid
from trio_kubelet.node.certificates import (
    CertificateNames,
    CertificateStore,
    key_pem,
    new_key,
    signing_request,
)
from trio_kubelet.node.client_certificate import (
    EXIT_SECONDS,
    ClientFiles,
    RotatedClientCertificate,
    open_client_certificate,
)

DAY = 86400.0
LIFE = timedelta(days=10)


@define(eq=False)
class Scene:
    """A machine with the files of a node, and a cluster in memory."""

    folder: Path
    has_bootstrap_flag: bool = True
    server: ApiServer = field(factory=lambda: ApiServer(clock=TrioClock(NOW_NS)))
    asked_with: list[str] = field(factory=list)
    signer: Signer = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.signer = Signer(self.server, LIFE)
        self.bootstrap.write_text(yaml.safe_dump(BOOTSTRAP))

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubelet.conf"

    @property
    def bootstrap(self) -> Path:
        return self.folder / "bootstrap.conf"

    @property
    def store(self) -> CertificateStore:
        return CertificateStore(self.folder / "pki")

    def has_pair_of_kubeadm(self, until: timedelta = YEAR) -> bytes:
        """Embed a pair in the kubeconfig, as kubeadm does."""
        key = new_key()
        chain = Authority().sign(
            signing_request(key, CertificateNames("node-1")), until=NOW + until
        )
        pair = self.folder / "pair.pem"
        pair.write_bytes(chain + key_pem(key))
        cluster = self._granted().cluster
        self.kubeconfig.write_bytes(node_kubeconfig(cluster, pair))
        return chain

    def _granted(self) -> Kubeconfig:
        return read_kubeconfig(self.bootstrap)

    async def opened(self) -> RotatedClientCertificate:
        files = ClientFiles(
            kubeconfig=self.kubeconfig,
            bootstrap=self.bootstrap if self.has_bootstrap_flag else None,
            cert_dir=self.folder / "pki",
        )
        return await open_client_certificate(files, "node-1", self.server.clock, self._connect)

    @asynccontextmanager
    async def _connect(self, kubeconfig: Kubeconfig) -> AsyncIterator[Api]:
        self.asked_with.append(kubeconfig.path.name)
        yield self.server.client()

    async def for_days(self, days: float) -> RotatedClientCertificate:
        certificate = await self.opened()
        client = self.server.client()
        clients = ApiClients("http://api.test", client, client, client, client)
        with trio.move_on_after(days * DAY):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.signer.run)
                nursery.start_soon(certificate.run, clients)
        return certificate


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


async def test_a_new_node_asks_with_its_bootstrap_credentials_and_then_as_itself(
    scene: Scene, autojump_clock: MockClock
) -> None:
    certificate = await scene.for_days(30)
    assert scene.asked_with == ["bootstrap.conf"]
    assert scene.signer.signed > 2
    assert why_not_valid(scene.kubeconfig, NOW + timedelta(days=30)) == ""
    assert certificate.pem() == scene.store.current_path.read_bytes()


async def test_until_it_is_signed_there_are_no_credentials(
    scene: Scene, autojump_clock: MockClock
) -> None:
    certificate = await scene.opened()
    with pytest.raises(CredentialError, match="no client certificate that is good now"):
        certificate.pem()


async def test_an_agent_that_starts_again_goes_on_with_what_it_had(
    scene: Scene, autojump_clock: MockClock
) -> None:
    before = (await scene.for_days(1)).pem()
    scene.bootstrap.unlink()
    assert (await scene.for_days(1)).pem() == before
    assert scene.signer.signed == 1


async def test_the_pair_of_a_kubeconfig_is_taken_over_and_replaced_at_once(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.has_bootstrap_flag = False
    chain = scene.has_pair_of_kubeadm()
    text = scene.kubeconfig.read_bytes()
    certificate = await scene.for_days(0)
    assert certificate.pem().startswith(chain)
    scene.store.current_path.unlink()
    after = await scene.for_days(1)
    assert not after.pem().startswith(chain)
    assert scene.signer.signed == 1
    assert scene.asked_with == []
    assert scene.kubeconfig.read_bytes() == text
    again = await scene.for_days(1)
    assert again.pem() == after.pem()


async def test_one_that_expired_while_the_machine_was_off_is_asked_for_anew(
    scene: Scene, autojump_clock: MockClock
) -> None:
    await scene.for_days(1)
    await trio.sleep(20 * DAY)
    await scene.for_days(1)
    assert scene.asked_with == ["bootstrap.conf"] * 2
    assert why_not_valid(scene.kubeconfig, NOW + timedelta(days=22)) == ""


async def test_one_that_expires_while_the_agent_runs_is_asked_for_with_the_bootstrap_credentials(
    scene: Scene, autojump_clock: MockClock
) -> None:
    certificate = await scene.opened()
    client = scene.server.client()
    clients = ApiClients("http://api.test", client, client, client, client)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.signer.run)
        nursery.start_soon(certificate.run, clients)
        await trio.sleep(DAY)
        scene.signer.mood = Mood.IGNORE
        await trio.sleep(10 * DAY)
        with pytest.raises(CredentialError):
            certificate.pem()
        scene.signer.mood = Mood.SIGN
        await trio.sleep(1000)
        assert certificate.pem()
        nursery.cancel_scope.cancel()
    assert set(scene.asked_with) == {"bootstrap.conf"}


async def test_one_that_the_disk_does_not_take_is_used_and_put_into_the_kubeconfig_later(
    scene: Scene, autojump_clock: MockClock
) -> None:
    files = (scene.store.current_path.parent, scene.kubeconfig)
    certificate = await scene.opened()
    client = scene.server.client()
    clients = ApiClients("http://api.test", client, client, client, client)
    async with trio.open_nursery() as nursery:
        files[0].touch()
        files[1].mkdir()
        nursery.start_soon(scene.signer.run)
        nursery.start_soon(certificate.run, clients)
        await trio.sleep(600)
        assert certificate.pem()
        files[0].unlink()
        files[1].rmdir()
        await trio.sleep(120)
        nursery.cancel_scope.cancel()
    assert scene.store.current_path.read_bytes() == certificate.pem()
    assert why_not_valid(scene.kubeconfig, NOW + timedelta(days=2)) == ""
    assert scene.signer.signed == 1


async def test_an_agent_whose_bootstrap_credentials_are_gone_too_ends_after_five_minutes(
    scene: Scene, autojump_clock: MockClock
) -> None:
    await scene.for_days(1)
    scene.bootstrap.unlink()
    scene.signer.mood = Mood.IGNORE
    with pytest.raises(BaseExceptionGroup) as raised:
        await scene.for_days(20)
    [error] = raised.value.exceptions
    assert isinstance(error, StartError)
    assert "bootstrap.conf: cannot be read" in str(error)
    assert trio.current_time() == pytest.approx(10 * DAY + 300, abs=60)


async def test_credentials_that_come_back_in_time_are_used(
    scene: Scene, autojump_clock: MockClock
) -> None:
    text = scene.bootstrap.read_text()

    async def be_away() -> None:
        scene.bootstrap.unlink()
        await trio.sleep(250)
        scene.bootstrap.write_text(text)

    scene.has_pair_of_kubeadm(until=timedelta(seconds=60))
    scene.signer.mood = Mood.IGNORE
    async with trio.open_nursery() as nursery:
        nursery.start_soon(be_away)
        nursery.start_soon(scene.for_days, 0.01)
        await trio.sleep(400)
        scene.signer.mood = Mood.SIGN
    assert scene.asked_with


async def test_a_token_that_is_not_accepted_any_more_counts_as_gone(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.server.faults.add(RequestFault(verb="create", code=401, times=1000))
    with pytest.raises(BaseExceptionGroup) as raised:
        await scene.for_days(1)
    [error] = raised.value.exceptions
    assert isinstance(error, StartError)
    assert "does not accept those of" in str(error)
    assert EXIT_SECONDS <= trio.current_time() < EXIT_SECONDS + 40
    assert not scene.server.all(CERTIFICATE_SIGNING_REQUESTS)


@pytest.mark.parametrize("mood", [Mood.DENY, Mood.DELETE, Mood.IGNORE])
async def test_a_request_that_was_taken_begins_the_five_minutes_anew(
    scene: Scene, autojump_clock: MockClock, mood: Mood
) -> None:
    refused = [RequestFault(verb="create", code=401, times=1) for _ in range(2)]
    scene.signer.mood = mood
    scene.server.faults.add(refused[0])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.for_days, 1)
        await trio.sleep(EXIT_SECONDS + 60)
        scene.server.faults.add(refused[1])
        await trio.sleep(1800)
        scene.signer.mood = Mood.SIGN
    assert [fault.times for fault in refused] == [0, 0]
    assert scene.signer.signed == 1


async def test_an_api_server_that_is_away_ends_no_agent(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.server.go_away()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.for_days, 1)
        await trio.sleep(3600)
        scene.server.come_back()
    assert scene.signer.signed == 1


@pytest.mark.parametrize("has_flag", [True, False])
async def test_an_agent_that_could_never_get_one_does_not_start(
    scene: Scene, autojump_clock: MockClock, has_flag: bool
) -> None:
    scene.has_pair_of_kubeadm(until=timedelta(seconds=-1))
    scene.bootstrap.unlink()
    scene.has_bootstrap_flag = has_flag
    with pytest.raises(StartError, match=r"has expired.*bootstrap-kubeconfig") as raised:
        await scene.opened()
    assert "\n" not in str(raised.value)
