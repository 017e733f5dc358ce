"""What is done in a root folder of packages, by the programs that are in it."""

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from lab.processes import run

# A step takes a minute where it has a processor to itself, and a builder may have next to none.
STEP_DEADLINE_SECONDS = 3600
# The environment that docs/joining.md makes.
VIRTUAL_ENVIRONMENT = "/opt/trio-kubelet"
# What pip and resolvers on the host were told about the network.
HOST_FILES = ("/etc/resolv.conf", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
# Variables that name folders of the host: of wheels, and of bytecode, which would be lost.
OF_THE_HOST = ("PIP_FIND_LINKS", "PYTHON")

# Arguments: a root folder, then a command. Its mounts and processes end with it. The root is a
# mount there, as it is on machines; containerd looks for it.
INSIDE = """
mount --bind "$1" "$1"
cd "$1"; shift
mount --rbind /dev dev
mount -t proc proc proc
mount -t tmpfs tmp tmp
exec chroot . "$@"
"""


def install_requirements(requirements: Iterable[str], root: Path) -> None:
    """A virtual environment with the requirements, from where pip gets them on the host too."""
    copied = [Path(name) for name in HOST_FILES if Path(name).exists()]
    for path in copied:
        shutil.copy(path, root / path.relative_to("/"))
    wanted = root / "opt/requirements.txt"
    wanted.write_text("\n".join(requirements))
    pip = f"{VIRTUAL_ENVIRONMENT}/bin/pip"
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(OF_THE_HOST)
    }
    environment["PIP_NO_CACHE_DIR"] = "1"
    run_inside(root, environment, "python3", "-m", "venv", VIRTUAL_ENVIRONMENT)
    run_inside(root, environment, pip, "install", "--quiet", "-r", f"/{wanted.relative_to(root)}")


def run_inside(root: Path, environment: Mapping[str, str], *words: str) -> None:
    """Run a command whose root folder is `root`; LabError if it fails."""
    namespaces = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation=private")
    run(
        [*namespaces, "sh", "-e", "-c", INSIDE, "sh", root, *words],
        env={**environment, "TMPDIR": "/tmp", "HOME": "/root"},
        called=Path(words[0]).name,
        deadline_seconds=STEP_DEADLINE_SECONDS,
    )
