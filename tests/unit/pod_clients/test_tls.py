"""TLS with containers: what a handshake took is counted for the pod."""

import ssl
import time
import warnings
from itertools import count

import pytest
import trio

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
            nursery.start_soon(probe, ProbeShare())
    assert shares[0].used < 1 < shares[1].used < 10


async def ask(port: int) -> ProbeResult:
    action = HTTPGetAction(port=IntOrString(port), path="/healthz", scheme="HTTPS")
    container = Container(name="c")
    return await HttpProber(Dialer()).probe(action, container, LOOPBACK, 60, ProbeShare())


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
