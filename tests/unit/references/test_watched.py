"""Objects by watch: only those that are used, told of when they change, patient with a server."""

from typing import Any

import pytest
import trio
from attrs import evolve
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.apiserver.faults import RequestFault
from tests.unit.references.cluster import NAMESPACE, Cluster, open_cluster
from tests.unit.references.pods import pod_with
from trio_kubelet.k8s import ConfigMap
from trio_kubelet.k8s.client import reflect
from trio_kubelet.k8s.kinds import CONFIG_MAPS
from trio_kubelet.references import ObjectError, ObjectNotFoundError, watched
from trio_kubelet.references.kept_bytes import (
    CHANGED_BYTES_PER_SECOND,
    MOST_BYTES_OF_NAMESPACE,
    KeptBytes,
)


async def data_of(cluster: Cluster, name: str) -> dict[str, str]:
    return dict((await cluster.references.config_map(NAMESPACE, name)).data)


async def test_a_pod_gets_its_object_at_once_and_is_told_of_changes(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        cluster.put_map("settings", a="1")
        cluster.references.register(pod_with("u1", config_map="settings"))
        began = trio.current_time()
        assert await data_of(cluster, "settings") == {"a": "1"}
        assert trio.current_time() - began < 0.1
        await wait_all_tasks_blocked()
        cluster.put_map("settings", a="2")
        changed_at = trio.current_time()
        assert await cluster.told.wait() == ["u1"]
        assert trio.current_time() - changed_at < 1
        assert await data_of(cluster, "settings") == {"a": "2"}


async def test_only_what_pods_use_is_watched_and_no_longer_than_they_do(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        cluster.put_map("settings", a="1")
        cluster.put_map("others", b="2")
        for uid in ("u1", "u2"):
            cluster.references.register(pod_with(uid, config_map="settings", env_map="settings"))
        await data_of(cluster, "settings")
        await wait_all_tasks_blocked()
        assert cluster.watched() == 1
        cluster.references.unregister("u1")
        await wait_all_tasks_blocked()
        assert cluster.watched() == 1
        cluster.references.unregister("u2")
        await wait_all_tasks_blocked()
        assert cluster.watched() == 0
        with pytest.raises(ObjectError, match='object "shop"/"settings" not registered'):
            await data_of(cluster, "settings")


async def test_the_root_certificates_are_followed_for_a_while_after_their_last_pod(
    autojump_clock: MockClock,
) -> None:
    name = "kube-root-ca.crt"
    async with open_cluster() as cluster:
        cluster.put_map(name, ca="1")
        cluster.references.register(pod_with("u1", config_map=name))
        await data_of(cluster, name)
        await wait_all_tasks_blocked()
        cluster.references.unregister("u1")
        await trio.sleep(40)
        cluster.put_map(name, ca="2")
        await wait_all_tasks_blocked()
        cluster.references.register(pod_with("u2", config_map=name))
        asked = cluster.asked("get")
        assert await data_of(cluster, name) == {"ca": "2"}
        assert cluster.asked("get") == asked
        # The time of the first pod is over; a second one uses it.
        await trio.sleep(40)
        assert cluster.watched() == 1
        cluster.references.unregister("u2")
        await trio.sleep(61)
        assert cluster.watched() == 0


async def test_certificates_that_are_gone_or_cannot_change_are_not_followed_on(
    autojump_clock: MockClock,
) -> None:
    name = "kube-root-ca.crt"
    async with open_cluster() as cluster:
        cluster.references.register(pod_with("u1", config_map=name))
        with pytest.raises(ObjectNotFoundError):
            await data_of(cluster, name)
        cluster.references.unregister("u1")
        cluster.put_map(name, immutable=True, ca="1")
        cluster.references.register(pod_with("u2", config_map=name))
        assert await data_of(cluster, name) == {"ca": "1"}
        cluster.references.unregister("u2")
        cluster.delete_map(name)
        cluster.put_map(name, ca="2")
        cluster.references.register(pod_with("u3", config_map=name))
        assert await data_of(cluster, name) == {"ca": "2"}


async def test_a_newer_pod_refers_to_other_things(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        cluster.put_map("one", a="1")
        cluster.put_map("two", b="2")
        pod = pod_with("u1", config_map="one")
        cluster.references.register(pod)
        cluster.references.register(evolve(pod_with("u1", config_map="one", env_map="two")))
        assert await data_of(cluster, "two") == {"b": "2"}
        cluster.references.register(pod_with("u1", env_map="two"))
        with pytest.raises(ObjectError, match="not registered"):
            await data_of(cluster, "one")


async def test_all_pods_that_use_an_object_are_told_and_no_others(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        cluster.put_map("settings", a="1")
        cluster.put_map("other", a="1")
        for uid in ("u1", "u2"):
            cluster.references.register(pod_with(uid, config_map="settings"))
        cluster.references.register(pod_with("u3", config_map="other"))
        await data_of(cluster, "settings")
        await wait_all_tasks_blocked()
        cluster.put_map("settings", a="2")
        assert await cluster.told.wait() == ["u1", "u2"]


async def test_an_object_that_is_missing_is_told_at_once_and_its_pod_when_it_comes(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        cluster.references.register(pod_with("u1", config_map="later", secret="too"))
        began = trio.current_time()
        with pytest.raises(ObjectNotFoundError, match=r'^configmap "later" not found$'):
            await data_of(cluster, "later")
        with pytest.raises(ObjectNotFoundError, match=r'^secret "too" not found$'):
            await cluster.references.secret(NAMESPACE, "too")
        assert trio.current_time() - began < 0.1
        await wait_all_tasks_blocked()
        cluster.put_map("later", a="1")
        assert await cluster.told.wait() == ["u1"]
        assert await data_of(cluster, "later") == {"a": "1"}


async def test_an_object_that_is_deleted_is_missing(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        cluster.put_map("settings", a="1")
        cluster.references.register(pod_with("u1", config_map="settings"))
        await data_of(cluster, "settings")
        await wait_all_tasks_blocked()
        cluster.delete_map("settings")
        assert await cluster.told.wait() == ["u1"]
        with pytest.raises(ObjectNotFoundError):
            await data_of(cluster, "settings")


async def test_an_object_that_is_deleted_before_the_watch_began_is_missing(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        cluster.put_map("settings", a="1")
        for verb in ("list", "watch"):
            cluster.server.faults.add(
                RequestFault(verb=verb, resource="configmaps", seconds=1, times=1)
            )
        cluster.references.register(pod_with("u1", config_map="settings"))
        await data_of(cluster, "settings")
        cluster.delete_map("settings")
        assert await cluster.told.wait() == ["u1"]
        with pytest.raises(ObjectNotFoundError):
            await data_of(cluster, "settings")


async def test_a_change_of_labels_alone_is_no_news(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        cluster.put_map("settings", a="1")
        cluster.references.register(pod_with("u1", config_map="settings"))
        await data_of(cluster, "settings")
        await wait_all_tasks_blocked()
        body = {"metadata": {"labels": {"x": "y"}}}
        cluster.server.patch(CONFIG_MAPS, "settings", NAMESPACE, body=body)
        cluster.put_map("settings", a="2")
        assert await cluster.told.wait() == ["u1"]
        assert cluster.told.uids == []


async def test_an_immutable_object_is_asked_for_once_and_never_watched(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        cluster.put_map("fixed", immutable=True, a="1")
        cluster.references.register(pod_with("u1", config_map="fixed"))
        assert await data_of(cluster, "fixed") == {"a": "1"}
        await wait_all_tasks_blocked()
        assert (cluster.asked("get"), cluster.asked("list"), cluster.watched()) == (1, 0, 0)
        assert await data_of(cluster, "fixed") == {"a": "1"}


async def test_an_object_that_becomes_immutable_is_watched_no_more(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        cluster.put_map("settings", a="1")
        cluster.references.register(pod_with("u1", config_map="settings"))
        await data_of(cluster, "settings")
        await wait_all_tasks_blocked()
        cluster.put_map("settings", immutable=True, a="2")
        assert await cluster.told.wait() == ["u1"]
        await wait_all_tasks_blocked()
        assert cluster.watched() == 0
        assert await data_of(cluster, "settings") == {"a": "2"}


class TestAServerInTrouble:
    async def test_an_authorizer_that_lags_is_waited_for_quietly(
        self, autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
    ) -> None:
        async with open_cluster() as cluster:
            cluster.put_map("settings", a="1")
            cluster.server.faults.add(RequestFault(resource="configmaps", code=403, times=3))
            cluster.references.register(pod_with("u1", config_map="settings"))
            began = trio.current_time()
            assert await data_of(cluster, "settings") == {"a": "1"}
            assert trio.current_time() - began < 0.5
            assert "object fetch failed, will retry" not in capsys.readouterr().out

    async def test_a_refusal_that_lasts_is_told_after_five_seconds_and_then_at_once(
        self, autojump_clock: MockClock
    ) -> None:
        async with open_cluster() as cluster:
            cluster.put_map("settings", a="1")
            refusal = cluster.server.faults.add(RequestFault(resource="configmaps", code=403))
            cluster.references.register(pod_with("u1", config_map="settings"))
            began = trio.current_time()
            words = "failed to sync configmap cache: timed out waiting for the condition"
            with pytest.raises(ObjectError, match=words):
                await data_of(cluster, "settings")
            assert trio.current_time() - began == pytest.approx(5, abs=0.5)
            with pytest.raises(ObjectError, match=words):
                await data_of(cluster, "settings")
            assert trio.current_time() - began == pytest.approx(6, abs=0.5)
            cluster.server.faults.remove(refusal)
            assert await cluster.told.wait() == ["u1"]
            assert await data_of(cluster, "settings") == {"a": "1"}

    async def test_what_is_known_serves_through_an_outage_and_what_changed_is_told_after(
        self, autojump_clock: MockClock
    ) -> None:
        async with open_cluster() as cluster:
            cluster.put_map("settings", a="1")
            cluster.references.register(pod_with("u1", config_map="settings"))
            await data_of(cluster, "settings")
            await wait_all_tasks_blocked()
            cluster.server.go_away()
            await trio.sleep(300)
            assert await data_of(cluster, "settings") == {"a": "1"}
            cluster.put_map("settings", a="2")
            cluster.server.come_back()
            assert await cluster.told.wait() == ["u1"]
            assert await data_of(cluster, "settings") == {"a": "2"}

    async def test_a_pod_that_came_in_an_outage_has_its_object_soon_after(
        self, autojump_clock: MockClock
    ) -> None:
        async with open_cluster() as cluster:
            cluster.put_map("settings", a="1")
            cluster.server.go_away()
            cluster.references.register(pod_with("u1", config_map="settings"))
            with pytest.raises(ObjectError, match="timed out"):
                await data_of(cluster, "settings")
            await trio.sleep(300)
            cluster.server.come_back()
            back_at = trio.current_time()
            cluster.api.recovery.tell()
            assert await cluster.told.wait() == ["u1"]
            assert trio.current_time() == back_at

    async def test_who_gives_up_waiting_leaves_the_others_waiting(
        self, autojump_clock: MockClock
    ) -> None:
        async with open_cluster() as cluster:
            cluster.put_map("settings", a="1")
            cluster.server.faults.add(RequestFault(resource="configmaps", seconds=2, times=1))
            cluster.references.register(pod_with("u1", config_map="settings"))
            with trio.move_on_after(0.5) as impatient:
                await data_of(cluster, "settings")
            assert impatient.cancelled_caught
            assert await data_of(cluster, "settings") == {"a": "1"}


async def test_an_object_that_a_watch_stumbles_over_is_named_and_the_others_go_on(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow = reflect

    async def stumble(*arguments: Any, **facts: Any) -> None:
        if arguments[-1].fields == "metadata.name=bad":
            raise RuntimeError("a bug")
        await follow(*arguments, **facts)

    monkeypatch.setattr(watched, "reflect", stumble)
    with capture_logs() as logs:
        async with open_cluster() as cluster:
            for name in ("bad", "good"):
                cluster.put_map(name, a="1")
                cluster.references.register(pod_with(name, config_map=name))
                assert await data_of(cluster, name) == {"a": "1"}
            await wait_all_tasks_blocked()
            cluster.put_map("good", a="2")
            assert await cluster.told.wait() == ["good"]
    named = [e["object"] for e in logs if e["event"] == "object watch failed, will retry"]
    assert named == [f"{NAMESPACE}/bad"]


async def test_an_object_that_its_pod_stumbles_over_is_followed_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, stumbles = watched.WatchedObjects.store, [True]

    def stumble(self: Any, entry: Any, found: Any) -> None:
        store(self, entry, found)
        if stumbles:
            stumbles.pop()
            raise RuntimeError("a bug")

    monkeypatch.setattr(watched.WatchedObjects, "store", stumble)
    async with open_cluster() as cluster:
        cluster.put_map("settings", a="1")
        cluster.references.register(pod_with("u1", config_map="settings"))
        assert await data_of(cluster, "settings") == {"a": "1"}
        await trio.sleep(5)
        cluster.put_map("settings", a="2")
        assert await cluster.told.wait() == ["u1"]


async def test_of_too_many_objects_the_last_are_asked_for_each_minute(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "MOST_WATCHES_OF_NAMESPACE", 2)
    async with open_cluster() as cluster:
        for name in "abc":
            cluster.put_map(name, x="1")
            cluster.references.register(pod_with(f"u-{name}", config_map=name))
            assert await data_of(cluster, name) == {"x": "1"}
            await wait_all_tasks_blocked()
        assert cluster.watched() == 2
        cluster.put_map("c", x="2")
        assert await cluster.told.wait(120) == ["u-c"]
        assert await data_of(cluster, "c") == {"x": "2"}
        cluster.references.unregister("u-a")
        await trio.sleep(120)
        assert cluster.watched() == 2
        cluster.put_map("c", x="3")
        changed_at = trio.current_time()
        assert await cluster.told.wait() == ["u-c"]
        assert trio.current_time() - changed_at < 1


LARGE = "x" * (MOST_BYTES_OF_NAMESPACE // 2)
"""Two such objects fill the share of a namespace, with what each takes beside its text."""


async def test_objects_beyond_what_a_namespace_may_keep_are_refused(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        for name in ("a", "b", "c"):
            cluster.put_map(name, text=LARGE)
            cluster.references.register(pod_with(f"u-{name}", config_map=name))
            await wait_all_tasks_blocked()
        for name in ("a", "b"):
            assert len((await data_of(cluster, name))["text"]) == len(LARGE)
        with pytest.raises(ObjectError, match=r'configmap "c" cannot be kept .* "shop" refer'):
            await data_of(cluster, "c")
        assert cluster.asked("get") == 2
        cluster.put_map("c", text=LARGE, more="y")
        await trio.sleep(300)
        assert (cluster.asked("get"), cluster.watched()) == (2, 2)


async def test_objects_that_change_too_often_are_asked_for_each_minute(
    autojump_clock: MockClock,
) -> None:
    """A watch itself brings less of one object: it takes several of a namespace."""
    names, rounds = [f"busy-{number}" for number in range(12)], 40
    large = "x" * (CHANGED_BYTES_PER_SECOND // 8)
    async with open_cluster() as cluster:
        for name in (*names, "quiet"):
            cluster.put_map(name, text=large)
            cluster.references.register(pod_with(f"u-{name}", config_map=name))
        await wait_all_tasks_blocked()
        for number in range(rounds):
            for name in names:
                cluster.put_map(name, text=large, number=str(number))
            await trio.sleep(0.5)
        assert 1 < cluster.watched() < len(names)
        late = [(await data_of(cluster, name))["number"] for name in names]
        assert min(map(int, late)) < rounds - 1
        await trio.sleep(91)
        for name in names:
            assert (await data_of(cluster, name))["number"] == str(rounds - 1)
        assert cluster.watched() == len(names) + 1


async def test_objects_that_change_each_second_are_followed(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        cluster.put_map("small", number="")
        cluster.references.register(pod_with("u", config_map="small"))
        await wait_all_tasks_blocked()
        for number in range(3000):
            cluster.put_map("small", number=str(number))
            await trio.sleep(1)
        assert cluster.watched() == 1


async def test_a_refused_object_is_kept_once_there_is_room(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        for name in ("a", "b", "c"):
            cluster.put_map(name, text=LARGE)
            cluster.references.register(pod_with(f"u-{name}", config_map=name))
            await wait_all_tasks_blocked()
        cluster.references.unregister("u-a")
        assert await cluster.told.wait() == ["u-c"]
        assert len((await data_of(cluster, "c"))["text"]) == len(LARGE)
        assert cluster.watched() == 2


async def test_an_object_that_grows_beyond_the_share_is_dropped(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        for name in ("a", "b", "c"):
            cluster.put_map(name, text="")
            cluster.references.register(pod_with(f"u-{name}", config_map=name))
            await wait_all_tasks_blocked()
        for name in ("a", "b", "c"):
            cluster.put_map(name, text=LARGE)
            assert await cluster.told.wait() == [f"u-{name}"]
        with pytest.raises(ObjectError, match="cannot be kept"):
            await data_of(cluster, "c")
        await wait_all_tasks_blocked()
        assert cluster.watched() == 2


def test_a_namespace_without_room_takes_none_from_others() -> None:
    kept = KeptBytes()
    full = ConfigMap(data={"text": LARGE * 3})
    kept.keep(("shop", "a"), full)
    assert not kept.has_room(("shop", "b"))
    assert kept.has_room(("shop", "a"))
    assert kept.has_room(("elsewhere", "a"))
    kept.forget(("shop", "a"))
    assert kept.has_room(("shop", "b"))
