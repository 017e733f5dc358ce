"""The work that answers make is done in short turns, and counted by the CPU time that it took."""

import time
from collections.abc import Awaitable, Callable, Iterable

import pytest
import trio
from h2.connection import H2Connection
from h2.events import Event
from trio.lowlevel import Task

from lab.probe_targets import grpc_answer
from tests.unit.pod_clients.servers import LOOPBACK, server_tls, serving
from trio_kubelet.k8s import Container, GRPCAction, HTTPGetAction, IntOrString
from trio_kubelet.pod_clients.dial import Dialer
from trio_kubelet.pod_clients.grpc import probe_grpc
from trio_kubelet.pod_clients.http import HttpProber
from trio_kubelet.pod_clients.http2 import PIECE_BYTES, STREAM
from trio_kubelet.pod_clients.result import ProbeOutcome
from trio_kubelet.pod_clients.share import ProbeShare

SECONDS = 60
FRAMES = 20
FRAME_SECONDS = 1e-3
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
OK = b"\0\0\1\1\5\0\0\0\1\x88"
UPDATE = b"\0\0\4\x08\0\0\0\0\0\0\0\0\1"
"""A frame that says that a little more may be sent."""
UPDATES = UPDATE * (FRAMES - 2)
LONG_DATA = b"\0\x07\xd0\xff" + bytes(2005)
"""A frame of an unknown type."""
MANY = 200

Probe = Callable[[bytes, ProbeShare], Awaitable[None]]


class CountedShare(ProbeShare):
    used = 0.0

    def use(self, seconds: float) -> None:
        self.used += seconds


@pytest.fixture
def each_frame_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor on which all that costs is a frame that h2 takes."""
    now, receive = 0.0, H2Connection.receive_data

    def receive_slowly(h2: H2Connection, data: bytes) -> Iterable[Event]:
        nonlocal now
        now += FRAME_SECONDS
        return receive(h2, data)

    monkeypatch.setattr(H2Connection, "receive_data", receive_slowly)
    monkeypatch.setattr(time, "thread_time", lambda: now)


async def say(stream: trio.abc.Stream, said: bytes) -> None:
    """Answer whatever is asked, and wait until the client goes."""
    await stream.receive_some()
    await stream.send_all(said)
    while await stream.receive_some():
        pass


async def check(said: bytes, share: ProbeShare) -> None:
    """Probe a server of gRPC that says something more than its answer."""

    async def serve(stream: trio.abc.Stream) -> None:
        await say(stream, SETTINGS + said + (grpc_answer("ok", STREAM) or b""))

    async with serving(serve) as port:
        action = GRPCAction(port=port, service="")
        came = await probe_grpc(Dialer(), action, LOOPBACK, SECONDS, share)
    assert came.outcome is ProbeOutcome.SUCCESS


async def get(said: bytes, share: ProbeShare) -> None:
    """Probe a server of HTTP/2 over TLS that says something more than its response."""

    async def serve(stream: trio.abc.Stream) -> None:
        await say(stream, SETTINGS + said + OK)

    async with serving(serve, server_tls("web", protocols=["h2"])) as port:
        action = HTTPGetAction(port=IntOrString(port), path="/", scheme="HTTPS")
        prober = HttpProber(Dialer())
        came = await prober.probe(action, Container(name="c"), LOOPBACK, SECONDS, share)
    assert came.outcome is ProbeOutcome.SUCCESS


@pytest.mark.parametrize(
    ("probe", "said"),
    [(check, UPDATES), (check, LONG_DATA + UPDATES), (get, UPDATES)],
    ids=["a call that is known", "a call that is too long to be known", "a response"],
)
async def test_what_frames_take_is_counted(
    probe: Probe, said: bytes, each_frame_takes_long: None
) -> None:
    share = CountedShare()
    await probe(said, share)
    assert share.used >= FRAMES * FRAME_SECONDS


class FramesOfTurns(trio.abc.Instrument):
    """Counts the frames that h2 takes in each turn of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = self._now = 0
        receive = H2Connection.receive_data

        def count(h2: H2Connection, data: bytes) -> Iterable[Event]:
            self._now += 1
            return receive(h2, data)

        monkeypatch.setattr(H2Connection, "receive_data", count)

    def after_task_step(self, task: Task) -> None:
        self.most = max(self.most, self._now)
        self._now = 0


@pytest.mark.parametrize("probe", [check, get])
async def test_few_frames_are_taken_in_a_turn(
    probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = FramesOfTurns(monkeypatch)
    trio.lowlevel.add_instrument(frames)
    await probe(UPDATE * MANY, ProbeShare())
    trio.lowlevel.remove_instrument(frames)
    # Of a call, what came at first is read once more when it turns out to be long.
    assert 0 < frames.most <= 2 * PIECE_BYTES / len(UPDATE) + 3 < MANY
