"""Who asks, what for, and whether he may: decisions by tables, and what the caches do."""

import string
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
import trio
from attrs import evolve
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from tests.apiserver.server import ApiServer
from tests.trio_clock import TrioClock
from trio_kubelet.server import Handler, Request, Response, Right, Route, Router
from trio_kubelet.server.access import (
    AnswerSeconds,
    Attributes,
    Authenticator,
    TokenReviewer,
    User,
    Webhook,
    guard,
    user_of_certificate,
)
from trio_kubelet.server.access.authentication import (
    AFTER_A_BAD_TOKEN_SECONDS,
    REVIEWS_OF_A_PEER,
    bearer_token,
)
from trio_kubelet.server.connections import REFUSALS_IN_A_ROW, Place
from trio_kubelet.server.messages import ClientCertificate, Headers, TcpPeer
from trio_kubelet.tasks.future import MAX_CACHED, Expiring, ExpiringCache

NODE = "a"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def router(handler: Handler) -> Router:
    """Two routes, of which one has a right of its own alone."""
    return Router(
        [
            Route("GET", "/pods", handler, Right(fine_grained="pods")),
            Route("GET", "/stats/{rest...}", handler, Right(subresource="stats")),
        ]
    )


# Who asks


@pytest.mark.parametrize(
    ("lines", "token"),
    [
        ([], ""),
        (["Bearer abc"], "abc"),
        (["bearer  abc "], "abc"),
        (["BEARER abc def"], "abc"),
        (["Bearer"], ""),
        (["Bearer "], ""),
        (["Basic abc"], ""),
        (["Bearerabc"], ""),
        (["abc"], ""),
        (["Bearer a", "Bearer b"], None),
        (["Basic a", "Bearer b"], None),
    ],
)
def test_a_bearer_token_is_read_off_one_header(lines: Sequence[str], token: str | None) -> None:
    assert bearer_token(Headers([("Authorization", line) for line in lines])) == token


@given(st.lists(st.text(st.characters(max_codepoint=255)), max_size=2))
def test_any_header_gives_a_token_or_none(lines: Sequence[str]) -> None:
    found = bearer_token(Headers([("Authorization", line) for line in lines]))
    assert found is None or not set(found) & set(string.whitespace.replace("\x0b\x0c", ""))


def certificate(
    *names: tuple[x509.ObjectIdentifier, str],
    key: ec.EllipticCurvePrivateKey | None = None,
    issuer: ec.EllipticCurvePrivateKey | None = None,
    from_: datetime = NOW - timedelta(days=1),
    days: int = 10,
) -> x509.Certificate:
    key = key or ec.generate_private_key(ec.SECP256R1())
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(oid, text) for oid, text in names]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")]))
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(from_)
        .not_valid_after(from_ + timedelta(days=days))
        .sign(issuer or key, hashes.SHA256())
    )


CN, ORGANIZATION = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME
UID = x509.ObjectIdentifier("1.3.6.1.4.1.57683.2")


@pytest.mark.parametrize(
    ("names", "user"),
    [
        ([(CN, "jo")], ("jo", "", ())),
        ([(CN, "jo"), (ORGANIZATION, "b"), (ORGANIZATION, "a")], ("jo", "", ("b", "a"))),
        ([(CN, "first"), (CN, "jo"), (UID, "7")], ("jo", "7", ())),
        ([(ORGANIZATION, "a")], None),
    ],
)
def test_a_certificate_names_a_user(
    names: Sequence[tuple[x509.ObjectIdentifier, str]], user: tuple[str, str, tuple[str]] | None
) -> None:
    shown = certificate(*names)
    found = user_of_certificate(shown)
    assert user == (found and (found.name, found.uid, found.groups))
    if found is not None:
        digest = shown.fingerprint(hashes.SHA256()).hex()
        wanted = {"authentication.kubernetes.io/credential-id": (f"X509SHA256={digest}",)}
        assert found.extra == wanted


def clock_at(now: datetime) -> TrioClock:
    return TrioClock(round((now.timestamp() - trio.current_time()) * 1e9))


KEY = ec.generate_private_key(ec.SECP256R1())


def shown(one: x509.Certificate, verified_by: bytes = b"old") -> ClientCertificate:
    return ClientCertificate(one.public_bytes(Encoding.DER), verified_by)


@pytest.mark.parametrize(
    ("presented", "user"),
    [
        (shown(certificate((CN, "jo"), issuer=KEY), b"now"), "jo"),
        (shown(certificate((CN, "jo")), b"now"), "jo"),  # TLS has verified it by these
        (shown(certificate((CN, "jo"), issuer=KEY)), None),  # by those of before
        (shown(certificate((CN, "jo"), days=0), b"now"), None),
        (shown(certificate((CN, "jo"), from_=NOW + timedelta(days=1)), b"now"), None),
        (shown(certificate((ORGANIZATION, "a")), b"now"), "system:anonymous"),
        (ClientCertificate(b"rubbish", b"now"), None),
        (None, "system:anonymous"),
    ],
)
async def test_a_certificate_is_good_while_it_lives_and_its_authority_is_trusted(
    presented: ClientCertificate | None, user: str | None
) -> None:
    authenticator = Authenticator(clock_at(NOW), lambda: b"now", anonymous=True)
    if presented is not None and presented.verified_by == b"old":
        other = certificate((CN, "ca"), issuer=ec.generate_private_key(ec.SECP256R1()))
        pem = other.public_bytes(Encoding.PEM)
        authenticator = Authenticator(clock_at(NOW), lambda: pem, anonymous=True)
    found = await authenticator.user(Request(method="GET", path="/", certificate=presented))
    assert (found and found.name) == user


async def test_a_connection_outlives_a_bundle_that_only_grew() -> None:
    authority = certificate((CN, "ca"), key=KEY)
    leaf = certificate((CN, "jo"), issuer=KEY)
    pem = authority.public_bytes(Encoding.PEM)
    authenticator = Authenticator(clock_at(NOW), lambda: pem)
    request = Request(method="GET", path="/", certificate=shown(leaf))
    assert (found := await authenticator.user(request)) is not None
    assert found.groups == ("system:authenticated",)
    late = Authenticator(clock_at(NOW + timedelta(days=20)), lambda: pem)
    assert await late.user(request) is None


@pytest.mark.parametrize("inside", ["", "rubbish", "AAAA"])
async def test_a_bundle_that_cannot_be_read_vouches_for_no_older_connection(inside: str) -> None:
    pem = f"-----BEGIN CERTIFICATE-----\n{inside}\n-----END CERTIFICATE-----\n".encode()
    request = Request(method="GET", path="/", certificate=shown(certificate((CN, "jo"))))
    assert await Authenticator(clock_at(NOW), lambda: pem).user(request) is None


def with_token(*tokens: str) -> Request:
    headers = Headers([("Authorization", f"Bearer {token}") for token in tokens])
    return Request(method="GET", path="/", headers=headers)


@pytest.mark.parametrize("anonymous", [True, False])
@pytest.mark.parametrize(
    ("request_", "user"),
    [
        (with_token("good"), "jo"),
        (with_token("bad"), None),
        (with_token("good", "good"), None),
        (evolve(with_token("good"), certificate=ClientCertificate(b"bad", b"")), "jo"),
    ],
)
async def test_a_token_is_reviewed_and_a_bad_one_makes_nobody_anonymous(
    anonymous: bool, request_: Request, user: str | None
) -> None:
    server = ApiServer()
    server.reviews.users["good"] = {"username": "jo", "groups": ["a"], "extra": {"k": ["v"]}}
    tokens = TokenReviewer(server.client(), 60)
    authenticator = Authenticator(TrioClock(), tokens=tokens, anonymous=anonymous)
    found = await authenticator.user(request_)
    assert (found and found.name) == user
    if found is not None:
        assert found.groups == ("a", "system:authenticated")
        assert found.extra == {"k": ("v",)}


@pytest.mark.parametrize(("anonymous", "user"), [(True, "system:anonymous"), (False, None)])
async def test_tokens_count_for_nothing_where_they_are_not_accepted(
    anonymous: bool, user: str | None
) -> None:
    found = await Authenticator(TrioClock(), anonymous=anonymous).user(with_token("good"))
    assert (found and found.name) == user


# What is kept

PEER = TcpPeer("10.0.0.1", 40_000)


async def test_answers_hold_for_their_time(autojump_clock: trio.testing.MockClock) -> None:
    server = ApiServer()
    server.reviews.users["good"] = {"username": "jo"}
    tokens = TokenReviewer(server.client(), 120)
    for _ in range(3):
        assert await tokens.user("good", PEER)
        assert await tokens.user("bad", PEER) is None
    assert len(server.requests) == 2
    server.reviews.users.clear()
    await trio.sleep(119)
    assert await tokens.user("good", PEER)
    await trio.sleep(2)
    assert await tokens.user("good", PEER) is None
    assert len(server.requests) == 3


async def test_bad_tokens_of_one_peer_delay_no_other_and_drive_out_no_good_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    server = ApiServer()
    server.reviews.users |= {name: {"username": name} for name in ("known", "new")}
    tokens = TokenReviewer(server.client(), 120)
    assert await tokens.user("known", PEER)
    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(2 * MAX_CACHED):
            nursery.start_soon(tokens.user, f"bad {number}", PEER)
        await trio.testing.wait_all_tasks_blocked()
        assert len(server.requests) == 1 + REVIEWS_OF_A_PEER
        assert await tokens.user("new", evolve(PEER, host="10.0.0.2"))
        assert trio.current_time() == begun, "the other peer has waited for none of them"
    of_each = 2 * MAX_CACHED / REVIEWS_OF_A_PEER
    assert trio.current_time() - begun == pytest.approx(of_each * AFTER_A_BAD_TOKEN_SECONDS)


async def test_good_tokens_stay_known_while_bad_ones_come(
    autojump_clock: trio.testing.MockClock,
) -> None:
    answers: ExpiringCache[str, str] = ExpiringCache(max_entries=2)
    asked = list[str]()

    async def ask(key: str) -> str:
        async def fetch() -> Expiring[str]:
            asked.append(key)
            return Expiring("jo" if key == "good" else "", 60)

        return await answers.get(key, fetch)

    for key in ("good", "bad 1", "bad 2", "bad 3", "good"):
        await ask(key)
    assert asked == ["good", "bad 1", "bad 2", "bad 3"]


async def test_rights_hold_longer_than_refusals(autojump_clock: trio.testing.MockClock) -> None:
    server = ApiServer()
    server.reviews.rights = {("jo", "get", "stats")}
    webhook = Webhook(server.client(), NODE, AnswerSeconds(300, 30))
    jo, stats, log = User("jo"), Attributes("get", "stats"), Attributes("get", "log")
    assert [await webhook.allows(jo, stats), await webhook.allows(jo, log)] == [True, False]
    await trio.sleep(29)
    assert [await webhook.allows(jo, stats), await webhook.allows(jo, log)] == [True, False]
    assert len(server.requests) == 2
    server.reviews.rights = {("jo", "get", "log")}
    await trio.sleep(2)
    assert [await webhook.allows(jo, stats), await webhook.allows(jo, log)] == [True, True]
    assert await webhook.allows(User("jo", groups=("more",)), stats) is False
    await trio.sleep(300)
    assert await webhook.allows(jo, stats) is False


async def test_who_asks_the_same_waits_for_the_same_answer() -> None:
    answers: ExpiringCache[str, int] = ExpiringCache(max_entries=2)
    go_on = trio.Event()
    asked: list[str] = []

    async def ask() -> Expiring[int]:
        asked.append("x")
        await go_on.wait()
        return Expiring(7, 60)

    async def never() -> Expiring[int]:
        asked.append("never")
        await trio.sleep_forever()
        raise AssertionError

    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def first() -> None:
            with scope:
                await answers.get("key", never)

        nursery.start_soon(first)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(3):
            nursery.start_soon(answers.get, "key", ask)
        await trio.testing.wait_all_tasks_blocked()
        assert asked == ["never"]
        scope.cancel()  # the client that asked first has gone: another one asks in its place
        await trio.testing.wait_all_tasks_blocked()
        go_on.set()
    assert asked == ["never", "x"]
    for key in ("b", "c"):
        await answers.get(key, ask)
    await answers.get("key", ask)
    assert len(asked) == 5, "the oldest of three had to go"


# Who gets past


@pytest.mark.parametrize(
    ("rights", "path", "fine_grained", "status"),
    [
        ({"pods"}, "/pods", True, 200),
        ({"proxy"}, "/pods", True, 200),
        ({"pods"}, "/pods", False, 403),
        ({"proxy"}, "/pods", False, 200),
        ({"pods"}, "/exec/a/b/c", True, 403),
        ({"proxy"}, "/stats/summary", True, 403),
        ({"stats"}, "/stats/summary", True, 200),
        (set(), "/nowhere", True, 403),
    ],
)
async def test_only_who_has_a_right_reaches_a_handler(
    rights: set[str], path: str, fine_grained: bool, status: int
) -> None:
    server = ApiServer()
    server.reviews.users["good"] = {"username": "jo"}
    server.reviews.rights = {("jo", "get", right) for right in rights}
    tokens = TokenReviewer(server.client(), 60)
    webhook = Webhook(server.client(), NODE, AnswerSeconds(300, 30))
    called: list[Request] = []

    async def handler(request: Request) -> Response:
        called.append(request)
        return Response()

    handle = guard(
        router(handler),
        Authenticator(TrioClock(), tokens=tokens),
        webhook.allows,
        fine_grained=fine_grained,
    )
    answer = await handle(evolve(with_token("good"), path=path))
    assert answer is not None
    assert (answer.status, len(called)) == (status, int(status == 200))
    answer = await handle(Request(method="GET", path=path))
    assert answer is not None
    assert (answer.status, answer.body) == (401, b"Unauthorized")
    assert len(called) == int(status == 200)


async def test_a_connection_that_is_refused_again_and_again_is_closed() -> None:
    async def answer(_request: Request) -> Response:
        return Response()

    async def allow(_user: User, attributes: Attributes) -> bool:
        return attributes.subresource == "stats"

    server = ApiServer()
    server.reviews.users["good"] = {"username": "jo"}
    authenticator = Authenticator(TrioClock(), tokens=TokenReviewer(server.client(), 60))
    handle, place = guard(router(answer), authenticator, allow, fine_grained=True), Place.alone()

    async def is_closed(path: str, token: str) -> bool:
        found = await handle(evolve(with_token(token), path=path, place=place))
        assert found is not None
        return ("Connection", "close") in found.headers

    asked = [("/pods", "good"), ("/stats/", "bad")] * REFUSALS_IN_A_ROW
    answers = [await is_closed(*each) for each in asked[:REFUSALS_IN_A_ROW]]
    assert answers == [False] * (REFUSALS_IN_A_ROW - 1) + [True]
    known = [place.is_known]
    assert not await is_closed("/stats/", "good")
    assert [*known, place.is_known] == [False, True]
    assert not await is_closed("/pods", "good"), "they are counted from the begin again"


async def test_without_an_api_server_what_is_kept_counts_and_all_else_is_denied() -> None:
    server = ApiServer()
    server.reviews.users["good"] = {"username": "jo"}
    server.reviews.rights = {("jo", "get", "stats")}
    tokens = TokenReviewer(server.client(), 60)
    webhook = Webhook(server.client(), NODE, AnswerSeconds(300, 30))

    async def handler(_request: Request) -> Response:
        return Response()

    handle = guard(
        router(handler),
        Authenticator(TrioClock(), tokens=tokens),
        webhook.allows,
        fine_grained=True,
    )

    async def status(path: str, token: str) -> tuple[int, bytes]:
        answer = await handle(evolve(with_token(token), path=path))
        assert answer is not None
        assert isinstance(answer.body, bytes)
        return answer.status, answer.body

    assert await status("/stats/", "good") == (200, b"")
    server.go_away()
    assert await status("/stats/", "good") == (200, b"")
    assert await status("/stats/", "unknown") == (401, b"Unauthorized")
    assert await status("/pods", "good") == (
        500,
        b"Authorization error (user=jo, verb=get, resource=nodes, subresource(s)=[pods proxy])\n",
    )
    server.come_back()
    assert await status("/pods", "good") == (
        403,
        b"Forbidden (user=jo, verb=get, resource=nodes, subresource(s)=[pods proxy])\n",
    )
