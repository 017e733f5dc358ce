"""image: the content of an image as a volume (KEP-4639). The runtime mounts it.

The image is pulled when a container is made that mounts the volume
(`runtime/images/container_images.py`); nothing of it is in the pod's folder.
"""

from pathlib import Path

from attrs import frozen

from trio_kubelet.k8s import ImageVolumeSource, Pod
from trio_kubelet.tasks.fair_limiter import Share
from trio_kubelet.volumes.plugin import MountedVolume
from trio_kubelet.volumes.resolved import ResolvedVolume


@frozen
class ImageVolume:
    """The plugin for `volumes[].image`."""

    name = "kubernetes.io/image"

    async def set_up(self, _pod: Pod, volume: ResolvedVolume) -> MountedVolume:
        """Name the image."""
        return MountedVolume(
            name=volume.name,
            image=volume.source_as(ImageVolumeSource).reference,
            read_only=True,
            selinux_relabel=True,
        )

    async def tear_down(self, _pod_uid: str, _folder: Path, _threads: Share) -> None:
        """Do nothing: the mount goes with its container."""
