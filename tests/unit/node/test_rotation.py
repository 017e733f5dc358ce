"""A certificate that is kept good."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from attrs import define, field
from trio.testing import MockClock

from state_machines.certificate import CertificateState
from tests.apiserver.faults import RequestFault
from tests.apiserver.server import ApiServer
from tests.trio_clock import TrioClock
from tests.unit.node.authority import NOW_NS, ODD_CERTIFICATES
from tests.unit.node.signer import Mood, Signer
from trio_kubelet.k8s import CERTIFICATE_SIGNING_REQUESTS, CertificateSigningRequest
from trio_kubelet.k8s.client import Api
from trio_kubelet.node.certificates import (
    SERVER,
    CertificateNames,
    CertificateStore,
    ClientPair,
    key_pem,
    read_pair,
)
from trio_kubelet.node.client_certificate import KIND
from trio_kubelet.node.rotation import Rotation

DAY = 86400.0
LIFE = timedelta(days=10)
NODE = CertificateNames("node-1")


@define(eq=False)
class Scene:
    """A node with one certificate, and those who sign it."""

    folder: Path
    server: ApiServer = field(factory=lambda: ApiServer(clock=TrioClock(NOW_NS)))
    names: CertificateNames | None = NODE
    taken: list[tuple[float, ClientPair]] = field(factory=list)
    asked_with: list[bool] = field(factory=list)
    signer: Signer = field(init=False)
    rotation: Rotation = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.signer = Signer(self.server, LIFE)
        self.rotation = Rotation(
            kind=KIND,
            store=CertificateStore(self.folder, SERVER),
            names=lambda: self.names,
            asking=self._asking,
            take=self._take,
            clock=self.server.clock,
        )

    @asynccontextmanager
    async def _asking(self, pair: ClientPair | None) -> AsyncIterator[Api]:
        self.asked_with.append(pair is not None)
        yield self.server.client()

    async def _take(self) -> None:
        await trio.lowlevel.checkpoint()
        assert self.rotation.pair is not None
        self.taken.append((trio.current_time(), self.rotation.pair))

    @property
    def requests(self) -> tuple[CertificateSigningRequest, ...]:
        return self.server.all(CERTIFICATE_SIGNING_REQUESTS)

    async def for_days(self, days: float) -> None:
        with trio.move_on_after(days * DAY):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.signer.run)
                nursery.start_soon(self.rotation.run)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


async def test_each_certificate_is_replaced_between_70_and_90_percent_of_its_life(
    scene: Scene, autojump_clock: MockClock
) -> None:
    await scene.for_days(100)
    times = [at for at, _ in scene.taken]
    lives = [after - before for before, after in pairwise(times)]
    assert len(lives) >= 10
    assert all(7 * DAY <= life <= 9 * DAY + 10 for life in lives)
    assert len(set(lives)) > 5
    assert scene.asked_with == [False] + [True] * (len(times) - 1)


async def test_each_request_has_a_key_of_its_own(scene: Scene, autojump_clock: MockClock) -> None:
    await scene.for_days(50)
    keys = {key_pem(pair.key) for _, pair in scene.taken}
    assert len(keys) == len(scene.taken) == len(scene.requests) > 3


async def test_certificates_that_have_expired_leave_no_files(
    scene: Scene, autojump_clock: MockClock
) -> None:
    await scene.for_days(200)
    left = sorted(path.name for path in scene.folder.iterdir())
    assert left[-1] == "kubelet-server-current.pem"
    assert len(left) <= 3
    assert read_pair((scene.folder / left[-1]).read_bytes()).pem == scene.taken[-1][1].pem


async def test_what_was_asked_for_in_vain_is_not_waited_for_again(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.signer.mood = Mood.IGNORE
    await scene.for_days(1 / 24)
    assert len(scene.requests) == 4
    assert len({request.spec.request for request in scene.requests}) == 4
    assert scene.rotation.failures == 3
    assert scene.rotation.state is CertificateState.REQUESTED


async def test_a_denial_is_followed_by_other_requests_less_and_less_often(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.signer.mood = Mood.DENY
    await scene.for_days(1 / 24)
    assert 90 <= scene.rotation.failures <= 120
    scene.signer.mood = Mood.SIGN
    await scene.for_days(60 / DAY)
    assert scene.rotation.state is CertificateState.CURRENT


async def test_a_signer_whose_certificates_cannot_be_read_is_asked_again(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.signer.damage = ODD_CERTIFICATES["key of an unknown kind"]
    await scene.for_days(60 / DAY)
    assert scene.rotation.failures > 1
    assert scene.rotation.pair is None
    scene.signer.damage = None
    await scene.for_days(60 / DAY)
    assert scene.rotation.state is CertificateState.CURRENT


async def test_a_request_that_somebody_deletes_is_made_anew(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.signer.mood = Mood.DELETE
    await scene.for_days(60 / DAY)
    scene.signer.mood = Mood.SIGN
    await scene.for_days(60 / DAY)
    assert scene.rotation.valid_pair() is not None


async def test_an_api_server_that_refuses_or_is_away_is_asked_again(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.server.faults.add(RequestFault(verb="create", code=403, times=3))
    await scene.for_days(60 / DAY)
    assert scene.rotation.failures == 3
    assert scene.rotation.valid_pair() is not None


async def test_a_certificate_in_use_stays_so_while_the_next_one_cannot_be_had(
    scene: Scene, autojump_clock: MockClock
) -> None:
    await scene.for_days(1)
    scene.signer.mood = Mood.IGNORE
    await scene.for_days(8.9)
    assert scene.rotation.valid_pair() is scene.taken[0][1]
    await scene.for_days(0.2)
    assert scene.rotation.valid_pair() is None
    assert scene.rotation.seconds_left() < 0


async def test_other_names_make_another_certificate_at_once(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.names = None
    await scene.for_days(1)
    assert not scene.requests
    scene.names = CertificateNames("node-1", ("node-1",), ("10.0.0.1",))
    await scene.for_days(1)
    for addresses in (("10.0.0.2",), ("10.0.0.1", "fd00::2")):
        scene.names = CertificateNames("node-1", ("node-1",), addresses)
        scene.rotation.names_changed()
        await scene.for_days(1)
        assert scene.names.are_in(scene.taken[-1][1].chain[0])
    assert len(scene.taken) == 3
    scene.names = CertificateNames("node-1", ("node-1",), ("fd00::2",))
    await scene.for_days(1)
    assert len(scene.taken) == 3, "one that has more names than it must does, too"


async def test_a_request_for_names_that_are_not_wanted_any_more_is_not_waited_for(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.signer.mood = Mood.IGNORE
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.signer.run)
        nursery.start_soon(scene.rotation.run)
        await trio.sleep(10)
        scene.signer.mood = Mood.SIGN
        scene.names = CertificateNames("node-1", (), ("10.0.0.1",))
        scene.rotation.names_changed()
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert len(scene.requests) == 2
    assert len(scene.taken) == 1


async def test_addresses_that_come_and_go_are_not_requested_each_time(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.signer.run)
        nursery.start_soon(scene.rotation.run)
        for number in range(600):
            scene.names = names = CertificateNames("node-1", (), (f"10.0.0.{number % 200}",))
            scene.rotation.names_changed()
            await trio.sleep(1)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert 10 < len(scene.requests) < 70
    assert names.are_in(scene.taken[-1][1].chain[0])


async def test_a_signer_that_leaves_out_names_is_not_asked_without_a_pause(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.names = CertificateNames("node-1", (), ("10.0.0.1",))
    scene.signer.authority.leaves_out_names = True
    await scene.for_days(1 / 24)
    assert 50 < len(scene.taken) < 130
    assert scene.rotation.valid_pair() is scene.taken[-1][1], "better than none"


async def test_a_certificate_whose_rotation_was_due_when_it_came_is_kept_a_second(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.signer.backdated = timedelta(days=1000)
    await scene.for_days(60 / DAY)
    assert 20 < len(scene.taken) < 40


async def test_a_certificate_that_the_disk_does_not_take_is_used_and_written_when_it_does(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.folder.rmdir()
    scene.folder.touch()
    await scene.for_days(1 / 24)
    assert len(scene.requests) == 1
    assert scene.rotation.failures == 0
    pair = scene.rotation.valid_pair()
    assert pair is not None
    assert scene.rotation.unwritten_pem() == pair.pem
    scene.folder.unlink()
    await scene.for_days(120 / DAY)
    assert scene.rotation.store.current_path.read_bytes() == pair.pem
    assert not scene.rotation.unwritten_pem()
    assert [taken for _, taken in scene.taken] == [pair, pair], "told again when it was written"
    assert len(scene.requests) == 1


async def test_of_the_certificates_that_the_disk_did_not_take_the_newest_is_written(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.folder.rmdir()
    scene.folder.touch()
    scene.signer.life = timedelta(hours=1)
    await scene.for_days(3 / 24)
    assert 4 <= len(scene.requests) == len(scene.taken) <= 5
    scene.folder.unlink()
    await scene.for_days(120 / DAY)
    assert scene.rotation.store.current_path.read_bytes() == scene.taken[-1][1].pem
    assert len(list(scene.folder.iterdir())) == 2


async def test_a_certificate_that_is_written_again_and_again_leaves_one_file(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.rotation.store.current_path.write_text("in the place of the link")
    await scene.for_days(1 / 24)
    assert len(list(scene.folder.iterdir())) == 2
    assert scene.rotation.valid_pair() is not None
