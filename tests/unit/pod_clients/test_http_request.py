"""What a httpGet probe asks for, a line a case."""

import pytest

from trio_kubelet.k8s import Container, ContainerPort, HTTPGetAction, HTTPHeader, IntOrString
from trio_kubelet.pod_clients.http_messages import RedirectError, http_request, redirected
from trio_kubelet.pod_clients.result import ProbeError

CONTAINER = Container(name="c", ports=(ContainerPort(name="web", container_port=8080),))


@pytest.mark.parametrize(
    ("action", "url"),
    [
        (HTTPGetAction(port=IntOrString(80)), "http://10.0.0.2:80/"),
        (HTTPGetAction(port=IntOrString("web"), path="/a"), "http://10.0.0.2:8080/a"),
        (HTTPGetAction(port=IntOrString("81"), path="a"), "http://10.0.0.2:81/a"),
        (HTTPGetAction(port=IntOrString(80), scheme="HTTPS"), "https://10.0.0.2:80/"),
        (HTTPGetAction(port=IntOrString(80), host="web.example"), "http://web.example:80/"),
        (HTTPGetAction(port=IntOrString(80), host="::1"), "http://[::1]:80/"),
        (HTTPGetAction(port=IntOrString(80), path="/a?b=c&d"), "http://10.0.0.2:80/a?b=c&d"),
        (HTTPGetAction(port=IntOrString(80), path="/a b%20c"), "http://10.0.0.2:80/a%20b%20c"),
        (HTTPGetAction(port=IntOrString(80), path="/%zz"), "http://10.0.0.2:80/%25zz"),
        (HTTPGetAction(port=IntOrString(80), path="/a#b"), "http://10.0.0.2:80/a"),
        (
            HTTPGetAction(port=IntOrString(80), path="/a?\r\nX: y"),
            "http://10.0.0.2:80/a%3F%0D%0AX:%20y",
        ),
        (HTTPGetAction(port=IntOrString(80), path="//["), "http://10.0.0.2:80//%5B"),
    ],
)
def test_the_url_of_a_probe(action: HTTPGetAction, url: str) -> None:
    assert http_request(action, CONTAINER, "10.0.0.2").url == url


@pytest.mark.parametrize(
    ("port", "message"),
    [
        ("http", 'strconv.Atoi: parsing "http": invalid syntax'),
        ("0", "invalid port number: 0"),
        (70000, "invalid port number: 70000"),
        ("-1", "invalid port number: -1"),
    ],
)
def test_a_port_without_a_number_is_an_error(port: int | str, message: str) -> None:
    with pytest.raises(ProbeError) as caught:
        http_request(HTTPGetAction(port=IntOrString(port)), CONTAINER, "10.0.0.2")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("/b", "http://10.0.0.2:80/b"),
        ("c?d=e", "http://10.0.0.2:80/c?d=e"),
        ("https://10.0.0.2/b", "https://10.0.0.2:443/b"),
        ("http://10.0.0.2:8080", "http://10.0.0.2:8080/"),
        ("//10.0.0.2/b", "http://10.0.0.2:80/b"),
        ("http://10.0.0.3/b", None),
        ("//evil.example/b", None),
        ("mailto:somebody", None),
    ],
)
def test_where_a_redirect_leads(location: str, url: str | None) -> None:
    first = http_request(HTTPGetAction(port=IntOrString(80), path="/a"), CONTAINER, "10.0.0.2")
    following = redirected(first, first, location)
    assert (following.url if following is not None else None) == url


@pytest.mark.parametrize(
    ("scheme", "header", "locations", "referers"),
    [
        ("HTTP", "X-Mine", ["/b", "/c"], ["http://10.0.0.2:80/b"]),
        ("HTTP", "X-Mine", ["https://10.0.0.2/b"], ["http://10.0.0.2:80/a"]),
        ("HTTPS", "X-Mine", ["http://10.0.0.2/b"], []),
        ("HTTP", "referer", ["/b", "/c"], ["mine"]),
    ],
)
def test_a_redirect_says_who_has_redirected(
    scheme: str, header: str, locations: list[str], referers: list[str]
) -> None:
    action = HTTPGetAction(
        port=IntOrString(80),
        path="/a",
        scheme=scheme,
        http_headers=(HTTPHeader(name=header, value="mine"),),
    )
    first = last = http_request(action, CONTAINER, "10.0.0.2")
    for location in locations:
        following = redirected(last, first, location)
        assert following is not None
        last = following
    assert [value for name, value in last.headers if name == "Referer"] == referers


@pytest.mark.parametrize("location", ["ftp://10.0.0.2/", "http://10.0.0.2:port/", "http://[/"])
def test_a_redirect_that_nobody_could_follow_is_an_error(location: str) -> None:
    first = http_request(HTTPGetAction(port=IntOrString(80)), CONTAINER, "10.0.0.2")
    with pytest.raises(RedirectError):
        redirected(first, first, location)
