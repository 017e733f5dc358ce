"""Block devices on files, and the claim `data` on one, for the tests of this part."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import evolve

from tests.unit.references.cluster import Cluster
from tests.unit.volumes.persistent import claim, persistent
from trio_kubelet.k8s import LocalVolumeSource
from trio_kubelet.k8s.kinds import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES


@contextmanager
def loop_device(image: Path, size_bytes: int = 1 << 20) -> Iterator[str]:
    """A block device on a new file."""
    image.touch()
    with image.open("r+b") as file:
        file.truncate(size_bytes)
    device = put_loop_device_on(image)
    try:
        yield device
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


def put_loop_device_on(file: Path) -> str:
    """Make a block device of a file; returns its path."""
    words = ["losetup", "--find", "--show", str(file)]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def bind_device(
    cluster: Cluster,
    device: str,
    *,
    fs_type: str = "",
    mount_options: tuple[str, ...] = (),
    access: tuple[str, ...] = ("ReadWriteOnce",),
) -> None:
    """Have the claim `data` bound to a device that is to be mounted."""
    uid = cluster.server.create(PERSISTENT_VOLUME_CLAIMS, claim()).metadata.uid
    made = persistent(local=device, bound_to=uid, mount_options=mount_options, access=access)
    spec = evolve(made.spec, local=LocalVolumeSource(path=device, fs_type=fs_type))
    cluster.server.create(PERSISTENT_VOLUMES, evolve(made, spec=spec))
