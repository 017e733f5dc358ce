"""Stagings that fail between the volume's record and the driver's call leave nothing."""

import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing

from lab.csi_driver import NAME, STAGES
from state_machines.backoff import BackoffPolicy
from tests.turns import making_test_data
from tests.unit.volumes.csi_scene import UID, Scene, an_agent, claiming, describe, order
from trio_kubelet.rpc import open_rpc_loop
from trio_kubelet.volumes import csi_stages, doubt_marks, staged_volumes
from trio_kubelet.volumes.csi_records import RECORD, VolumeKey, stage_place
from trio_kubelet.volumes.plugin import VolumesNotReady

KEY = VolumeKey(NAME, "h-1")


@pytest.fixture
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with open_rpc_loop(), trio.open_nursery() as nursery:
        with making_test_data():
            scene = Scene(tmp_path_factory.mktemp("v"), nursery)
        yield scene
        nursery.cancel_scope.cancel()


def refuse(path: Path, *_: object, **__: object) -> None:
    """The disk takes nothing more."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


FAILING = [(csi_stages, "make_folders"), (doubt_marks, "write_whole")]


@pytest.mark.parametrize(("module", "step"), FAILING)
async def test_the_record_goes_with_the_pod(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, module: object, step: str
) -> None:
    describe(scene)
    folder = stage_place(scene.root, KEY).folder
    async with scene.driver(capabilities=(STAGES,)) as driver:
        volumes = await an_agent(scene)
        monkeypatch.setattr(module, step, refuse)
        with pytest.raises(VolumesNotReady, match="No space left on device"):
            await volumes.prepare(claiming())
        assert (folder / RECORD).exists()
        await volumes.tear_down(UID)
        with trio.fail_after(20):
            while folder.exists():
                await trio.testing.wait_all_tasks_blocked(0.01)
        assert order(driver) == []


@pytest.mark.parametrize(("module", "step"), FAILING)
async def test_the_volume_is_staged_when_the_disk_has_room_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, module: object, step: str
) -> None:
    quick = BackoffPolicy(initial_seconds=0.01, cap_seconds=0.01)
    monkeypatch.setattr(staged_volumes, "RETRY", quick)
    describe(scene)
    async with scene.driver(capabilities=(STAGES,)) as driver:
        volumes = await an_agent(scene)
        ready = trio.Event()
        scene.staged.on_ready.add(lambda _: ready.set())
        with monkeypatch.context() as full_disk:
            full_disk.setattr(module, step, refuse)
            with pytest.raises(VolumesNotReady, match="No space left on device"):
                await volumes.prepare(claiming())
        with trio.fail_after(20):
            await ready.wait()
        await volumes.prepare(claiming())
        assert order(driver) == ["Stage", "Publish"]


async def test_a_record_that_cannot_be_removed_is_tried_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = BackoffPolicy(initial_seconds=0.01, cap_seconds=0.01)
    describe(scene)
    folder = stage_place(scene.root, KEY).folder
    tried = trio.Event()

    def fail(_: object) -> None:
        trio.from_thread.run_sync(tried.set)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async with scene.driver(capabilities=(STAGES,)):
        volumes = await an_agent(scene)
        monkeypatch.setattr(csi_stages, "make_folders", refuse)
        with pytest.raises(VolumesNotReady):
            await volumes.prepare(claiming())
        monkeypatch.setattr(staged_volumes, "RETRY", quick)
        with monkeypatch.context() as broken_disk:
            broken_disk.setattr(csi_stages, "discard_stage", fail)
            await volumes.tear_down(UID)
            with trio.fail_after(20):
                await tried.wait()
        with trio.fail_after(20):
            while folder.exists():
                await trio.testing.wait_all_tasks_blocked(0.01)
