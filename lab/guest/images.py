"""Images of guests in the cache: each built once for its recipe, by one process at a time.

An image appears in the cache by a rename when it is whole. One that no guest was started from for
two weeks goes when another is built.
"""

import os
import platform
import shutil
import time
from pathlib import Path

from lab import LabError, UnavailableError, host
from lab.guest import build
from lab.guest.guest import Guest
from lab.guest.image import GuestImage
from lab.guest.recipe import Kernel, Recipe
from lab.locks import locked
from lab.packages import Packages

UNUSED_SECONDS = 14 * 24 * 3600


def find(kernel: Kernel = Kernel.PACKAGED, packages: Packages | None = None) -> GuestImage:
    """Find the image for this checkout in the cache, or build it, for minutes.

    UnavailableError where no guest can run; LabError if the build fails.
    """
    obstacles = _obstacles()
    if obstacles:
        raise UnavailableError("; ".join(obstacles))
    packages = packages or Packages()
    recipe = Recipe.of_this_checkout(kernel)
    images = packages.cache / "guest"
    image = GuestImage(images / f"{kernel}-{recipe.digest}")
    if not image.folder.exists():
        with locked(images / f"lock-{kernel}"):
            if not image.folder.exists():
                _remove_unused(images, kernel)
                _make(recipe, image, packages)
    os.utime(image.folder)
    return image


def _obstacles() -> tuple[str, ...]:
    """Why user-mode Linux cannot run here."""
    if platform.machine() != "x86_64":
        return ("user-mode Linux needs an x86-64 processor",)
    return host.obstacles()


def _make(recipe: Recipe, image: GuestImage, packages: Packages) -> None:
    partial = GuestImage(image.folder.with_name(f"{image.folder.name}.partial"))
    shutil.rmtree(partial.folder, ignore_errors=True)
    partial.folder.mkdir()
    try:
        build.build(recipe, partial.folder, packages)
        _boot_once(partial)
        partial.folder.rename(image.folder)
    finally:
        shutil.rmtree(partial.folder, ignore_errors=True)


def _boot_once(image: GuestImage) -> None:
    """Let systemd do on the disk itself what it does only once, and containerd have its images."""
    guest = Guest(image.folder / "guest", image=image, on_image=True)
    with guest:
        failed = guest.run("systemctl", "list-units", "--failed", "--plain", "--no-legend")
        if failed:
            raise LabError(f"the image of a guest is no good: {failed}{guest.last_words()}")
        guest.run(
            "for each in /var/lib/guest-images/*; do ctr -n k8s.io images import $each; done; "
            "rm -r /var/lib/guest-images"
        )
        guest.power_off()
    shutil.rmtree(guest.folder)


def _remove_unused(images: Path, kernel: Kernel) -> None:
    """Remove what a build that was killed has left, and images that nobody uses any longer."""
    for folder in images.glob(f"{kernel}-*"):
        is_old = time.time() - folder.stat().st_mtime > UNUSED_SECONDS
        if is_old or folder.suffix == ".partial":
            shutil.rmtree(folder)
