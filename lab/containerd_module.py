"""containerd as its own people publish it, of a version that distributions do not have yet.

It is built from its module with the Go toolchain, for minutes the first time, and stays in the
cache.

    python -m lab.containerd_module
"""

import sys
from pathlib import Path

from lab import LabError
from lab.go_programs import GoModule
from lab.packages import default_cache

PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr")
MODULE = "github.com/containerd/containerd/v2"
SOURCE = Path(__file__).parents[1] / "tests" / "integration" / "containerd" / "go.mod"


def version() -> str:
    """The version that `program` is, such as `2.4.2`."""
    return _module().version.removeprefix("v")


def program() -> Path:
    """Find containerd in the cache, with its shim and ctr beside it, or build all of them.

    UnavailableError without a Go toolchain; LabError if the build fails.
    """
    return _module().folder_with(PROGRAMS)[PROGRAMS[0]]


def _module() -> GoModule:
    packages = {name: f"{MODULE}/cmd/{name}" for name in PROGRAMS}
    return GoModule(SOURCE, default_cache() / "containerd", packages, MODULE)


def main() -> None:
    try:
        print(program())
    except LabError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
