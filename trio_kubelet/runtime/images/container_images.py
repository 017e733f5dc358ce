"""The images of a container: the one that it is made of, and those that it mounts as volumes.

An image volume (KEP-4639) is mounted by the runtime; the agent only sees that the image is there,
by the rules for images of containers: policy, pull secrets, back-off, words. A container waits for
those that it mounts, and for no other's.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping

from attrs import frozen

from trio_kubelet.k8s import Container, Pod
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.images.manager import ImageManager
from trio_kubelet.runtime.images.pod_images import PodImages, WantedImage
from trio_kubelet.tasks.concurrency import run_all_for_each

AT_ONCE = 4
"""Images of one container; how many are pulled at a time is decided for all pods."""


@frozen(kw_only=True)
class ContainerImages:
    """The images that are there for a container: its own, and the ids of its image volumes'."""

    own: cri.Image
    volumes: Mapping[str, str]


EnsureImages = Callable[
    [Pod, Container, PodImages, cri.PodSandboxConfig], Awaitable[ContainerImages]
]
"""Returns a container's images, pulled if their policies say so. Raises ImageError."""


@frozen
class ContainerImageManager:
    """Gets the images of containers."""

    _images: ImageManager

    async def ensure(
        self, pod: Pod, container: Container, known: PodImages, sandbox: cri.PodSandboxConfig
    ) -> ContainerImages:
        """Return a container's images, each pulled if its policy says so.

        Raises ImageError, of the volumes before the container's own, when each was tried.
        Cancelled, pulls may still go on in the runtime.
        """
        found: dict[str, cri.Image] = {}

        async def get(wanted: WantedImage) -> None:
            found[wanted.key] = await self._images.ensure(pod, wanted, known, sandbox)

        volumes = dict(_volume_images(pod, container))
        own = WantedImage.of_container(container)
        await run_all_for_each((*volumes.values(), own), get, min(len(volumes) + 1, AT_ONCE))
        return ContainerImages(
            own=found[own.key],
            volumes={volume: found[wanted.key].id for volume, wanted in volumes.items()},
        )


def _volume_images(pod: Pod, container: Container) -> Iterator[tuple[str, WantedImage]]:
    """The image volumes that a container mounts, by name. No container's name has a slash."""
    mounted = {mount.name for mount in container.volume_mounts}
    for volume in pod.spec.volumes:
        if volume.image is not None and volume.name in mounted:
            yield (
                volume.name,
                WantedImage(
                    key=f"{container.name}/{volume.name}",
                    image=volume.image.reference,
                    pull_policy=volume.image.pull_policy,
                ),
            )
