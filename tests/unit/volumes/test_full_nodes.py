"""Volumes that cannot be attached because the node has as many as it can."""

from collections.abc import AsyncIterator

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from lab.csi_driver import NAME, STAGES
from tests.turns import making_test_data
from tests.unit.volumes.csi_scene import ATTACHED, UID, Scene, an_agent, claiming, describe
from trio_kubelet.k8s import (
    VOLUME_ATTACHMENTS,
    AttachedVolume,
    CSIDriverSpec,
    Node,
    NodeStatus,
    ObjectMeta,
    VolumeAttachment,
    VolumeAttachmentStatus,
)
from trio_kubelet.k8s.csi import VolumeAttachmentError
from trio_kubelet.rpc import Code
from trio_kubelet.volumes.csi_records import VolumeKey, attachment_name
from trio_kubelet.volumes.plugin import VolumesNotReady

KEY = VolumeKey(NAME, "h-1")
TOLD = evolve(ATTACHED, node_allocatable_update_period_seconds=600)
"""The cluster wants to be told how many volumes there can be."""


@pytest.fixture
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with trio.open_nursery() as nursery:
        with making_test_data():
            scene = Scene(tmp_path_factory.mktemp("v"), nursery)
        yield scene
        nursery.cancel_scope.cancel()


def attach(scene: Scene, *, code: int | None = None, attached: bool = False) -> None:
    """Do what an external attacher does, which may fail."""
    error = None
    if code is not None:
        error = VolumeAttachmentError(error_code=int(code), message="no room")
    metadata = ObjectMeta(name=attachment_name(KEY, "node"))
    status = VolumeAttachmentStatus(attached=attached, attach_error=error)
    scene.server.create(VOLUME_ATTACHMENTS, VolumeAttachment(metadata=metadata, status=status))


async def test_a_pod_learns_that_the_node_is_full_and_the_driver_is_asked(
    autojump_clock: MockClock, scene: Scene
) -> None:
    describe(scene, TOLD)
    with scene.driver_in_process(capabilities=(STAGES,), max_volumes=3):
        volumes = await an_agent(scene)
        attach(scene, code=Code.RESOURCE_EXHAUSTED)
        with pytest.raises(VolumesNotReady) as raised:
            await volumes.prepare(claiming())
        assert raised.value.is_node_full
        assert str(raised.value) == (
            "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[v], "
            "failed to process volumes=[]: no room"
        )
        await trio.sleep(1)
        assert scene.drivers.nodes()[NAME].max_volumes == 3
        # The next pod finds the volume attached.
        await volumes.tear_down(UID)
        scene.server.delete(VOLUME_ATTACHMENTS, attachment_name(KEY, "node"))
        attach(scene, attached=True)
        attached = (AttachedVolume(name=KEY.unique_name),)
        in_use = (KEY.unique_name,)
        scene.node = Node(status=NodeStatus(volumes_in_use=in_use, volumes_attached=attached))
        await volumes.prepare(claiming())


@pytest.mark.parametrize(
    ("settings", "code"), [(ATTACHED, Code.RESOURCE_EXHAUSTED), (TOLD, Code.INTERNAL)]
)
async def test_a_pod_goes_on_waiting_where_the_node_need_not_be_full(
    autojump_clock: MockClock, scene: Scene, settings: CSIDriverSpec, code: Code
) -> None:
    describe(scene, settings)
    with scene.driver_in_process(capabilities=(STAGES,)):
        volumes = await an_agent(scene)
        attach(scene, code=code)
        with pytest.raises(VolumesNotReady) as raised:
            await volumes.prepare(claiming())
        assert not raised.value.is_node_full
        assert "context deadline exceeded" in str(raised.value)
