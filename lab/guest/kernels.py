"""The kernel of guests: a program, with the libraries that it needs, and its modules.

User-mode Linux is a Linux kernel that runs as an ordinary process. Debian's package needs a newer
C library than the host may have, so each kernel has a root folder of its own to run in.
"""

import hashlib
import os
import re
import shutil
import sys
from pathlib import Path

from lab import LabError, UnavailableError
from lab.guest.recipe import KERNEL_SUITE, OWN_KERNEL_OPTIONS, Kernel
from lab.packages import Packages
from lab.processes import run

PROGRAM = "linux"
# Where the kernel mounts or finds, in its root folder, what it needs of the host.
FOLDERS = ("dev", "proc", "tmp", "lib64", "image", "guest", "src")
LIBRARIES = ("ld-linux-x86-64.so.2", "libc.so.6")
# The C library loads it, from its own folder, for a kernel that cancels a thread as it ends.
FOR_CANCELLATION = "libgcc_s.so.1"
BUILD_DEADLINE_SECONDS = 2 * 3600
BUILD_PROGRAMS = ("gcc", "make", "bc", "xz")


def put(kernel: Kernel, root: Path, modules: Path, packages: Packages) -> None:
    """Make the root folder of a kernel, and fill `modules`, the folder /usr/lib/modules of guests.

    Blocks on the network; for many minutes where a kernel of our own is built first.
    """
    for name in FOLDERS:
        (root / name).mkdir(parents=True)
    if kernel is Kernel.PACKAGED:
        package = packages.unpacked("user-mode-linux", KERNEL_SUITE)
        shutil.copy(package / "usr/bin/linux.uml", root / PROGRAM)
        shutil.copytree(package / "usr/lib/uml/modules", modules, dirs_exist_ok=True)
        libraries = packages.unpacked("libc6", KERNEL_SUITE) / "usr/lib/x86_64-linux-gnu"
    else:
        shutil.copy(_own(packages), root / PROGRAM)
        libraries = Path("/lib/x86_64-linux-gnu")
        shutil.copy(libraries / FOR_CANCELLATION, root / "lib64")
        (root / "lib").symlink_to("lib64")
    for name in LIBRARIES:
        shutil.copy(libraries / name, root / "lib64")


def _own(packages: Packages) -> Path:
    """Find the kernel of our own in the cache, or build it; by one process at a time."""
    options = OWN_KERNEL_OPTIONS.read_text()
    digest = hashlib.sha256(options.encode()).hexdigest()[:12]
    built = packages.cache / "guest" / f"linux-{digest}"
    if built.exists():
        return built
    missing = [name for name in BUILD_PROGRAMS if shutil.which(name) is None]
    if missing:
        raise UnavailableError(f"a kernel cannot be built without {', '.join(missing)}")
    print("lab: building a kernel: ten minutes or more", file=sys.stderr)
    scratch = built.with_name(f"{built.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    _build(options, scratch, packages)
    (scratch / PROGRAM).rename(built)
    shutil.rmtree(scratch)
    return built


def _build(options: str, scratch: Path, packages: Packages) -> None:
    """Leave the stripped program in `scratch`."""
    version = re.match(r"\d+\.\d+", packages.version("linux-source", KERNEL_SUITE))
    if version is None:
        raise UnavailableError(f"{KERNEL_SUITE} has no source of the kernel")
    sources = packages.unpacked(f"linux-source-{version[0]}", KERNEL_SUITE) / "usr/src"
    archive = next(sources.glob("linux-source-*.tar.*"))
    run(["tar", "-xf", archive, "-C", scratch], deadline_seconds=BUILD_DEADLINE_SECONDS)
    (source,) = (path for path in scratch.iterdir() if path.is_dir())
    environment = _with_generators(packages)
    make = ("nice", "make", "-s", "ARCH=um")

    def made(*words: str) -> None:
        run([*make, *words], cwd=source, env=environment, deadline_seconds=BUILD_DEADLINE_SECONDS)

    made("x86_64_defconfig")
    with (source / ".config").open("a") as config:
        config.write(configuration(options))
    made("olddefconfig")
    made(f"-j{len(os.sched_getaffinity(0))}", "linux")
    strip = ("strip", "-o", scratch / PROGRAM, source / "linux")
    run(strip, deadline_seconds=BUILD_DEADLINE_SECONDS)


def _with_generators(packages: Packages) -> dict[str, str]:
    """An environment in which make finds flex and bison, unpacked where they are not installed."""
    environment = dict(os.environ)
    if shutil.which("flex") and shutil.which("bison"):
        return environment
    roots = [packages.unpacked(name) for name in ("flex", "bison", "m4", "libsigsegv2")]
    path = [str(root / "usr/bin") for root in roots]
    return environment | {
        "PATH": ":".join([*path, environment["PATH"]]),
        "BISON_PKGDATADIR": str(roots[1] / "usr/share/bison"),
        "M4": str(roots[2] / "usr/bin/m4"),
        "LD_LIBRARY_PATH": str(roots[3] / "usr/lib/x86_64-linux-gnu"),
    }


def configuration(options: str) -> str:
    """The kernel's configuration out of words `NAME` and `NAME=value`; lines with # say why."""
    lines = (line for line in options.splitlines() if not line.startswith("#"))
    words = " ".join(lines).split()
    wrong = [word for word in words if not re.fullmatch(r"[A-Z0-9_]+(=\w+)?", word)]
    if wrong:
        raise LabError(f"not a kernel option: {', '.join(wrong)}")
    return "".join(f"CONFIG_{word if '=' in word else f'{word}=y'}\n" for word in words)
