"""Images of kind's nodes in the cache: each built once for its recipe, by one process at a time.

An image appears in the cache by a rename when it is whole. Earlier ones of the same version of
Kubernetes go when another is built.
"""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from lab import control_plane_programs, debian_root, host, images, root_folder
from lab.control_plane_programs import NEWEST
from lab.go_programs import Programs
from lab.kind import node_image, programs
from lab.locks import locked
from lab.packages import Packages
from lab.processes import run

TAR_DEADLINE_SECONDS = 900


@dataclass(frozen=True, slots=True)
class NodeImage:
    """The image as an archive of its root folder, with the version of Kubernetes in it."""

    archive: Path
    version: str

    @property
    def name(self) -> str:
        return f"localhost/lab/kind-node:{self.version}"


def find(minor: str = NEWEST, packages: Packages | None = None) -> NodeImage:
    """Find the image in the cache, or build it, for minutes.

    UnavailableError where it cannot be built; LabError if the build fails.
    """
    packages = packages or Packages()
    found = control_plane_programs.find(minor)
    folder = packages.cache / "kind"
    image = NodeImage(folder / f"node-{found.version}-{_digest(found)}.tar", found.version)
    with locked(folder / "lock-node"):
        if not image.archive.exists():
            for old in folder.glob(f"node-{found.version}-*"):
                old.unlink()
            _make(image.archive, folder / "root", minor, packages)
    return image


def _make(archive: Path, root: Path, minor: str, packages: Packages) -> None:
    shutil.rmtree(root, ignore_errors=True)
    try:
        node_image.build(root, minor, packages)
        partial = archive.with_suffix(".partial")
        tar = ("tar", "--numeric-owner", "-C", root, "-cf", partial, ".")
        run(tar, deadline_seconds=TAR_DEADLINE_SECONDS)
        partial.rename(archive)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _digest(found: Programs) -> str:
    """Name all that goes into the image but the versions of packages."""
    digest = hashlib.sha256("\0".join((str(found.folder), *node_image.requirements())).encode())
    sources = (node_image.__file__, debian_root.__file__, root_folder.__file__, images.__file__)
    for path in (programs.MODULE_FILE, *map(Path, sources)):
        digest.update(path.read_bytes())
    digest.update(bytes([host.can_lower_oom_score_adj()]))
    return digest.hexdigest()[:12]
