"""The end of a probe's connection: this node keeps nothing of it, and the server reads an end."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from tests.unit.pod_clients.servers import (
    LOOPBACK,
    Serve,
    answer,
    health,
    http,
    server_tls,
    serving,
)
from trio_kubelet.k8s import Container, GRPCAction, HTTPGetAction, IntOrString, TCPSocketAction
from trio_kubelet.pod_clients.dial import Dialer, probe_tcp
from trio_kubelet.pod_clients.grpc import probe_grpc
from trio_kubelet.pod_clients.http import HttpProber
from trio_kubelet.pod_clients.result import ProbeOutcome, ProbeResult
from trio_kubelet.pod_clients.share import ProbeShare

PATIENCE_SECONDS = 60
OK = http(200)


async def connect(port: int) -> ProbeResult:
    action = TCPSocketAction(port=IntOrString(port))
    return await probe_tcp(Dialer(), action, Container(), LOOPBACK, PATIENCE_SECONDS, ProbeShare())


async def get(port: int, scheme: str = "HTTP") -> ProbeResult:
    action = HTTPGetAction(port=IntOrString(port), path="/", scheme=scheme)
    prober = HttpProber(Dialer())
    return await prober.probe(action, Container(), LOOPBACK, PATIENCE_SECONDS, ProbeShare())


async def get_over_tls(port: int) -> ProbeResult:
    return await get(port, "HTTPS")


async def check(port: int) -> ProbeResult:
    action = GRPCAction(port=port)
    return await probe_grpc(Dialer(), action, LOOPBACK, PATIENCE_SECONDS, ProbeShare())


async def say_nothing(_stream: trio.abc.Stream) -> None:
    """Take the connection, and wait for its end."""
    await trio.lowlevel.checkpoint()


def kept_of(port: int) -> set[str]:
    """This node's ends of connections to a port, also of those that it closed."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[2].endswith(f":{port:04X}")}


@pytest.mark.parametrize(
    ("run", "serve"),
    [
        (connect, say_nothing),
        (get, answer(OK)),
        (get_over_tls, answer(OK)),
        (check, health({"grpc-status": "0"}, b"\x08\x01")),
    ],
)
async def test_a_run_leaves_no_port_of_this_node_in_use_and_its_server_reads_an_end(
    run: Callable[[int], Awaitable[ProbeResult]], serve: Serve
) -> None:
    was_reset: list[bool] = []
    has_ended = trio.Event()

    async def serve_until_the_end(stream: trio.abc.Stream) -> None:
        try:
            await serve(stream)
            while await stream.receive_some():
                pass
            was_reset.append(False)
        except trio.BrokenResourceError as error:
            # An end without TLS's own word is none for it, but the connection was not reset.
            was_reset.append(isinstance(error.__cause__, ConnectionResetError))
        has_ended.set()

    tls = server_tls("web") if run is get_over_tls else None
    async with serving(serve_until_the_end, tls) as port:
        before = kept_of(port)  # Another test may have had the port a moment ago.
        assert (await run(port)).outcome is ProbeOutcome.SUCCESS
        assert kept_of(port) <= before
        with trio.fail_after(PATIENCE_SECONDS):
            await has_ended.wait()
    assert was_reset == [False]
