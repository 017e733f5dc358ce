"""The example driver of dynamic resource allocation that Kubernetes' own people publish.

Nobody here wrote it, and nothing here knows how it works. It is built from its module with the Go
toolchain, for minutes the first time, and stays in the cache.

    python -m lab.dra_example_driver
"""

import sys
from pathlib import Path

from lab import LabError
from lab.go_programs import GoModule
from lab.packages import default_cache

PROGRAM = "dra-example-kubeletplugin"
MODULE = "sigs.k8s.io/dra-example-driver"
SOURCE = Path(__file__).parents[1] / "tests" / "e2e" / "dradriver" / "go.mod"


def is_built() -> bool:
    """Whether `program` would return at once."""
    return not _module().missing((PROGRAM,))


def program() -> Path:
    """Find it in the cache, or build it.

    UnavailableError without a Go toolchain; LabError if the build fails.
    """
    return _module().folder_with((PROGRAM,))[PROGRAM]


def _module() -> GoModule:
    packages = {PROGRAM: f"{MODULE}/cmd/{PROGRAM}"}
    return GoModule(SOURCE, default_cache() / "dra-example-driver", packages, MODULE)


def main() -> None:
    try:
        print(program())
    except LabError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
