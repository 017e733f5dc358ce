"""What is received comes in pieces, of which few are taken in a round of the event loop."""

import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest
import trio
import trio.testing
from h2.connection import H2Connection

from lab.probe_targets import grpc_answer
from tests.unit.pod_clients.servers import (
    LOOPBACK,
    http,
    http2,
    port_of,
    server_tls,
    serving,
)
from trio_kubelet.k8s import Container, GRPCAction, HTTPGetAction, IntOrString
from trio_kubelet.pod_clients.dial import Dialer
from trio_kubelet.pod_clients.grpc import probe_grpc
from trio_kubelet.pod_clients.http import HttpProber
from trio_kubelet.pod_clients.http2 import PIECE_BYTES
from trio_kubelet.pod_clients.result import ProbeOutcome, ProbeResult
from trio_kubelet.pod_clients.share import ProbeShare, ProbeShares
from trio_kubelet.tasks.turns import TURNS_IN_A_ROUND

PATIENCE_SECONDS = 60
MANY = 200
EMPTY_SETTINGS = b"\0\0\0\4\0\0\0\0\0"
SERVES = EMPTY_SETTINGS + (grpc_answer("", 1) or b"")

Run = Callable[[int, ProbeShare], Awaitable[ProbeResult]]


async def get(port: int, share: ProbeShare, scheme: str = "HTTP") -> ProbeResult:
    action = HTTPGetAction(port=IntOrString(port), path="/", scheme=scheme)
    prober = HttpProber(Dialer())
    return await prober.probe(action, Container(), LOOPBACK, PATIENCE_SECONDS, share)


async def check(port: int, share: ProbeShare) -> ProbeResult:
    return await probe_grpc(Dialer(), GRPCAction(port=port), LOOPBACK, PATIENCE_SECONDS, share)


@pytest.mark.parametrize(("run", "data"), [(get, http(200)), (check, SERVES)], ids=["http", "grpc"])
async def test_hundreds_of_answers_in_the_same_moment_let_others_run_between_them(
    run: Run, data: bytes
) -> None:
    shares, ended, ended_in_a_round = ProbeShares(), 0, list[int]()

    async def keep_running(port: int, share: ProbeShare) -> None:
        nonlocal ended
        assert (await run(port, share)).outcome is ProbeOutcome.SUCCESS
        ended += 1

    with socket.create_server((LOOPBACK, 0), backlog=MANY) as listener:
        with trio.fail_after(PATIENCE_SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(shares.give_turns)
                for number in range(MANY):
                    share = shares.of(f"uid-{number % 10}", "hostile")
                    nursery.start_soon(keep_running, port_of(listener), share)
                await trio.testing.wait_all_tasks_blocked()
                answered = [listener.accept()[0] for _ in range(MANY)]
                for connection in answered:
                    connection.sendall(data)
                while ended < MANY:
                    before = ended
                    await trio.lowlevel.checkpoint()
                    ended_in_a_round.append(ended - before)
                nursery.cancel_scope.cancel()
        for connection in answered:
            connection.close()
    # Tasks run in any order within a round, so two of them may be between two turns of this one.
    assert max(ended_in_a_round) <= 2 * TURNS_IN_A_ROUND


class CountedShare(ProbeShare):
    """Counts the turns that a run asks for."""

    def __init__(self) -> None:
        super().__init__("uid", "n", turn=self._have_turn)
        self.turns = 0

    async def _have_turn(self) -> None:
        self.turns += 1
        await trio.lowlevel.checkpoint()


@contextmanager
def full_port() -> Iterator[socket.socket]:
    """A listener that takes no more connections until it has accepted one."""
    with socket.socket() as full, socket.socket() as filling:
        full.bind((LOOPBACK, 0))
        full.listen(0)
        filling.connect(full.getsockname())
        yield full


async def test_a_connection_that_comes_about_later_waits_for_its_turn() -> None:
    share, began = CountedShare(), trio.Event()

    async def dial() -> None:
        began.set()
        (await Dialer().dial(LOOPBACK, port_of(full), share)).close()

    with full_port() as full, trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(dial)
            await began.wait()
            await trio.testing.wait_all_tasks_blocked()
            assert share.turns == 0
            full.accept()[0].close()
    assert share.turns == 1


async def test_a_connection_whose_turn_does_not_come_is_closed() -> None:
    waits = trio.Event()

    async def have_no_turn() -> None:
        waits.set()
        await trio.sleep_forever()

    with full_port() as full, trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            share = ProbeShare(turn=have_no_turn)
            nursery.start_soon(Dialer().dial, LOOPBACK, port_of(full), share)
            await trio.testing.wait_all_tasks_blocked()
            full.accept()[0].close()
            await waits.wait()
            nursery.cancel_scope.cancel()
        with full.accept()[0] as connection:
            assert connection.recv(1) == b""


async def test_each_piece_that_was_in_one_record_of_tls_waits_for_its_turn() -> None:
    def respond(h2: H2Connection, stream: int) -> None:
        h2.send_headers(stream, [(":status", "200")])
        h2.send_data(stream, b"x" * 8 * PIECE_BYTES, end_stream=True)

    share = CountedShare()
    async with serving(http2(respond), server_tls("web", protocols=["h2"])) as port:
        assert (await get(port, share, "HTTPS")).outcome is ProbeOutcome.SUCCESS
    assert share.turns > 8
