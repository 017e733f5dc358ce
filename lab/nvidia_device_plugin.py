"""NVIDIA's device plugin, and the GPUs of this machine that it would offer.

Nobody here wrote it, and nothing here knows how it works. It is built from its module with the Go
toolchain and a compiler of C, for minutes the first time, and stays in the cache; it asks the
driver's library where there is one.

    python -m lab.nvidia_device_plugin
"""

import re
import shutil
import sys
from pathlib import Path

from lab import LabError
from lab.go_programs import GoModule
from lab.packages import default_cache
from lab.processes import run

PROGRAM = "nvidia-device-plugin"
MODULE = "github.com/NVIDIA/k8s-device-plugin"
SOURCE = Path(__file__).parents[1] / "tests" / "e2e" / "nvidia" / "go.mod"
SHOWN_BY = "nvidia-smi"


def is_built() -> bool:
    """Whether `program` would return at once."""
    return not _module().missing((PROGRAM,))


def program() -> Path:
    """Find it in the cache, or build it.

    UnavailableError without a Go toolchain or a compiler of C; LabError if the build fails.
    """
    return _module().folder_with((PROGRAM,))[PROGRAM]


def gpus() -> tuple[str, ...]:
    """List the ids of this machine's GPUs, none without a driver of NVIDIA's that works."""
    if shutil.which(SHOWN_BY) is None:
        return ()
    try:
        shown = run([SHOWN_BY, "-L"])
    except LabError:
        return ()
    return tuple(re.findall(r"^GPU .*\(UUID: (GPU-\S+)\)$", shown, re.MULTILINE))


def _module() -> GoModule:
    packages = {PROGRAM: f"{MODULE}/cmd/{PROGRAM}"}
    return GoModule(SOURCE, default_cache() / "nvidia", packages, MODULE, uses_c=True)


def main() -> None:
    try:
        print(program())
    except LabError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
