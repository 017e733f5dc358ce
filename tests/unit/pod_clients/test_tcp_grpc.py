"""The tcpSocket and grpc probes: what succeeds, what fails, and in which words."""

import socket
import sys
from collections.abc import Callable

import pytest
import trio
import trio.testing
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from trio.testing import MockClock

from lab.probe_targets import grpc_answer
from tests.unit.pod_clients.servers import (
    LOOPBACK,
    Serve,
    answer,
    closed_port,
    flooding,
    goodbye,
    hang,
    health,
    http,
    http2,
    lets_others_run,
    port_of,
    serving,
)
from trio_kubelet.k8s import (
    Container,
    GRPCAction,
    IntOrString,
    TCPSocketAction,
)
from trio_kubelet.pod_clients.dial import Dialer, DialError, probe_tcp
from trio_kubelet.pod_clients.grpc import probe_grpc
from trio_kubelet.pod_clients.result import (
    ProbeOutcome,
    ProbeResult,
)
from trio_kubelet.pod_clients.share import ProbeShare
from trio_kubelet.pod_clients.stream import ProbeStream

SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"
OK = {"grpc-status": "0"}
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
"""An empty frame of HTTP/2."""
SETTINGS_ACKNOWLEDGED = b"\0\0\0\4\1\0\0\0\0"
PRIORITIES = b"\0\0\5\2\0\0\0\0\1\0\0\0\0\x10" * 3000


async def connect(port: int) -> ProbeResult:
    action = TCPSocketAction(port=IntOrString(port))
    return await probe_tcp(Dialer(), action, Container(), LOOPBACK, 1, ProbeShare())


async def test_a_port_that_takes_connections_is_well() -> None:
    async with serving(hang) as port:
        assert (await connect(port)).outcome is ProbeOutcome.SUCCESS


async def test_a_name_that_is_too_long_for_a_host_is_not_looked_up() -> None:
    action = TCPSocketAction(host="ü." * 100_000, port=IntOrString(80))
    came = await probe_tcp(Dialer(), action, Container(), LOOPBACK, 1, ProbeShare())
    assert came.outcome is ProbeOutcome.FAILURE
    assert came.output.startswith("dial tcp: lookup ü.ü.")
    assert came.output.endswith("…: no such host")
    assert len(came.output) < 300


async def test_a_port_that_refuses_connections_fails() -> None:
    with closed_port() as bound:
        port = port_of(bound)
        came = await connect(port)
    assert (came.outcome, came.by_container) == (ProbeOutcome.FAILURE, False)
    assert came.output == f"dial tcp 127.0.0.1:{port}: connect: connection refused"


@pytest.mark.parametrize("family", ["leads nowhere", "refuses"])
async def test_a_name_with_one_family_that_does_not_answer_is_asked_by_the_other(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_INET6) as silent, socket.socket(socket.AF_INET6) as filling:
        silent.bind(("::1", 0))
        if family == "leads nowhere":
            silent.listen(0)
            filling.connect(silent.getsockname())
        async with serving(hang) as port:
            kind = socket.SOCK_STREAM
            found = [
                (socket.AF_INET6, kind, 0, "", silent.getsockname()),
                (socket.AF_INET, kind, 0, "", (LOOPBACK, port)),
            ]
            monkeypatch.setattr("trio_kubelet.pod_clients.dial.OTHER_FAMILY_SECONDS", 0.0)
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
            action = TCPSocketAction(host="dual.example", port=IntOrString(port))
            came = await probe_tcp(Dialer(), action, Container(), LOOPBACK, 30, ProbeShare())
    assert came.outcome is ProbeOutcome.SUCCESS


async def test_a_name_that_answers_by_no_family_fails_in_the_words_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with closed_port("::1") as first, closed_port() as other:
        found = [
            (socket.AF_INET6, socket.SOCK_STREAM, 0, "", first.getsockname()),
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", other.getsockname()),
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        action = TCPSocketAction(host="dual.example", port=IntOrString(80))
        came = await probe_tcp(Dialer(), action, Container(), LOOPBACK, 30, ProbeShare())
        assert came.output == f"dial tcp [::1]:{port_of(first)}: connect: connection refused"


async def test_a_port_that_does_not_answer_is_late(
    autojump_clock: MockClock,
) -> None:
    with socket.socket() as full:
        full.bind((LOOPBACK, 0))
        full.listen(0)
        port = full.getsockname()[1]
        with socket.create_connection((LOOPBACK, port)):
            came = await connect(port)
    assert (came.outcome, came.output) == (
        ProbeOutcome.FAILURE,
        f"dial tcp 127.0.0.1:{port}: i/o timeout",
    )


async def check(port: int, service: str | None = None, seconds: float = 30) -> ProbeResult:
    action = GRPCAction(port=port, service=service)
    return await probe_grpc(Dialer(), action, LOOPBACK, seconds, ProbeShare())


async def test_a_server_that_serves_is_well() -> None:
    seen: list[dict[str, str]] = []
    async with serving(health(OK, SERVING, seen)) as port:
        came = await check(port, "orders")
    assert (came.outcome, came.output) == (ProbeOutcome.SUCCESS, "service healthy")
    assert seen[0][":path"] == "/grpc.health.v1.Health/Check"
    assert seen[0]["user-agent"] == "kube-probe/1.36"


def says(status: str, *headers: tuple[str, str]) -> Callable[[H2Connection, int], None]:
    def answer(h2: H2Connection, stream: int) -> None:
        h2.send_headers(stream, [(":status", status), *headers], end_stream=True)

    return answer


def sends(data: bytes) -> Serve:
    async def serve(stream: trio.abc.Stream) -> None:
        await stream.receive_some()
        await stream.send_all(data)

    return serve


@pytest.mark.parametrize(
    ("serve", "output"),
    [
        (health(OK, NOT_SERVING), 'service unhealthy (responded with "NOT_SERVING")'),
        (health(OK, b""), 'service unhealthy (responded with "UNKNOWN")'),
        (
            health({"grpc-status": "12", "grpc-message": "unknown service"}),
            "error: this server does not implement the grpc health protocol "
            "(grpc.health.v1.Health): unknown service",
        ),
        (
            health({"grpc-status": "5", "grpc-message": "no%20such service"}),
            "error: health rpc probe failed: rpc error: code = NotFound desc = no such service",
        ),
        (
            health({"grpc-status": "x"}),
            "error: health rpc probe failed: rpc error: code = Unknown desc = ",
        ),
        (
            http2(says("404", ("content-type", "text/plain"))),
            "error: this server does not implement the grpc health protocol "
            "(grpc.health.v1.Health): unexpected HTTP status code received from server: "
            '404 (Not Found); transport: received unexpected content-type "text/plain"',
        ),
        (
            http2(says("200", ("content-type", "application/grpcs"), ("grpc-status", "0"))),
            "error: health rpc probe failed: rpc error: code = Unknown desc = "
            "unexpected HTTP status code received from server: 200 (OK); "
            'transport: received unexpected content-type "application/grpcs"',
        ),
        (
            http2(says("502")),
            "error: health rpc probe failed: rpc error: code = Unavailable desc = "
            "unexpected HTTP status code received from server: 502 (Bad Gateway); "
            "malformed header: missing HTTP content-type",
        ),
        (
            http2(lambda h2, stream: h2.reset_stream(stream, ErrorCodes.CANCEL)),
            "error: health rpc probe failed: rpc error: code = Canceled desc = "
            "stream terminated by RST_STREAM with error code: CANCEL",
        ),
        (
            http2(lambda h2, stream: h2.reset_stream(stream, ErrorCodes.REFUSED_STREAM)),
            "error: health rpc probe failed: rpc error: code = Unavailable desc = "
            "stream terminated by RST_STREAM with error code: REFUSED_STREAM",
        ),
        (
            http2(lambda h2, _stream: h2.close_connection(last_stream_id=0)),
            "error: health rpc probe failed: rpc error: code = Unavailable desc = "
            "the stream is rejected because server is draining the connection",
        ),
    ],
)
async def test_what_a_server_answers_fails_the_probe(serve: Serve, output: str) -> None:
    async with serving(serve) as port:
        came = await check(port)
    assert (came.outcome, came.output, came.by_container) == (ProbeOutcome.FAILURE, output, True)
    assert not came.cut_off


@pytest.mark.parametrize("kind", ["application/grpc", "application/grpc+proto"])
async def test_a_server_may_say_which_kind_of_grpc_it_speaks(kind: str) -> None:
    head = (":status", "200"), ("content-type", kind)

    def serve(h2: H2Connection, stream: int) -> None:
        h2.send_headers(stream, head)
        h2.send_data(stream, b"\0\0\0\0\2" + SERVING)
        h2.send_headers(stream, list(OK.items()), end_stream=True)
        h2.close_connection(ErrorCodes.INTERNAL_ERROR)

    async with serving(http2(serve)) as port:
        assert (await check(port)).outcome is ProbeOutcome.SUCCESS


@pytest.mark.parametrize("code", [ErrorCodes.NO_ERROR, ErrorCodes.ENHANCE_YOUR_CALM])
async def test_a_server_may_take_its_leave_before_it_answers(code: ErrorCodes) -> None:
    answered = SETTINGS + goodbye(1, code) + (grpc_answer("ok", 1) or b"")
    async with serving(sends(answered)) as port:
        assert (await check(port)).outcome is ProbeOutcome.SUCCESS


async def test_what_comes_behind_an_answer_does_not_matter() -> None:
    answered = SETTINGS + (grpc_answer("ok", 1) or b"") + b"\0\0\1\0\0\0\0\0\0x"
    async with serving(sends(answered)) as port:
        assert (await check(port)).outcome is ProbeOutcome.SUCCESS


async def test_a_server_that_says_that_time_is_over_is_late() -> None:
    async with serving(health({"grpc-status": "4", "grpc-message": "Deadline Exceeded"})) as port:
        came = await check(port)
    assert came.output == "timeout: health rpc did not complete within 30s"


async def test_a_server_that_closes_within_the_call_cuts_the_probe_off() -> None:
    async def close(stream: trio.abc.Stream) -> None:
        await stream.receive_some()
        await stream.send_all(b"\0\0\0\4\0\0\0\0\0")
        await stream.receive_some()

    async with serving(close) as port:
        came = await check(port)
    words = "rpc error: code = Unavailable desc = error reading from server: EOF"
    assert came.output == f"error: health rpc probe failed: {words}"
    assert (came.by_container, came.cut_off) == (False, True)


@pytest.mark.parametrize(
    ("seconds", "told"), [(1, "1000m"), (99_999, "99999000m"), (100_000, "100000S")]
)
async def test_a_server_is_told_of_the_timeout_in_eight_digits(seconds: int, told: str) -> None:
    seen: list[dict[str, str]] = []
    async with serving(health(OK, SERVING, seen)) as port:
        assert (await check(port, seconds=seconds)).outcome is ProbeOutcome.SUCCESS
        assert (await check(port, seconds=2**31 - 1)).outcome is ProbeOutcome.SUCCESS
    assert [each["grpc-timeout"] for each in seen] == [told, "99999999S"]


@pytest.mark.parametrize("serve", [hang, answer(http(400))])
async def test_what_is_no_server_of_grpc_is_not_connected_to(
    serve: Serve, autojump_clock: MockClock
) -> None:
    async with serving(serve) as port:
        came = await check(port, seconds=2)
    late = "within 2s: context deadline exceeded"
    assert came.output == f'timeout: failed to connect service "127.0.0.1:{port}" {late}'


class TellingDialer(Dialer):
    """Calls a function when there is no connection."""

    def __init__(self, on_failure: Callable[[], None]) -> None:
        super().__init__()
        self.on_failure = on_failure

    async def dial(self, host: str, port: int, share: ProbeShare) -> socket.socket:
        try:
            return await super().dial(host, port, share)
        except DialError:
            self.on_failure()
            raise


async def test_a_server_that_comes_up_in_time_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trio_kubelet.pod_clients.grpc.CONNECT_AGAIN_SECONDS", 0.0)
    refused = 0

    def come_up() -> None:
        nonlocal refused
        refused += 1
        bound.listen()
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(bound))
        nursery.start_soon(trio.serve_listeners, health(OK, SERVING), [listener])

    with closed_port() as bound:
        action = GRPCAction(port=port_of(bound))
        async with trio.open_nursery() as nursery:
            came = await probe_grpc(TellingDialer(come_up), action, LOOPBACK, 30, ProbeShare())
            nursery.cancel_scope.cancel()
    assert came.outcome is ProbeOutcome.SUCCESS
    assert refused == 1


async def test_a_server_that_does_not_answer_the_call_is_late(mock_clock: MockClock) -> None:
    async def greet(stream: trio.abc.Stream) -> None:
        await stream.send_all(SETTINGS)
        await acknowledgement(stream)
        mock_clock.jump(1)
        await trio.sleep_forever()

    async with serving(greet) as port:
        came = await check(port, seconds=1)
    assert came.output == "timeout: health rpc did not complete within 1s"


async def acknowledgement(stream: trio.abc.Stream) -> None:
    """Wait until the client has read the settings."""
    received = b""
    while SETTINGS_ACKNOWLEDGED not in received:
        part = await stream.receive_some()
        assert part, "the client has gone"
        received += part


@pytest.mark.parametrize("piece_bytes", [1, 9, 40, 4096])
@pytest.mark.parametrize(
    ("service", "output"),
    [("ok", "service healthy"), ("ill", 'service unhealthy (responded with "NOT_SERVING")')],
)
async def test_an_answer_means_the_same_in_however_many_pieces_it_comes(
    service: str, output: str, piece_bytes: int
) -> None:
    sent = SETTINGS + (grpc_answer(service, 1) or b"")

    async def tell(stream: trio.abc.Stream) -> None:
        is_greeted = False
        for at in range(0, len(sent), piece_bytes):
            piece = sent[at : at + piece_bytes]
            await stream.send_all(piece)
            if not is_greeted and len(SETTINGS) <= at + piece_bytes < len(sent):
                await acknowledgement(stream)
                is_greeted = True
            await trio.testing.wait_all_tasks_blocked()

    async with serving(tell) as port:
        for _ in range(2):
            assert (await check(port, service)).output == output


@pytest.mark.parametrize("service", ["\ud800", "s" * 20_000])
async def test_a_service_that_cannot_be_asked_for_is_no_more_than_a_failure(
    service: str, autojump_clock: MockClock
) -> None:
    async with serving(hang) as port:
        came = await check(port, service, seconds=2)
    assert came.outcome is ProbeOutcome.FAILURE


async def test_a_call_without_an_end_is_not_read_for_ever() -> None:
    with flooding(SETTINGS, PRIORITIES) as (port, _):
        came = await check(port)
    words = "rpc error: code = ResourceExhausted desc = the answer is too long"
    assert came.output == f"error: health rpc probe failed: {words}"


async def test_a_server_that_floods_the_call_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trio_kubelet.pod_clients.grpc.CALL_LIMIT_BYTES", sys.maxsize)
    monkeypatch.setattr("trio_kubelet.pod_clients.http2.MOST_FRAMES", sys.maxsize)
    monkeypatch.setattr("trio_kubelet.pod_clients.stream.MOST_BYTES", sys.maxsize)
    with flooding(SETTINGS, PRIORITIES) as (port, begun):
        assert await lets_others_run(lambda: check(port), begun)


async def test_a_connection_lets_others_run_however_much_there_is_to_read() -> None:
    own, peer = socket.socketpair()
    with own, peer:
        own.setblocking(False)
        peer.sendall(b"xx")
        raw = ProbeStream(own, "peer:1", ProbeShare())
        with trio.testing.assert_checkpoints():
            assert await raw.receive_some(1) == b"x"
