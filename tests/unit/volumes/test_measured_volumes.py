"""Volumes whose drivers are asked for their space: those that are published, until they are not."""

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock

from lab.csi_driver import MEASURES, STAGES, LabDriver
from tests.turns import making_test_data
from tests.unit.volumes.csi_scene import EPHEMERAL, UID, Scene, calls, claiming, describe
from trio_kubelet.volumes import csi_volume


@pytest.fixture
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with trio.open_nursery() as nursery:
        with making_test_data():
            scene = Scene(tmp_path_factory.mktemp("v"), nursery)
        yield scene
        nursery.cancel_scope.cancel()


def told(scene: Scene) -> list[tuple[str, str, str]]:
    """Pod, name and claim of each volume that has figures."""
    measured = [each.volume for each in scene.usages.measured()]
    return [(each.pod_uid, each.name, each.claim) for each in measured]


def last_question(driver: LabDriver) -> tuple[str, str]:
    call = calls(driver, "NodeGetVolumeStats")[-1]
    return call["target"], call["staged"]


async def test_a_claimed_volume_is_measured_where_it_is_mounted_until_its_pod_goes(
    autojump_clock: MockClock, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csi_volume, "is_mounted", lambda _: True)
    describe(scene)
    scene.nursery.start_soon(scene.usages.run)
    with scene.driver_in_process(capabilities=(STAGES, MEASURES)) as driver:
        volumes = scene.agent()
        await scene.nursery.start(scene.staged.run)
        await scene.nursery.start(scene.stages.run)
        for uid in ("a", "b"):
            await volumes.prepare(claiming(uid))
        await trio.sleep(61)
        assert told(scene) == [("a", "v", "data"), ("b", "v", "data")]
        (stage,) = calls(driver, "NodeStageVolume")
        target = str(scene.root / "pods/b/volumes/kubernetes.io~csi/pv/mount")
        assert last_question(driver) == (target, stage["target"])
        await volumes.tear_down("a")
        assert told(scene) == [("b", "v", "data")]
        # Another agent asks for what the pods still have.
        scene.usages.unpublished("b")
        await scene.agent().prepare(claiming("b"))
        await trio.sleep(60)
        assert len(calls(driver, "NodePublishVolume")) == 2
        assert told(scene) == [("b", "v", "data")]


async def test_a_volume_that_is_made_for_a_pod_is_measured_and_no_claim(
    autojump_clock: MockClock, scene: Scene
) -> None:
    scene.describe(EPHEMERAL)
    scene.nursery.start_soon(scene.usages.run)
    with scene.driver_in_process(capabilities=(MEASURES,)) as driver:
        volumes = scene.agent()
        await volumes.prepare(scene.pod)
        await trio.sleep(61)
        assert told(scene) == [(UID, "v", "")]
        assert last_question(driver) == (scene.target, "")
        await volumes.tear_down(UID)
        assert told(scene) == []
