"""Five years of a node's certificates, with those who sign them slow, unwilling or not there.

The client's, with which the node asks for the next one; and that of its port, which has to be for
the node's address, and the node moves.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import structlog
import trio
from attrs import define, field, frozen
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from state_machines.certificate import LATEST_SHARE
from tests.apiserver.server import ApiServer
from tests.file_work import in_place
from tests.trio_clock import TrioClock
from tests.unit.node.authority import NOW_NS
from tests.unit.node.signer import Mood, Signer
from trio_kubelet.k8s.client import Api
from trio_kubelet.node.certificates import CertificateNames, CertificateStore, ClientPair, utc
from trio_kubelet.node.client_certificate import KIND as CLIENT
from trio_kubelet.node.rotation import ANSWER_SECONDS, CertificateKind, Rotation
from trio_kubelet.node.serving_certificate import KIND as SERVING

DAY = 86400.0
YEARS_SECONDS = 5 * 365 * DAY
SLACK_SECONDS = ANSWER_SECONDS + 120
"""A request that was ignored is forgotten within that time, and the next one made."""


@frozen
class Phase:
    """A time in which requests are treated in one way.

    It begins when the next rotation is due (`waits`), or at once. The node has another address
    from its beginning on, or not; the agent is killed at its end, or not.
    """

    seconds: float
    mood: Mood
    delay_seconds: float = 1.0
    outage: bool = False
    waits: bool = False
    moves: bool = False
    killed: bool = False


working = st.builds(
    Phase,
    st.floats(0.1 * DAY, 300 * DAY),
    st.just(Mood.SIGN),
    st.floats(0.1, 600.0),
    moves=st.booleans(),
    killed=st.booleans(),
)


def trouble_with(
    mood: Mood, longest_seconds: float, *, outage: bool = False
) -> st.SearchStrategy[Phase]:
    """Hours in which nothing comes of requests, of which each rotation has time enough left."""
    return st.builds(
        Phase,
        st.floats(60.0, longest_seconds),
        st.just(mood),
        outage=st.just(outage),
        waits=st.booleans(),
        killed=st.booleans(),
    )


trouble = st.one_of(
    trouble_with(Mood.DENY, 3600.0),
    trouble_with(Mood.DELETE, 3600.0),
    trouble_with(Mood.IGNORE, DAY / 2),
    trouble_with(Mood.SIGN, DAY / 2, outage=True),
)
lives = st.sampled_from([timedelta(days=days) for days in (30, 90, 365)])


@frozen
class Shown:
    """What the node shows from a time on, and the names that it should be for."""

    since: datetime
    pair: ClientPair | None
    names: CertificateNames

    def good_until(self) -> datetime:
        """The time until which it is good; `since`, if it is not."""
        if self.pair is None or not self.names.are_in(self.pair.chain[0]):
            return self.since
        return max(self.since, self.pair.not_after)


@define(eq=False)
class FiveYears:
    """A node, one of its certificates, and what was shown when."""

    folder: Path
    life: timedelta
    kind: CertificateKind
    server: ApiServer = field(factory=lambda: ApiServer(clock=TrioClock(NOW_NS)))
    shown: list[Shown] = field(factory=list)
    worked: list[tuple[datetime, datetime]] = field(factory=list)
    taken: int = 0
    moves: int = 0
    signer: Signer = field(init=False)
    rotation: Rotation = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.signer = Signer(self.server, self.life, removes_old=True)
        self.shown.append(Shown(self.now(), None, self.names()))

    def now(self) -> datetime:
        return utc(self.server.clock.now_ns())

    def names(self) -> CertificateNames:
        if self.kind is CLIENT:
            return CertificateNames("node-1")
        return CertificateNames("node-1", ("node-1",), (f"192.0.2.{self.moves + 1}",))

    async def run(self, phases: Sequence[Phase]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.signer.run)
            agent = self._start_agent(nursery)
            for phase in phases:
                await self._pass(phase)
                if phase.killed:
                    agent.cancel()
                    agent = self._start_agent(nursery)
            rest = max(0.0, YEARS_SECONDS - trio.current_time())
            await self._pass(Phase(rest, Mood.SIGN))
            nursery.cancel_scope.cancel()

    async def _pass(self, phase: Phase) -> None:
        if phase.waits:
            left = (self.rotation._due_at - self.now()).total_seconds()
            await self._pass(Phase(max(0.0, left), Mood.SIGN))
        self.signer.mood, self.signer.delay_seconds = phase.mood, phase.delay_seconds
        if phase.outage:
            self.server.go_away()
        if phase.moves:
            self.moves += 1
            self.shown.append(Shown(self.now(), self.shown[-1].pair, self.names()))
            self.rotation.names_changed()
        began = self.now()
        await trio.sleep(phase.seconds)
        if phase.outage:
            self.server.come_back()
        elif phase.mood is Mood.SIGN:
            slack = timedelta(seconds=SLACK_SECONDS + 2 * phase.delay_seconds)
            self.worked.append((began + slack, self.now()))

    def _start_agent(self, nursery: trio.Nursery) -> trio.CancelScope:
        """Start an agent with what an earlier one has left; it ends with the scope."""
        store = CertificateStore(self.folder)
        rotation = self.rotation = Rotation(
            kind=self.kind,
            store=store,
            names=self.names,
            asking=self._asking,
            take=lambda: self._take(rotation),
            clock=self.server.clock,
            pair=store.current(),
            ends_with_certificate=self.kind is CLIENT,
        )
        scope = trio.CancelScope()

        async def live() -> None:
            with scope:
                await rotation.run()

        nursery.start_soon(live)
        return scope

    @asynccontextmanager
    async def _asking(self, pair: ClientPair | None) -> AsyncIterator[Api]:
        """A client: for the client's certificate with the one before, without which all is over."""
        await trio.lowlevel.checkpoint()
        if self.kind is CLIENT and self.taken:
            assert pair is not None, "nothing is left to ask with"
        yield self.server.client()

    async def _take(self, rotation: Rotation) -> None:
        await trio.lowlevel.checkpoint()
        self.taken += 1
        self.shown.append(Shown(self.now(), rotation.pair, self.names()))

    def gaps(self) -> list[tuple[datetime, datetime]]:
        """The times without a certificate that was good."""
        ends = (*(each.since for each in self.shown[1:]), self.now())
        return [
            (each.good_until(), end)
            for each, end in zip(self.shown, ends, strict=True)
            if each.good_until() < end
        ]


@pytest.fixture(autouse=True)
def seldom_and_quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Look once a day, not each hour, whether the clock was set, and log nothing."""
    monkeypatch.setattr("trio_kubelet.node.rotation.LONGEST_SLEEP_SECONDS", DAY)
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.configure(**before)


KINDS: Mapping[str, CertificateKind] = {"client": CLIENT, "port": SERVING}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(
    phases=st.lists(st.tuples(working, trouble), min_size=1, max_size=5),
    life=lives,
)
def test_a_node_has_a_good_certificate_whenever_one_could_be_had(
    kind: str, phases: list[tuple[Phase, Phase]], life: timedelta
) -> None:
    with TemporaryDirectory() as folder, in_place():

        async def years() -> FiveYears:
            node = FiveYears(Path(folder), life, KINDS[kind])
            await node.run([phase for pair in phases for phase in pair])
            for begin, end in node.gaps():
                for could_begin, could_end in node.worked:
                    assert min(end, could_end) <= max(begin, could_begin), (begin, end)
            return node

        node = trio.run(years, clock=MockClock(autojump_threshold=0))
        assert node.taken >= 5 * timedelta(days=365) / life * LATEST_SHARE
        assert len(list(Path(folder).iterdir())) <= 4 + node.moves
