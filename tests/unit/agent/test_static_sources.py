"""The watch of a source of static pods that begins anew while the agent runs."""

import trio
from trio.testing import wait_all_tasks_blocked

from trio_kubelet.agent.live_settings import LiveSettings
from trio_kubelet.agent.static_sources import WatchedSource
from trio_kubelet.config import KubeletConfiguration, Settings
from trio_kubelet.k8s import ObjectMeta, Pod
from trio_kubelet.sources.manifest_source import SendPods

Sets = list[tuple[str, ...]]


def settings(path: str) -> Settings:
    return Settings(configuration=KubeletConfiguration(static_pod_path=path))


async def watch(configuration: KubeletConfiguration, send: SendPods) -> None:
    """A folder with one pod of its name."""
    if configuration.static_pod_path:
        await send((Pod(metadata=ObjectMeta(name=configuration.static_pod_path)),))
        await trio.sleep_forever()


async def test_a_set_that_is_being_handed_on_is_so_before_the_next_one() -> None:
    live, taken, may_go_on = LiveSettings(settings("old"), lambda _: ()), Sets(), trio.Event()

    async def take(pods: tuple[Pod, ...]) -> None:
        await may_go_on.wait()
        taken.append(tuple(pod.metadata.name for pod in pods))

    watched = WatchedSource(live, watch, take)
    live.follow(("staticPodPath",), watched.begin_anew)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watched.run)
        await wait_all_tasks_blocked()
        live.offer(settings("new"))
        await wait_all_tasks_blocked()
        assert not taken
        may_go_on.set()
        await wait_all_tasks_blocked()
        assert taken == [("old",), ("new",)]
        live.offer(settings(""))
        await wait_all_tasks_blocked()
        assert taken[2:] == [()]
        nursery.cancel_scope.cancel()


async def test_a_source_that_is_not_named_speaks_all_the_same() -> None:
    taken = Sets()

    async def take(pods: tuple[Pod, ...]) -> None:
        taken.append(tuple(pod.metadata.name for pod in pods))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(WatchedSource(LiveSettings(settings(""), lambda _: ()), watch, take).run)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert taken == [()]
