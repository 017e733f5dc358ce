"""What the API server in memory has of its own; the rest is in test_contract.py."""

import pytest
from trio.testing import MockClock

from tests.apiserver.selectors import selector
from tests.apiserver.server import ApiServer
from trio_kubelet.k8s import ConfigMap, ObjectMeta
from trio_kubelet.k8s.client import FrameType
from trio_kubelet.k8s.kinds import CONFIG_MAPS


@pytest.fixture
def server() -> ApiServer:
    return ApiServer()


def config_map(**metadata: object) -> ConfigMap:
    named: dict[str, object] = {"name": "web", "namespace": "default", **metadata}
    return ConfigMap(metadata=ObjectMeta(**named))  # type: ignore[arg-type]


async def test_names_and_uids_come_from_the_seed() -> None:
    def made(seed: int) -> tuple[str, str]:
        generated = config_map(name="", generate_name="web-")
        metadata = ApiServer(seed=seed).create(CONFIG_MAPS, generated).metadata
        return metadata.name, metadata.uid

    assert made(1) == made(1)
    assert made(1)[1] != made(2)[1]


async def test_bookmarks_come_once_a_minute(autojump_clock: MockClock, server: ApiServer) -> None:
    async with server.client().watch(CONFIG_MAPS, timeout_seconds=190) as frames:
        assert [frame.head.type async for frame in frames] == [FrameType.BOOKMARK] * 3


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
