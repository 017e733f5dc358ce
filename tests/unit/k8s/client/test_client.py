from collections.abc import Awaitable

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from tests.apiserver.faults import RequestFault
from tests.apiserver.server import ApiServer
from trio_kubelet.k8s import ConfigMap, ObjectMeta, Pod, ServiceAccount, TokenRequest
from trio_kubelet.k8s.client import ApiError, FrameType, PatchType, RateLimit, Selection
from trio_kubelet.k8s.client.client import RequestLimits
from trio_kubelet.k8s.kinds import CONFIG_MAPS, NODES, PODS, SERVICE_ACCOUNTS

DEFAULT = Selection(namespace="default")


@pytest.fixture
def server() -> ApiServer:
    return ApiServer()


def config_map(name: str, **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace="default"), data=data)


def pod(name: str) -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace="default"))


async def failure(asking: Awaitable[object]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await asking
    return caught.value


async def test_what_is_created_can_be_read(server: ApiServer) -> None:
    client = server.client()
    created = await client.create(CONFIG_MAPS, config_map("web", key="1"))
    assert created.metadata.uid
    assert await client.get(CONFIG_MAPS, "web", "default") == created
    assert created.kind == "ConfigMap"


async def test_an_update_replaces_what_is_there(server: ApiServer) -> None:
    client = server.client()
    first = await client.create(CONFIG_MAPS, config_map("web", key="1"))
    await client.update(CONFIG_MAPS, evolve(first, data={"key": "2"}))
    assert server.get(CONFIG_MAPS, "web").data == {"key": "2"}
    assert (await failure(client.update(CONFIG_MAPS, first))).is_conflict


async def test_a_patch_of_the_status_leaves_the_rest(server: ApiServer) -> None:
    client = server.client()
    server.create(PODS, pod("web"))
    body = {"status": {"phase": "Running"}, "spec": {"nodeName": "n1"}}
    patched = await client.patch(PODS, "web", "default", body=body, subresource="status")
    assert patched.status.phase == "Running"
    assert not server.get(PODS, "web").spec.node_name


async def test_a_merge_patch_is_sent_as_one(server: ApiServer) -> None:
    client = server.client()
    server.create(CONFIG_MAPS, config_map("web", a="1", b="2"))
    body = {"data": {"a": None}}
    merged = await client.patch(CONFIG_MAPS, "web", "default", body=body, type=PatchType.MERGE)
    assert merged.data == {"b": "2"}


async def test_a_deletion_can_be_bound_to_the_uid(server: ApiServer) -> None:
    client = server.client()
    created = server.create(CONFIG_MAPS, config_map("web"))
    error = await failure(client.delete(CONFIG_MAPS, "web", "default", uid="another"))
    assert error.is_conflict
    await client.delete(CONFIG_MAPS, "web", "default", uid=created.metadata.uid)
    assert server.find(CONFIG_MAPS, "web") is None


async def test_a_token_is_asked_for_through_its_service_account(server: ApiServer) -> None:
    account = ServiceAccount(metadata=ObjectMeta(name="robot", namespace="default"))
    server.create(SERVICE_ACCOUNTS, account)
    answer = await server.client().create(
        SERVICE_ACCOUNTS,
        TokenRequest(),
        "default",
        name="robot",
        subresource="token",
        answer_type=TokenRequest,
    )
    assert answer.status.token
    assert answer.status.expiration_timestamp


async def test_the_version_is_that_of_the_server(server: ApiServer) -> None:
    assert await server.client().version() == "v1.36.3"


async def test_pages_follow_each_other(server: ApiServer) -> None:
    for number in range(5):
        server.create(CONFIG_MAPS, config_map(f"map-{number}"))
    client = server.client()
    first = await client.list(CONFIG_MAPS, DEFAULT, limit=3)
    rest = await client.list(CONFIG_MAPS, DEFAULT, limit=3, continue_=first.continue_)
    names = [one.metadata.name for one in (*first.items, *rest.items)]
    assert names == [f"map-{number}" for number in range(5)]
    assert not rest.continue_
    assert {one.kind for one in first.items} == {"ConfigMap"}


async def test_selectors_choose_what_is_listed(server: ApiServer) -> None:
    bound = evolve(pod("bound"), spec=evolve(pod("").spec, node_name="n1"))
    server.create(PODS, bound)
    server.create(PODS, pod("free"))
    listed = await server.client().list(PODS, Selection(fields="spec.nodeName=n1"))
    assert [one.metadata.name for one in listed.items] == ["bound"]


async def test_one_object_that_cannot_be_read_does_not_hide_the_others(server: ApiServer) -> None:
    server.create(CONFIG_MAPS, config_map("good"))
    server.put_raw(
        CONFIG_MAPS,
        {"metadata": {"name": "bad", "namespace": "default", "uid": "u1"}, "data": "no map"},
    )
    listed = await server.client().list(CONFIG_MAPS)
    assert [one.metadata.name for one in listed.items] == ["good"]
    assert [(one.name, one.uid) for one in listed.undecodable] == [("bad", "u1")]
    error = await failure(server.client().get(CONFIG_MAPS, "bad", "default"))
    assert error.code == 200
    assert "data" in error.message


REFUSALS: dict[str, tuple[int, str]] = {
    "is_not_found": (404, "NotFound"),
    "is_conflict": (409, "Conflict"),
    "is_already_exists": (409, "AlreadyExists"),
    "is_forbidden": (403, "Forbidden"),
    "is_gone": (410, "Expired"),
    "is_retriable": (500, "InternalError"),
}


@pytest.mark.parametrize("says", REFUSALS)
async def test_an_error_says_what_it_is(server: ApiServer, says: str) -> None:
    code, reason = REFUSALS[says]
    server.faults.add(RequestFault(code=code, reason=reason, message="because"))
    error = await failure(server.client().get(NODES, "n1"))
    assert (error.code, error.reason, error.message) == (code, reason, "because")
    assert {name for name in REFUSALS if getattr(error, name)} == {says}
    assert not error.is_unreachable


async def test_a_server_that_is_away_is_unreachable(server: ApiServer) -> None:
    server.go_away()
    error = await failure(server.client().get(NODES, "n1"))
    assert error.is_unreachable
    assert error.is_retriable
    assert str(error) == "GET /api/v1/nodes/n1: connection refused"


async def test_an_answer_that_takes_too_long_is_given_up(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    server.faults.add(RequestFault(seconds=60))
    start = trio.current_time()
    error = await failure(server.client().get(NODES, "n1", deadline_seconds=7))
    assert error.is_unreachable
    assert error.reason == "DeadlineExceeded"
    assert trio.current_time() - start == 7


@pytest.mark.parametrize("code", [429, 503])
async def test_a_busy_server_is_asked_again_when_it_says(
    autojump_clock: MockClock, server: ApiServer, code: int
) -> None:
    server.create(CONFIG_MAPS, config_map("web"))
    server.faults.add(RequestFault(code=code, reason="Busy", retry_after=2, times=3))
    await server.client().get(CONFIG_MAPS, "web", "default")
    assert trio.current_time() == 6
    assert len(server.requests) == 4


async def test_waiting_for_a_busy_server_ends_with_the_deadline(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    server.faults.add(RequestFault(code=429, reason="TooManyRequests", retry_after=20))
    error = await failure(server.client(limits=RequestLimits(deadline_seconds=30)).get(NODES, "n1"))
    assert error.retry_after_seconds == 20
    assert len(server.requests) == 2


async def test_a_creation_is_never_sent_twice(server: ApiServer) -> None:
    server.faults.add(
        RequestFault(verb="create", code=429, reason="TooManyRequests", retry_after=1)
    )
    error = await failure(server.client().create(CONFIG_MAPS, config_map("web")))
    assert error.code == 429
    server.faults.rules[:] = [RequestFault(verb="create", lost=True)]
    assert (await failure(server.client().create(CONFIG_MAPS, config_map("web")))).is_unreachable
    assert len(server.requests) == 2


async def test_a_reading_whose_connection_the_server_closed_is_repeated_once(
    server: ApiServer,
) -> None:
    server.create(CONFIG_MAPS, config_map("web"))
    server.faults.add(RequestFault(verb="get", lost=True, times=1))
    assert await server.client().get(CONFIG_MAPS, "web", "default")
    server.faults.add(RequestFault(verb="get", lost=True, times=2))
    assert (await failure(server.client().get(CONFIG_MAPS, "web", "default"))).is_unreachable


async def test_a_burst_goes_at_once_and_the_rest_at_its_rate(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    client = server.client(limits=RequestLimits(rate=RateLimit(qps=10, burst=5)))
    async with trio.open_nursery() as nursery:
        for _ in range(25):
            nursery.start_soon(client.version)
    assert trio.current_time() == pytest.approx(2.0)


async def test_a_watch_tells_what_happens_after_a_version(server: ApiServer) -> None:
    client = server.client()
    created = server.create(CONFIG_MAPS, config_map("web", key="1"))
    version = created.metadata.resource_version
    async with client.watch(CONFIG_MAPS, DEFAULT, resource_version=version) as frames:
        server.update(CONFIG_MAPS, evolve(created, data={"key": "2"}))
        server.delete(CONFIG_MAPS, "web")
        seen = [await (await anext(frames)).read(), await (await anext(frames)).read()]
    assert [frame.type for frame in seen] == [FrameType.MODIFIED, FrameType.DELETED]
    assert isinstance(seen[0].object, ConfigMap)
    assert seen[0].object.data == {"key": "2"}
    assert not server.watches


async def test_a_watch_ends_when_it_was_asked_to(
    autojump_clock: MockClock, server: ApiServer
) -> None:
    async with server.client().watch(CONFIG_MAPS, timeout_seconds=90) as frames:
        seen = [frame.head.type async for frame in frames]
    assert seen == [FrameType.BOOKMARK]
    assert trio.current_time() == 90


async def test_a_streaming_list_begins_with_what_there_is(server: ApiServer) -> None:
    server.create(CONFIG_MAPS, config_map("one"))
    async with server.client().watch(CONFIG_MAPS, send_initial_events=True) as frames:
        first, second = [await (await anext(frames)).read() for _ in range(2)]
    assert first.type is FrameType.ADDED
    assert second.initial_events_end
    assert second.resource_version == str(server.storage.version)


async def test_a_watch_of_a_forgotten_version_says_so(server: ApiServer) -> None:
    server.create(CONFIG_MAPS, config_map("one"))
    server.create(CONFIG_MAPS, config_map("two"))
    server.storage.compact()
    async with server.client().watch(CONFIG_MAPS, resource_version="2") as frames:
        assert (await failure(anext(frames))).is_gone


async def test_a_watch_that_breaks_is_unreachable(server: ApiServer) -> None:
    async with server.client().watch(CONFIG_MAPS) as frames:
        server.drop_watches()
        assert (await failure(anext(frames))).is_unreachable


async def test_each_answer_is_told_of_with_its_method_and_status(server: ApiServer) -> None:
    client = server.client()
    told: list[tuple[str, int | None]] = []
    client.on_answer.add(lambda method, status, _seconds: told.append((method, status)))
    await client.create(CONFIG_MAPS, config_map("web", key="1"))
    await failure(client.get(CONFIG_MAPS, "none", "default"))
    assert told == [("POST", 201), ("GET", 404)]
