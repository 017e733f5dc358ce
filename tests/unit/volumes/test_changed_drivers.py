"""Drivers that come back with other capabilities: what was staged is undone, and nothing else."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from lab.csi_driver import NAME, STAGES
from state_machines.backoff import BackoffPolicy
from tests.turns import making_test_data
from tests.unit.volumes.csi_scene import Scene, an_agent, calls, claiming, describe, order
from trio_kubelet.rpc import open_rpc_loop
from trio_kubelet.volumes import csi_stages, staged_volumes
from trio_kubelet.volumes.csi_records import RECORD, VolumeKey, stage_place

KEY = VolumeKey(NAME, "h-1")


@pytest.fixture
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with open_rpc_loop(), trio.open_nursery() as nursery:
        with making_test_data():
            scene = Scene(tmp_path_factory.mktemp("v"), nursery)
        yield scene
        nursery.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = BackoffPolicy(initial_seconds=0.01, cap_seconds=0.01)
    monkeypatch.setattr(staged_volumes, "RETRY", quick)


def folder(scene: Scene) -> Path:
    return stage_place(scene.root, KEY).folder


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(20):
        while not condition():
            await trio.testing.wait_all_tasks_blocked(0.01)


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_driver_that_does_not_stage_any_more_is_asked_to_undo_what_it_has_staged(
    scene: Scene, restarts: bool
) -> None:
    describe(scene)
    async with scene.driver(capabilities=(STAGES,)):
        volumes = await an_agent(scene)
        await volumes.prepare(claiming("a"))
    async with scene.driver() as driver:
        if restarts:
            volumes = await an_agent(scene)
        await volumes.prepare(claiming("b"))
        for uid in ("a", "b"):
            await volumes.tear_down(uid)
        await until(lambda: not folder(scene).exists())
        assert driver.staged() == []
        assert order(driver)[-1] == "Unstage"


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_driver_that_has_learned_to_stage_is_not_asked_to_undo_what_it_has_not_staged(
    scene: Scene, restarts: bool
) -> None:
    describe(scene)
    async with scene.driver():
        volumes = await an_agent(scene)
        await volumes.prepare(claiming("a"))
    async with scene.driver(capabilities=(STAGES,)) as driver:
        if restarts:
            volumes = await an_agent(scene)
        await volumes.tear_down("a")
        await until(lambda: not folder(scene).exists())
        assert order(driver) == ["Publish", "Unpublish"]


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_volume_is_staged_for_the_next_pod_when_its_driver_has_learned_to(
    scene: Scene, restarts: bool
) -> None:
    describe(scene)
    async with scene.driver():
        volumes = await an_agent(scene)
        await volumes.prepare(claiming("a"))
    async with scene.driver(capabilities=(STAGES,)) as driver:
        if restarts:
            volumes = await an_agent(scene)
        await volumes.prepare(claiming("b"))
        await volumes.prepare(claiming("c"))
        assert order(driver) == ["Publish", "Stage", "Publish", "Publish"]
        paths = [call["staged"] for call in calls(driver, "NodePublishVolume")]
        assert paths == ["", *[str(stage_place(scene.root, KEY).path)] * 2]
        for uid in ("a", "b", "c"):
            await volumes.tear_down(uid)
        await until(lambda: not folder(scene).exists())
        assert order(driver)[4:] == ["Unpublish"] * 3 + ["Unstage"]


async def test_a_stage_that_its_driver_cannot_undo_any_more_waits_until_it_is_unmounted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted = [True]
    describe(scene)
    async with scene.driver(capabilities=(STAGES,)):
        volumes = await an_agent(scene)
        await volumes.prepare(claiming())
    monkeypatch.setattr(csi_stages, "is_mounted", lambda _: mounted[0])
    async with scene.driver() as driver:
        driver.set_faults(NodeUnstageVolume={"fail": "UNIMPLEMENTED: no"})
        await volumes.tear_down("uid-1")
        await until(lambda: len(calls(driver, "NodeUnstageVolume", "begun")) > 1)
        assert (folder(scene) / RECORD).exists()
        mounted.clear()
        mounted.append(False)
        stage_place(scene.root, KEY).path.rmdir()
        await until(lambda: not folder(scene).exists())


@pytest.mark.parametrize("is_mounted", [False, True])
async def test_of_a_stage_of_the_go_kubelet_the_mount_tells_whether_it_was_staged(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, is_mounted: bool
) -> None:
    monkeypatch.setattr(csi_stages, "is_mounted", lambda _: is_mounted)
    (folder(scene) / "globalmount").mkdir(parents=True)
    told = {"driverName": NAME, "volumeHandle": "h-1"}
    (folder(scene) / RECORD).write_text(json.dumps(told))
    async with scene.driver() as driver:
        await an_agent(scene)
        await until(lambda: not folder(scene).exists())
        assert order(driver) == ["Unstage"] * is_mounted
