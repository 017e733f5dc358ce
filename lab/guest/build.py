"""Builds the image of a node: a root folder of Debian packages, then a file system out of it.

Nothing is installed on the host; what builds is unpacked from packages too. The image is booted
once before it counts: for what systemd does only once, to import the lab's container images, and
because an image that does not boot is none.
"""

import json
import os
import shutil
import sys
from pathlib import Path

from lab import UnavailableError, debian_root, images, root_folder, tools
from lab.guest import kernels
from lab.guest.recipe import (
    DISK_SIZE,
    ENABLED_UNITS,
    FILES,
    HERE,
    MASKED_UNITS,
    MODULES,
    PACKAGES,
    SUITE,
    Kernel,
    Recipe,
    cni_configuration,
)
from lab.packages import Packages
from lab.processes import run


def build(recipe: Recipe, folder: Path, packages: Packages) -> None:
    """Fill `folder`, which is empty, with the disk and the kernel; blocks for minutes.

    LabError if anything fails; then the folder is to be thrown away.
    """
    root = folder / "root"
    _say(f"packages of {SUITE} for the image of a guest: minutes")
    debian_root.make(root, SUITE, PACKAGES, packages)
    kernels.put(recipe.kernel, folder / "kernel", root / "usr/lib/modules", packages)
    _say("requirements of the agent and its tests")
    root_folder.install_requirements(recipe.requirements, root)
    _configure(recipe.kernel, root)
    made = images.all_images(
        tools.busybox(packages), packages.unpacked("catatonit") / "usr/bin/catatonit"
    )
    for number, image in enumerate(made):
        image.write(root / f"var/lib/guest-images/{number}.tar")
    _say("file system")
    disk = folder / "root.ext4"
    options = ("-q", "-t", "ext4", "-E", "lazy_itable_init=1,root_owner=0:0")
    run(
        [_mke2fs(), *options, "-d", root, disk, DISK_SIZE],
        deadline_seconds=root_folder.STEP_DEADLINE_SECONDS,
    )
    shutil.rmtree(root)


def _say(what: str) -> None:
    print(f"lab: {what}", file=sys.stderr)


def _mke2fs() -> str:
    installed = shutil.which("mke2fs", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if installed is None:
        raise UnavailableError("an image cannot be built without mke2fs (package e2fsprogs)")
    return installed


def _configure(kernel: Kernel, root: Path) -> None:
    shutil.copytree(FILES, root, dirs_exist_ok=True)
    commands = root / "usr/local/sbin/guest-commands"
    shutil.copy(HERE / "commands.py", commands)
    units = root / "etc/systemd/system"
    for name in MASKED_UNITS:
        (units / name).unlink(missing_ok=True)
        (units / name).symlink_to("/dev/null")
    for name in ENABLED_UNITS:
        link = units / "multi-user.target.wants" / name
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(f"../{name}")
    for name in ("shared", "src", "mnt/source", "var/lib/source/upper", "var/lib/source/work"):
        (root / name).mkdir(parents=True, exist_ok=True)
    network = root / "etc/cni/net.d/10-guest.conflist"
    network.parent.mkdir(parents=True, exist_ok=True)
    network.write_text(json.dumps(cni_configuration(kernel), indent=2))
    if kernel is Kernel.PACKAGED:
        (root / "etc/modules-load.d/guest.conf").write_text("\n".join(MODULES) + "\n")
    # Each guest is given an identity of its own; with none at all systemd would take its first
    # boot for that of a new system, and enable whatever there is.
    (root / "etc/machine-id").write_text("1".zfill(32) + "\n")
    (root / "etc/hostname").unlink(missing_ok=True)
