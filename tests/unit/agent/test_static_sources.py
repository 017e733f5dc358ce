"""The watch of a source of static pods that begins anew while the agent runs."""

import os
import threading
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.trio_clock import TrioClock
from tests.unit.sources.manifest_texts import NODE, manifest
from trio_kubelet.agent.live_settings import LiveSettings
from trio_kubelet.agent.static_sources import WatchedSource, watch_files
from trio_kubelet.config import KubeletConfiguration, Settings
from trio_kubelet.k8s import ObjectMeta, Pod
from trio_kubelet.sources import ManifestContext
from trio_kubelet.sources.manifest_source import SendPods
from trio_kubelet.telemetry import Journal

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


async def test_the_pods_of_a_new_folder_are_found_while_the_old_one_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, good = tmp_path / "dead", tmp_path / "good"
    for folder in (dead, good):
        folder.mkdir()
        (folder / "web.yaml").write_text(manifest("web"))
    hangs, may_go_on, list_folder = threading.Event(), threading.Event(), os.listdir

    def list_or_hang(path: Path) -> list[str]:
        if Path(path) == dead:
            hangs.set()
            may_go_on.wait()
        return list_folder(path)

    monkeypatch.setattr(os, "listdir", list_or_hang)
    live, taken, found = LiveSettings(settings(str(dead)), lambda _: ()), Sets(), trio.Event()

    async def take(pods: tuple[Pod, ...]) -> None:
        await trio.lowlevel.checkpoint()
        taken.append(tuple(pod.metadata.name for pod in pods))
        found.set()

    context = ManifestContext(
        node_name=NODE,
        kept_folder=tmp_path / "kept",
        adopt=lambda: lambda _pod, _source: None,
        journal=Journal(TrioClock()),
    )
    watched = WatchedSource(live, partial(watch_files, context), take)
    live.follow(("staticPodPath",), watched.begin_anew)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watched.run)
        await trio.to_thread.run_sync(hangs.wait)
        live.offer(settings(str(good)))
        with trio.move_on_after(60):
            await found.wait()
        may_go_on.set()
        nursery.cancel_scope.cancel()
    assert taken == [(f"web-{NODE}",)]
