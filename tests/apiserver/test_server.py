"""That the stand-in does what a real API server v1.36 was seen to do."""

import pytest
from attrs import evolve
from trio.testing import MockClock

from tests.apiserver.answers import RefusedError
from tests.apiserver.selectors import selector
from tests.apiserver.server import ApiServer
from trio_kubelet.k8s import ConfigMap, Container, ObjectMeta, Pod, PodSpec
from trio_kubelet.k8s.client import FrameType
from trio_kubelet.k8s.kinds import CONFIG_MAPS, PODS


@pytest.fixture
def server() -> ApiServer:
    return ApiServer()


def pod(node: str = "n1") -> Pod:
    spec = PodSpec(containers=(Container(name="c", image="i"),), node_name=node)
    return Pod(metadata=ObjectMeta(name="web", namespace="default"), spec=spec)


def config_map(**metadata: object) -> ConfigMap:
    named: dict[str, object] = {"name": "web", "namespace": "default", **metadata}
    return ConfigMap(metadata=ObjectMeta(**named))  # type: ignore[arg-type]


async def test_a_new_pod_has_its_defaults_and_is_pending(server: ApiServer) -> None:
    made = server.create(PODS, pod())
    assert made.spec.restart_policy == "Always"
    assert (made.status.phase, made.status.qos_class) == ("Pending", "BestEffort")
    assert made.metadata.generation == 1


async def test_a_pod_on_a_node_waits_for_its_node(server: ApiServer) -> None:
    server.create(PODS, pod())
    server.delete(PODS, "web")
    marked = server.get(PODS, "web").metadata
    assert marked.deletion_timestamp
    assert (marked.deletion_grace_period_seconds, marked.generation) == (30, 2)
    server.delete(PODS, "web", grace_seconds=60)
    assert server.get(PODS, "web").metadata == marked
    server.delete(PODS, "web", grace_seconds=5)
    assert server.get(PODS, "web").metadata.deletion_grace_period_seconds == 5
    server.delete(PODS, "web", grace_seconds=0)
    assert server.find(PODS, "web") is None


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_pod_that_has_ended_goes_at_once(server: ApiServer, phase: str) -> None:
    server.create(PODS, pod())
    server.patch(PODS, "web", body={"status": {"phase": phase}}, subresource="status")
    server.delete(PODS, "web")
    assert server.find(PODS, "web") is None


async def test_a_pod_without_a_node_goes_at_once(server: ApiServer) -> None:
    server.create(PODS, pod(node=""))
    server.delete(PODS, "web")
    assert server.find(PODS, "web") is None


async def test_a_write_that_changes_nothing_makes_no_version(server: ApiServer) -> None:
    made = server.create(CONFIG_MAPS, config_map())
    assert server.update(CONFIG_MAPS, made) == made


async def test_a_stale_version_is_a_conflict(server: ApiServer) -> None:
    made = server.create(CONFIG_MAPS, config_map())
    server.update(CONFIG_MAPS, evolve(made, data={"a": "1"}))
    with pytest.raises(RefusedError) as caught:
        server.update(CONFIG_MAPS, evolve(made, data={"a": "2"}))
    assert caught.value.reason == "Conflict"


async def test_a_patch_for_another_uid_is_invalid(server: ApiServer) -> None:
    server.create(PODS, pod())
    with pytest.raises(RefusedError) as caught:
        server.patch(PODS, "web", body={"metadata": {"uid": "another"}}, subresource="status")
    assert (caught.value.code, caught.value.reason) == (422, "Invalid")


async def test_the_last_finalizer_takes_a_deleted_object_with_it(server: ApiServer) -> None:
    server.create(CONFIG_MAPS, config_map(finalizers=("a.test/b",)))
    server.delete(CONFIG_MAPS, "web")
    assert server.get(CONFIG_MAPS, "web").metadata.deletion_timestamp
    server.patch(CONFIG_MAPS, "web", body={"metadata": {"finalizers": None}})
    assert server.find(CONFIG_MAPS, "web") is None


async def test_names_and_uids_come_from_the_seed() -> None:
    def made(seed: int) -> ObjectMeta:
        generated = config_map(name="", generate_name="web-")
        return ApiServer(seed=seed).create(CONFIG_MAPS, generated).metadata

    assert made(1) == made(1)
    assert made(1).name.startswith("web-")
    assert made(1).uid != made(2).uid


async def test_what_leaves_a_selection_is_deleted_from_it(server: ApiServer) -> None:
    made = server.create(CONFIG_MAPS, config_map(labels={"a": "1"}))
    client = server.client()
    version = made.metadata.resource_version
    async with client.watch(
        CONFIG_MAPS, "default", label_selector="a=1", resource_version=version
    ) as frames:
        for value in ("2", "1"):
            server.patch(CONFIG_MAPS, "web", body={"metadata": {"labels": {"a": value}}})
        seen = [await anext(frames), await anext(frames)]
    assert [frame.type for frame in seen] == [FrameType.DELETED, FrameType.ADDED]


async def test_bookmarks_come_once_a_minute(autojump_clock: MockClock, server: ApiServer) -> None:
    async with server.client().watch(CONFIG_MAPS, timeout_seconds=190) as frames:
        assert [frame.type async for frame in frames] == [FrameType.BOOKMARK] * 3


SELECTIONS = [
    ("metadata.name=web", "", True),
    ("metadata.name!=web", "", False),
    ("metadata.name=web,metadata.namespace=other", "", False),
    ("", "a", True),
    ("", "!a", False),
    ("", "a==1,b!=1", True),
    ("", "a in (1, 2)", True),
    ("", "a notin (1,2),c!=d", False),
]


@pytest.mark.parametrize(("fields", "labels", "expected"), SELECTIONS)
def test_selectors_select(fields: str, labels: str, expected: bool) -> None:
    data = {"metadata": {"name": "web", "namespace": "default", "labels": {"a": "1", "b": "2"}}}
    assert selector(fields, labels)(data) is expected
