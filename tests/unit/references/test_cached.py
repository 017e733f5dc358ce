"""Objects that are asked for when they are needed: the strategies Get and Cache."""

import pytest
import trio
from trio.testing import MockClock

from tests.apiserver.faults import RequestFault
from tests.unit.references.cluster import NAMESPACE, open_cluster
from tests.unit.references.pods import pod_with
from trio_kubelet.references import ObjectError, ObjectNotFoundError
from trio_kubelet.references.kept_bytes import MOST_BYTES_OF_NAMESPACE


async def test_get_asks_each_time(autojump_clock: MockClock) -> None:
    async with open_cluster("Get") as cluster:
        cluster.put_map("settings", a="1")
        cluster.references.register(pod_with("u1", config_map="settings"))
        for value in ("1", "2"):
            cluster.put_map("settings", a=value)
            found = await cluster.references.config_map(NAMESPACE, "settings")
            assert found.data == {"a": value}
        assert (cluster.asked("get"), cluster.asked("list"), cluster.watched()) == (2, 0, 0)


async def test_cache_asks_again_after_a_minute_or_for_another_pod(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster("Cache") as cluster:
        cluster.put_map("settings", a="1")
        cluster.references.register(pod_with("u1", config_map="settings"))
        for _ in range(3):
            await cluster.references.config_map(NAMESPACE, "settings")
        assert cluster.asked("get") == 1
        cluster.references.register(pod_with("u2", config_map="settings"))
        await cluster.references.config_map(NAMESPACE, "settings")
        assert cluster.asked("get") == 2
        await trio.sleep(61)
        await cluster.references.config_map(NAMESPACE, "settings")
        assert cluster.asked("get") == 3


async def test_cache_serves_what_it_has_while_nobody_answers(autojump_clock: MockClock) -> None:
    async with open_cluster("Cache") as cluster:
        cluster.put_map("settings", a="1")
        cluster.references.register(pod_with("u1", config_map="settings"))
        await cluster.references.config_map(NAMESPACE, "settings")
        await trio.sleep(61)
        cluster.server.go_away()
        assert (await cluster.references.config_map(NAMESPACE, "settings")).data == {"a": "1"}


@pytest.mark.parametrize("strategy", ["Get", "Cache"])
async def test_a_missing_object_is_told_in_the_same_words(
    autojump_clock: MockClock, strategy: str
) -> None:
    async with open_cluster(strategy) as cluster:
        cluster.put_map("settings", a="1")
        cluster.references.register(pod_with("u1", config_map="settings"))
        await cluster.references.config_map(NAMESPACE, "settings")
        cluster.delete_map("settings")
        await trio.sleep(61)
        with pytest.raises(ObjectNotFoundError, match=r'^configmap "settings" not found$'):
            await cluster.references.config_map(NAMESPACE, "settings")


@pytest.mark.parametrize("strategy", ["Get", "Cache"])
async def test_an_authorizer_that_lags_is_waited_for_but_not_for_ever(
    autojump_clock: MockClock, strategy: str
) -> None:
    async with open_cluster(strategy) as cluster:
        cluster.put_map("settings", a="1")
        cluster.references.register(pod_with("u1", config_map="settings"))
        cluster.server.faults.add(RequestFault(resource="configmaps", code=403, times=3))
        assert (await cluster.references.config_map(NAMESPACE, "settings")).data == {"a": "1"}
        cluster.references.register(pod_with("u2", config_map="settings", secret="keys"))
        cluster.server.faults.add(
            RequestFault(
                resource="secrets", code=403, reason="Forbidden", message="no relationship"
            )
        )
        began = trio.current_time()
        with pytest.raises(ObjectError, match=r"^no relationship$"):
            await cluster.references.secret(NAMESPACE, "keys")
        assert trio.current_time() - began == pytest.approx(5, abs=0.5)


async def test_questions_for_one_object_are_asked_once(autojump_clock: MockClock) -> None:
    async with open_cluster("Cache") as cluster:
        cluster.put_map("settings", a="1")
        cluster.references.register(pod_with("u1", config_map="settings"))
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(cluster.references.config_map, NAMESPACE, "settings")
        assert cluster.asked("get") == 1


async def test_a_pod_that_comes_while_another_asks_has_an_answer_of_its_own(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster("Cache") as cluster:
        cluster.put_map("settings", a="1")
        cluster.references.register(pod_with("u1", config_map="settings"))
        cluster.server.faults.add(RequestFault(resource="configmaps", seconds=5, times=1))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.references.config_map, NAMESPACE, "settings")
            await trio.sleep(1)
            cluster.references.register(pod_with("u2", config_map="settings"))
            await cluster.references.config_map(NAMESPACE, "settings")
            assert trio.current_time() < 5
            assert cluster.asked("get") == 2
        await cluster.references.config_map(NAMESPACE, "settings")
        assert cluster.asked("get") == 2


async def test_what_no_pod_uses_is_forgotten(autojump_clock: MockClock) -> None:
    async with open_cluster("Cache") as cluster:
        cluster.put_map("settings", a="1")
        cluster.references.register(pod_with("u1", config_map="settings"))
        cluster.references.unregister("u1")
        with pytest.raises(ObjectError, match="not registered"):
            await cluster.references.config_map(NAMESPACE, "settings")


@pytest.mark.parametrize("strategy", ["Get", "Cache"])
async def test_objects_beyond_what_a_namespace_may_keep_are_refused(
    autojump_clock: MockClock, strategy: str
) -> None:
    async with open_cluster(strategy) as cluster:
        for name in ("a", "b", "c"):
            cluster.put_map(name, text="x" * (MOST_BYTES_OF_NAMESPACE // 2))
            cluster.references.register(pod_with(f"u-{name}", config_map=name))
        for name in ("a", "b"):
            await cluster.references.config_map(NAMESPACE, name)
        with pytest.raises(ObjectError, match='configmap "c" cannot be kept at hand'):
            await cluster.references.config_map(NAMESPACE, "c")
        assert cluster.asked("get") == 2
        cluster.references.unregister("u-a")
        await cluster.references.config_map(NAMESPACE, "c")
