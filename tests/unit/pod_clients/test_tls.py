"""TLS with containers: what it took is counted for the pod, and what a server may ask for."""

import shutil
import ssl
import subprocess
import time
import warnings
from itertools import count
from pathlib import Path

import pytest
import trio
import trio.testing
import trustme

from tests.missing import do_without
from tests.turns import making_test_data
from tests.unit import tls_peer
from tests.unit.pod_clients.servers import (
    LOOPBACK,
    answer,
    http,
    refusing,
    reset,
    server_tls,
    serving,
)
from trio_kubelet.k8s import Container, HTTPGetAction, IntOrString
from trio_kubelet.pod_clients.dial import Dialer
from trio_kubelet.pod_clients.http import HttpProber
from trio_kubelet.pod_clients.result import ProbeOutcome, ProbeResult
from trio_kubelet.pod_clients.share import ProbeShare
from trio_kubelet.pod_clients.stream import ProbeStream, over_probe_tls, probe_tls


class CountedShare(ProbeShare):
    used = 0.0

    def use(self, seconds: float) -> None:
        self.used += seconds


@pytest.mark.parametrize("fails", [False, True])
async def test_the_time_of_a_handshake_is_counted_for_the_pod(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls, shares = server_tls("web"), (CountedShare(), CountedShare())
    if fails:
        tls.verify_mode = ssl.CERT_REQUIRED
        tls.maximum_version = ssl.TLSVersion.TLSv1_2
    prober = HttpProber(Dialer())
    async with serving(answer(http(200, body="ok")), tls) as port:
        action = HTTPGetAction(port=IntOrString(port), path="/", scheme="HTTPS")

        async def probe(share: ProbeShare) -> None:
            result = await prober.probe(action, Container(name="c"), LOOPBACK, 60, share)
            assert result.outcome is (ProbeOutcome.FAILURE if fails else ProbeOutcome.SUCCESS)

        await probe(shares[0])
        ticks = count()
        monkeypatch.setattr(time, "thread_time", lambda: float(next(ticks)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(probe, shares[1])
            nursery.start_soon(probe, CountedShare())
    assert shares[0].used < 1 < shares[1].used < 20


async def ask(port: int, share: ProbeShare | None = None) -> ProbeResult:
    action = HTTPGetAction(port=IntOrString(port), path="/healthz", scheme="HTTPS")
    container, share = Container(name="c"), share or ProbeShare()
    return await HttpProber(Dialer()).probe(action, container, LOOPBACK, 60, share)


class Cpu:
    """A processor on which reads and writes of clients cost a second each, and all else nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        read, write = ssl.SSLObject.read, ssl.SSLObject.write

        def read_slowly(end: ssl.SSLObject, limit: int) -> bytes:
            self.seconds += not end.server_side
            return read(end, limit)

        def write_slowly(end: ssl.SSLObject, data: bytes) -> int:
            self.seconds += not end.server_side
            return write(end, data)

        monkeypatch.setattr(ssl.SSLObject, "read", read_slowly)
        monkeypatch.setattr(ssl.SSLObject, "write", write_slowly)
        monkeypatch.setattr(time, "thread_time", lambda: self.seconds)


async def test_the_time_of_reads_and_writes_is_counted_for_the_pod(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    share = CountedShare()
    async with serving(answer(http(200, body="ok")), server_tls("web")) as port:
        cpu = Cpu(monkeypatch)
        assert (await ask(port, share)).output == "ok"
    assert cpu.seconds >= 2
    assert share.used >= cpu.seconds


class SharePieceByPiece(ProbeShare):
    """Gives the pieces out one by one, as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.given = trio.Event(), trio.Event()

    async def wait_for_piece(self) -> None:
        self.asked.set()
        await self.given.wait()


async def test_each_step_of_a_handshake_waits_for_a_piece_of_the_pod() -> None:
    share, hands_shaken = SharePieceByPiece(), trio.Event()

    async def shake_hands(raw: ProbeStream) -> None:
        async with await over_probe_tls(raw, probe_tls(), LOOPBACK, share):
            hands_shaken.set()

    served = serving(answer(http(200)), server_tls("web"))
    async with served as port, trio.open_nursery() as nursery:
        connection = await Dialer().dial(LOOPBACK, port, ProbeShare())
        # With a share of its own, the raw connection waits for none of the pieces that are seen.
        raw = ProbeStream(connection, f"{LOOPBACK}:{port}", ProbeShare())
        nursery.start_soon(shake_hands, raw)
        with trio.fail_after(60):
            await share.asked.wait()
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert not hands_shaken.is_set()
            share.given.set()
            await hands_shaken.wait()


async def test_a_server_that_changes_keys_again_and_again_is_refused(tmp_path: Path) -> None:
    tls, key_log = server_tls("web"), tmp_path / "keys"
    tls_peer.log_keys(tls, key_log)

    async def flood(stream: trio.abc.Stream) -> None:
        assert isinstance(stream, trio.SSLStream)
        await stream.receive_some()
        with making_test_data():
            records = tls_peer.Records(key_log, "SERVER")
            flood = b"".join(records.key_update() for _ in range(500))
        await stream.transport_stream.send_all(flood)
        while await stream.transport_stream.receive_some():
            pass

    async with serving(flood, tls) as port:
        came = await ask(port)
    assert came.output.endswith(": tls: too many non-advancing records")
    assert not came.cut_off


async def test_a_server_may_not_negotiate_again(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        do_without("there is no program openssl")
    pem = tmp_path / "server.pem"
    trustme.CA().issue_cert("web").private_key_and_cert_chain_pem.write_to_path(pem)
    command = ("openssl", "s_server", "-accept", f"{LOOPBACK}:0", "-cert", str(pem), "-tls1_2")
    process = await trio.lowlevel.open_process(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdin is not None
    assert process.stdout is not None
    said = b""

    async def until(words: bytes) -> None:
        nonlocal said
        assert process.stdout is not None
        while words not in said and (piece := await process.stdout.receive_some()):
            said += piece

    with trio.fail_after(60):
        await until(b"ACCEPT 127.0.0.1:")
        async with trio.open_nursery() as nursery:
            port = int(said.partition(b"ACCEPT 127.0.0.1:")[2].split()[0])
            nursery.start_soon(ask, port)
            await until(b"GET /healthz")
            await process.stdin.send_all(b"R\n")
            await until(b"no renegotiation")
            process.kill()
    await process.wait()
    await process.stdin.aclose()
    await process.stdout.aclose()
    assert b"no renegotiation" in said


async def test_no_certificate_is_verified() -> None:
    async with serving(answer(http(200, body="ok")), server_tls("elsewhere.example")) as port:
        came = await ask(port)
    assert (came.outcome, came.output) == (ProbeOutcome.SUCCESS, "ok")


async def test_a_server_that_has_only_old_ciphers_is_asked() -> None:
    tls = server_tls("web")
    tls.maximum_version = ssl.TLSVersion.TLSv1_2
    tls.set_ciphers("ECDHE-ECDSA-AES128-SHA")
    async with serving(answer(http(200, body="ok")), tls) as port:
        assert (await ask(port)).output == "ok"


async def test_a_server_without_tls_is_told_from_one_with_it() -> None:
    async with serving(answer_anything) as port:
        came = await ask(port)
    words = "http: server gave HTTP response to HTTPS client"
    assert came.output == f'Get "https://127.0.0.1:{port}/healthz": {words}'
    assert not came.cut_off


@pytest.mark.parametrize(
    ("version", "verified", "words"),
    [
        (ssl.TLSVersion.TLSv1_3, True, "certificate required"),
        (ssl.TLSVersion.TLSv1_2, True, "handshake failure"),
        (ssl.TLSVersion.TLSv1_1, False, "protocol version not supported"),
    ],
)
async def test_a_server_that_refuses_tls_is_told_of_in_the_words_of_its_alert(
    version: ssl.TLSVersion, *, verified: bool, words: str
) -> None:
    tls = server_tls("web")
    tls.verify_mode = ssl.CERT_REQUIRED if verified else ssl.CERT_NONE
    tls.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        tls.minimum_version = tls.maximum_version = version
    async with serving(refusing(tls)) as port:
        came = await ask(port)
    assert came.output == f'Get "https://127.0.0.1:{port}/healthz": remote error: tls: {words}'
    assert not came.cut_off


async def test_a_connection_that_ends_in_its_handshake_breaks() -> None:
    async with serving(reset) as port:
        came = await ask(port)
    assert (came.outcome, came.cut_off) == (ProbeOutcome.FAILURE, True)


async def answer_anything(stream: trio.abc.Stream) -> None:
    await stream.receive_some()
    await stream.send_all(http(400))
