"""The images that upstream's specs pull, made of packages and of programs that are built here.

Each name is an image of its own: a label with the name makes the digests differ, since specs look
at names, and a runtime shows two names of one image as either.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from lab import LabError
from lab.go_programs import Programs
from lab.images import File, Image
from lab.pki import Authority
from lab.processes import run
from tests.conformance.programs import AGNHOST, NMETER, NNP

# Specs enter the host's namespace of mounts as that of process 1, whose the kernel hides where that
# process has capabilities that others lack. Who makes the image is in the same namespace. Without
# the host's env busybox would run itself as the shell, and its own applets there.
NSENTER = f"""#!/bin/bash
[ "$1 $2" = "--mount=/rootfs/proc/1/ns/mnt --" ] || exec busybox nsenter "$@"
exec busybox nsenter --mount=/rootfs/proc/{os.getpid()}/ns/mnt /usr/bin/env "${{@:3}}"
"""
# Debian packages out of whose root the images are made.
PACKAGES = (
    *("bash-static", "busybox-static", "catatonit"),
    *("bind9-dnsutils", "curl", "iproute2", "netcat-openbsd"),
)
Files = Mapping[str, File]

PAUSE = "registry.k8s.io/pause"
E2E = "registry.k8s.io/e2e-test-images"
LIBRARY = "docker.io/library"
ACCOUNTS = {
    "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/home:/bin/false\n",
    "etc/group": b"root:x:0:\nnobody:x:65534:\n",
}
FOLDERS = ("dev", "home", "mnt", "proc", "root", "sys", "usr", "var/run")
PAGE = b"<html><head><title>Welcome to nginx!</title></head><body>Welcome to nginx!</body></html>\n"


def all_images(root: Path, programs: Programs) -> tuple[Image, ...]:
    """Make them all; `root` is a root folder with PACKAGES installed.

    LabError if a program of the packages cannot be found.
    """
    shell = _shell(root, programs)
    agnhost = {**_without_applets(shell, "curl", "dig", "ip", "nc"), **_agnhost(root, programs)}
    init = {"pause": _program(root / "usr/bin/catatonit")}
    page = {**shell, "usr/share/nginx/html/index.html": File(0o644, PAGE)}
    serve = ("httpd", "-f", "-p", "80", "-h", "/usr/share/nginx/html")
    nnp = {"nnp": File(0o4755, programs[NNP].read_bytes())}
    names = {**shell, **_with_libraries(root, "/usr/bin/getent")}
    ipc = {**shell, **_with_libraries(root, "/usr/bin/ipcs", "/usr/bin/ipcmk")}
    return (
        *(_image(f"{PAUSE}:{tag}", init, "/pause", "-P") for tag in ("3.10", "3.10.1", "3.10.2")),
        *(
            _image(name, shell, command=("sh",))
            for name in (
                *(f"{E2E}/busybox:{tag}" for tag in ("1.37.0-1", "1.36.1-1")),
                *(f"{LIBRARY}/busybox:{tag}" for tag in ("latest", "1.37")),
            )
        ),
        *(
            _image(f"{E2E}/agnhost:{tag}", agnhost, "/agnhost", command=("pause",))
            for tag in ("2.63.0", "2.55")
        ),
        _image(f"{E2E}/nonroot:1.5", agnhost, "/bin/id", user="1234"),
        *(_image(f"{E2E}/nginx:{tag}", page, command=serve) for tag in ("1.15-4", "1.27-0")),
        _image(f"{E2E}/nonewprivs:1.4", nnp, "/nnp"),
        _image(f"{E2E}/glibc-dns-testing:2.0.0", names, command=("sh",)),
        _image(f"{E2E}/ipc-utils:1.4", ipc, command=("sh",)),
    )


def _image(
    name: str, files: Files, *entrypoint: str, command: tuple[str, ...] = (), user: str = ""
) -> Image:
    return Image(name, (files,), entrypoint, command, user, labels={"name": name})


def _shell(root: Path, programs: Programs) -> dict[str, File]:
    """Make a user land of busybox, in which `sh` is a bash, and `/bin/sh` busybox's own.

    Busybox's drops variables whose names are no identifiers, and specs set such; but what it
    says when it cannot write is what a spec expects.
    """
    busybox = _program(_found(root, "busybox"))
    applets = run([_found(root, "busybox"), "--list-full"]).split()
    names = (path.rpartition("/")[2] for path in applets)
    # Specs name some programs by where upstream's busybox has all of them.
    links = {
        path: File(0o777, target="/bin/busybox")
        for path in (*applets, *(f"bin/{name}" for name in names))
    }
    return {
        **{folder: File(0o755) for folder in FOLDERS},
        **links,
        "tmp": File(0o1777),
        "bin/busybox": busybox,
        "bin/bash": _program(_found(root, "bash-static")),
        "usr/bin/sh": File(0o777, target="/bin/bash"),
        "bin/nmeter": _program(programs[NMETER]),
        **{path: File(0o644, content) for path, content in ACCOUNTS.items()},
    }


def _without_applets(files: Files, *names: str) -> dict[str, File]:
    """Leave out what would be found before a program of the same name in another folder."""
    return {path: file for path, file in files.items() if path.rpartition("/")[2] not in names}


def _agnhost(root: Path, programs: Programs) -> dict[str, File]:
    pair = Authority("lab-conformance").issue("localhost", hosts=("localhost",))
    return {
        "usr/bin/nsenter": File(0o755, NSENTER.encode()),
        # Busybox's shell would run its own applets, such as `nc`, before programs of that name.
        "bin/sh": File(0o777, target="/bin/bash"),
        "agnhost": _program(programs[AGNHOST]),
        "agnhost-2": File(0o777, target="/agnhost"),
        "localhost.crt": File(0o644, pair.certificate),
        "localhost.key": File(0o644, pair.key),
        **_with_libraries(root, "/usr/bin/curl", "/usr/bin/dig", "/bin/ip"),
        **_at("bin/nc", _with_libraries(root, "/bin/nc.openbsd"), "bin/nc.openbsd"),
    }


def _at(path: str, files: Files, former: str) -> dict[str, File]:
    """Move one of the files to another path."""
    return {path if each == former else each: file for each, file in files.items()}


def _with_libraries(root: Path, *paths: str) -> dict[str, File]:
    """Programs of the root folder with the libraries that they load, by path."""
    needed = {path for program in paths for path in (program, *_libraries(root, program))}
    return {path.lstrip("/"): _program(_inside(root, path)) for path in sorted(needed)}


def _libraries(root: Path, program: str) -> Iterator[str]:
    for line in run(["chroot", root, "ldd", program]).splitlines():
        found = re.search(r"(/\S+) \(0x", line)
        if found:
            yield found[1]


def _found(root: Path, name: str) -> Path:
    for folder in ("bin", "usr/bin"):
        if (root / folder / name).exists():
            return root / folder / name
    raise LabError(f"no {name} in {root}")


def _inside(root: Path, path: str) -> Path:
    """The file of the root folder that a path leads to; absolute links count from the root."""
    file = root / path.lstrip("/")
    while file.is_symlink():
        target = file.readlink()
        file = root / str(target).lstrip("/") if target.is_absolute() else file.parent / target
    return file


def _program(path: Path) -> File:
    return File(0o755, path.read_bytes())
