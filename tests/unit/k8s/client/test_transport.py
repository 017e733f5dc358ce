import ssl
from collections.abc import AsyncIterator

import httpx
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trio_kubelet.k8s.client.errors import error_from_answer
from trio_kubelet.k8s.client.rate_limit import RateLimit, TokenBucket
from trio_kubelet.k8s.client.transport import RotatingTransport, proxy_from_environment

PROXY = "http://proxy.test:3128"

EXCEPTIONS = [
    ("https://10.0.0.1:6443", "", PROXY),
    ("https://10.0.0.1:6443", "10.0.0.0/8", ""),
    ("https://10.0.0.1:6443", "192.168.0.0/16, 10.0.0.1", ""),
    ("https://10.0.0.1:6443", "10.0.0.1:6443", ""),
    ("https://10.0.0.1:6443", "no/network,api.test", PROXY),
    ("https://api.cluster.test", "cluster.test", ""),
    ("https://api.cluster.test", ".cluster.test", ""),
    ("https://apicluster.test", "cluster.test", PROXY),
    ("https://api.cluster.test", "*", ""),
    ("https://127.0.0.1:6443", "", ""),
    ("https://[::1]:6443", "", ""),
    ("https://localhost:6443", "", ""),
    ("http://10.0.0.1:8080", "", ""),
]


@pytest.mark.parametrize(("server", "no_proxy", "expected"), EXCEPTIONS)
def test_the_environment_names_a_proxy_and_its_exceptions(
    monkeypatch: pytest.MonkeyPatch, server: str, no_proxy: str, expected: str
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "proxy.test:3128")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert proxy_from_environment(server) == expected


def test_a_bucket_lets_a_burst_go_and_fills_up_again() -> None:
    bucket = TokenBucket.of(RateLimit(qps=2, burst=3), now=0)
    assert [bucket.take(0) for _ in range(5)] == [0, 0, 0, 0.5, 1.0]
    assert bucket.take(10) == 0
    assert [bucket.take(10) for _ in range(3)] == [0, 0, 0.5]


def test_a_token_that_is_given_back_shortens_the_wait_of_the_next() -> None:
    bucket = TokenBucket.of(RateLimit(qps=1, burst=1), now=0)
    assert [bucket.take(0), bucket.take(0)] == [0, 1]
    bucket.give_back()
    assert bucket.take(0) == 1


def test_zero_is_what_the_go_client_makes_of_it() -> None:
    bucket = TokenBucket.of(RateLimit(qps=0, burst=0), now=0)
    assert [bucket.take(0) for _ in range(11)] == [0] * 10 + [0.2]


def test_a_proxy_that_answers_in_html_is_understood() -> None:
    error = error_from_answer(
        502, {"retry-after": "7"}, b"<html>\n<b>Bad</b> Gateway</html>", request_name="GET /version"
    )
    assert (error.code, error.retry_after_seconds) == (502, 7)
    assert error.is_retriable
    assert (
        error.message == "GET /version: the server answered 502: <html> <b>Bad</b> Gateway</html>"
    )


def test_a_date_to_try_again_becomes_seconds() -> None:
    headers = {"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}
    error = error_from_answer(503, headers, b"", request_name="GET /", now_seconds=70)
    assert error.retry_after_seconds == 30
    assert error.reason == "ServiceUnavailable"


class Body(httpx.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"ok"


class Endless(httpx.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"first"
        await trio.sleep_forever()


class Pool(httpx.AsyncBaseTransport):
    """Answers everything, and knows what it was made with."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context
        self.closed = False
        self.requests = 0
        self.body: httpx.AsyncByteStream = Body()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        assert not self.closed
        self.requests += 1
        return httpx.Response(200, stream=self.body)

    async def aclose(self) -> None:
        self.closed = True


class Pools:
    """Pools whose certificates can be changed."""

    def __init__(self, connections: int | None = None, *, watches: bool = False) -> None:
        self.pools: list[Pool] = []
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.transport = RotatingTransport(self.current, self.make, connections, watches=watches)

    async def current(self) -> ssl.SSLContext:
        return self.context

    def make(self, context: ssl.SSLContext) -> Pool:
        self.pools.append(Pool(context))
        return self.pools[-1]

    def change(self) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    async def ask(self) -> httpx.Response:
        return await self.transport.handle_async_request(httpx.Request("GET", "https://a.test"))


async def test_the_same_certificates_share_a_pool() -> None:
    pools = Pools()
    for _ in range(2):
        await (await pools.ask()).aclose()
    assert [pool.requests for pool in pools.pools] == [2]


async def test_new_certificates_close_the_idle_connections_of_the_old() -> None:
    pools = Pools()
    await (await pools.ask()).aclose()
    pools.change()
    await (await pools.ask()).aclose()
    assert [pool.closed for pool in pools.pools] == [True, False]


async def test_what_is_under_way_ends_on_its_old_connection() -> None:
    pools = Pools()
    watch = await pools.ask()
    pools.change()
    await (await pools.ask()).aclose()
    assert [pool.closed for pool in pools.pools] == [False, False]
    await watch.aclose()
    assert [pool.closed for pool in pools.pools] == [True, False]


async def test_watches_end_in_good_order_when_the_certificate_is_another() -> None:
    pools = Pools(watches=True)
    await (await pools.ask()).aclose()
    pools.pools[0].body = Endless()
    watch = await pools.ask()
    chunks: list[bytes] = []

    async def follow() -> None:
        chunks.extend([chunk async for chunk in watch.aiter_raw()])
        await watch.aclose()

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await wait_all_tasks_blocked()
            await pools.transport.renew()
            assert not pools.pools[0].closed, "the certificate is the same"
            pools.change()
            await pools.transport.renew()
    assert chunks == [b"first"]
    assert [pool.closed for pool in pools.pools] == [True, False]


async def test_requests_wait_for_one_another_when_there_are_too_many() -> None:
    pools = Pools(connections=1)
    first = await pools.ask()
    answers: list[httpx.Response] = []

    async def ask() -> None:
        answers.append(await pools.ask())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        assert not answers
        await first.aclose()
    assert len(answers) == 1
