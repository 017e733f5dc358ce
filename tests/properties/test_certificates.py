"""Five years of a node's certificates, with those who sign them slow, unwilling or not there."""

from collections.abc import AsyncIterator, Iterator, Sequence
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
from trio_kubelet.k8s.client import Api, KubeconfigError
from trio_kubelet.node.certificates import CertificateNames, CertificateStore, ClientPair, utc
from trio_kubelet.node.client_certificate import KIND
from trio_kubelet.node.rotation import ANSWER_SECONDS, Rotation

DAY = 86400.0
YEARS_SECONDS = 5 * 365 * DAY
SLACK_SECONDS = ANSWER_SECONDS + 120
"""A request that was ignored is forgotten within that time, and the next one made."""


@frozen
class Phase:
    """A time in which requests are treated in one way; the agent is killed at its end, or not."""

    seconds: float
    mood: Mood
    delay_seconds: float = 1.0
    outage: bool = False
    killed: bool = False


working = st.builds(
    Phase,
    st.floats(0.1 * DAY, 300 * DAY),
    st.just(Mood.SIGN),
    st.floats(0.1, 600.0),
    killed=st.booleans(),
)
trouble = st.one_of(
    st.builds(Phase, st.floats(60.0, 3600.0), st.just(Mood.DENY), killed=st.booleans()),
    st.builds(Phase, st.floats(60.0, 3600.0), st.just(Mood.DELETE), killed=st.booleans()),
    st.builds(Phase, st.floats(60.0, DAY / 2), st.just(Mood.IGNORE), killed=st.booleans()),
    st.builds(
        Phase,
        st.floats(60.0, DAY / 2),
        st.just(Mood.SIGN),
        outage=st.just(True),
        killed=st.booleans(),
    ),
)
lives = st.sampled_from([timedelta(days=days) for days in (30, 90, 365)])


@define(eq=False)
class FiveYears:
    """A node, its certificates and when each was taken into use."""

    folder: Path
    life: timedelta
    server: ApiServer = field(factory=lambda: ApiServer(clock=TrioClock(NOW_NS)))
    taken: list[tuple[datetime, ClientPair]] = field(factory=list)
    worked: list[tuple[datetime, datetime]] = field(factory=list)
    signer: Signer = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.signer = Signer(self.server, self.life, removes_old=True)

    def now(self) -> datetime:
        return utc(self.server.clock.now_ns())

    async def run(self, phases: Sequence[Phase]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.signer.run)
            agent = trio.CancelScope()
            nursery.start_soon(self._agent, agent)
            for phase in phases:
                await self._pass(phase)
                if phase.killed:
                    agent.cancel()
                    agent = trio.CancelScope()
                    nursery.start_soon(self._agent, agent)
            rest = max(0.0, YEARS_SECONDS - trio.current_time())
            await self._pass(Phase(rest, Mood.SIGN))
            nursery.cancel_scope.cancel()

    async def _pass(self, phase: Phase) -> None:
        self.signer.mood, self.signer.delay_seconds = phase.mood, phase.delay_seconds
        if phase.outage:
            self.server.go_away()
        began = self.now()
        await trio.sleep(phase.seconds)
        if phase.outage:
            self.server.come_back()
        elif phase.mood is Mood.SIGN:
            slack = timedelta(seconds=SLACK_SECONDS + 2 * phase.delay_seconds)
            self.worked.append((began + slack, self.now()))

    async def _agent(self, scope: trio.CancelScope) -> None:
        store = CertificateStore(self.folder)
        names = CertificateNames("node-1")
        rotation = Rotation(
            kind=KIND,
            store=store,
            names=lambda: names,
            asking=self._asking,
            take=lambda: self._take(rotation),
            clock=self.server.clock,
            pair=store.current(),
            ends_with_certificate=True,
        )
        with scope:
            await rotation.run()

    @asynccontextmanager
    async def _asking(self, pair: ClientPair | None) -> AsyncIterator[Api]:
        """A client for the first certificate, and then only with one that has not expired."""
        await trio.lowlevel.checkpoint()
        if self.taken and (pair is None or not pair.is_valid_at(self.now())):
            raise KubeconfigError("the bootstrap credentials are gone")
        yield self.server.client()

    async def _take(self, rotation: Rotation) -> None:
        await trio.lowlevel.checkpoint()
        assert rotation.pair is not None
        self.taken.append((self.now(), rotation.pair))

    def gaps(self) -> list[tuple[datetime, datetime]]:
        """The times without a certificate that was good."""
        gaps, good_until = [], utc(NOW_NS)
        for at, pair in self.taken:
            if at > good_until:
                gaps.append((good_until, at))
            good_until = pair.not_after
        if self.now() > good_until:
            gaps.append((good_until, self.now()))
        return gaps


@pytest.fixture(autouse=True)
def seldom_and_quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Look once a day, not each hour, whether the clock was set, and log nothing."""
    monkeypatch.setattr("trio_kubelet.node.rotation.LONGEST_SLEEP_SECONDS", DAY)
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.configure(**before)


@settings(max_examples=40, deadline=None)
@given(
    phases=st.lists(st.tuples(working, trouble), min_size=1, max_size=5),
    life=lives,
)
def test_a_node_has_a_good_certificate_whenever_one_could_be_had(
    phases: list[tuple[Phase, Phase]], life: timedelta
) -> None:
    with TemporaryDirectory() as folder, in_place():

        async def years() -> FiveYears:
            node = FiveYears(Path(folder), life)
            await node.run([phase for pair in phases for phase in pair])
            gaps = node.gaps()
            for begin, end in gaps:
                for could_begin, could_end in node.worked:
                    assert min(end, could_end) <= max(begin, could_begin), (begin, end)
            return node

        node = trio.run(years, clock=MockClock(autojump_threshold=0))
        assert len(node.taken) >= 5 * timedelta(days=365) / life * LATEST_SHARE
        assert len(list(Path(folder).iterdir())) <= 4
