"""A container waits for the images that it mounts as volumes, and for no other's."""

import pytest

from tests.unit.runtime.image_nodes import SANDBOX, node
from trio_kubelet.k8s import (
    Container,
    ImageVolumeSource,
    ObjectMeta,
    Pod,
    PodSpec,
    Volume,
    VolumeMount,
)
from trio_kubelet.runtime.images.container_images import ContainerImageManager
from trio_kubelet.runtime.images.manager import ImageError


def container(*volumes: str) -> Container:
    mounts = tuple(VolumeMount(name=each, mount_path=f"/{each}") for each in volumes)
    return Container(name="c", image="busybox:1", volume_mounts=mounts)


def pod(**volumes: ImageVolumeSource) -> Pod:
    return Pod(
        metadata=ObjectMeta(name="p", namespace="ns", uid="u"),
        spec=PodSpec(
            volumes=tuple(Volume(name=name, image=each) for name, each in volumes.items())
        ),
    )


async def test_images_of_volumes_are_pulled_beside_the_containers_own() -> None:
    async with node() as at:
        images = ContainerImageManager(at.images)
        wanted = pod(tools=ImageVolumeSource(reference="tools:1"))
        found = await images.ensure(wanted, container("tools"), at.known, SANDBOX)
        image = at.runtime.images.resolve("tools:1")
        assert image is not None
        assert found.volumes == {"tools": image.id}
        assert found.own.id != image.id
        assert 'Pulling: Pulling image "tools:1"' in at.said()


async def test_a_volume_that_a_container_does_not_mount_is_not_pulled() -> None:
    async with node() as at:
        images = ContainerImageManager(at.images)
        wanted = pod(tools=ImageVolumeSource(reference="tools:1"))
        assert (await images.ensure(wanted, container(), at.known, SANDBOX)).volumes == {}
        assert at.runtime.images.resolve("tools:1") is None


async def test_a_volume_without_its_image_keeps_the_container_waiting_with_its_reason() -> None:
    async with node() as at:
        images = ContainerImageManager(at.images)
        wanted = pod(tools=ImageVolumeSource(reference="tools:1", pull_policy="Never"))
        with pytest.raises(ImageError, match='"tools:1" is not present') as caught:
            await images.ensure(wanted, container("tools"), at.known, SANDBOX)
        assert caught.value.reason == "ErrImageNeverPull"
        assert at.runtime.images.resolve("busybox:1") is not None
