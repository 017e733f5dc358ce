import pytest

from trio_kubelet.k8s.client.errors import error_from_answer
from trio_kubelet.k8s.client.rate_limit import RateLimit, TokenBucket
from trio_kubelet.k8s.client.transport import proxy_from_environment

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
        502, {"retry-after": "7"}, b"<html>\n<b>Bad</b> Gateway</html>", asked="GET /version"
    )
    assert (error.code, error.retry_after_seconds) == (502, 7)
    assert error.is_retriable
    assert (
        error.message == "GET /version: the server answered 502: <html> <b>Bad</b> Gateway</html>"
    )


def test_a_date_to_try_again_becomes_seconds() -> None:
    headers = {"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}
    error = error_from_answer(503, headers, b"", asked="GET /", now_seconds=70)
    assert error.retry_after_seconds == 30
    assert error.reason == "ServiceUnavailable"
