"""The suite of kubernetes-csi that says whether a CSI driver keeps to CSI.

Nobody here wrote it, and nothing here knows how it works. It is built from its module with the Go
toolchain, for minutes the first time, and stays in the cache.

    python -m lab.csi_suite
"""

import sys
from pathlib import Path

from lab import LabError
from lab.go_programs import GoModule
from lab.packages import default_cache

PROGRAM = "csi-sanity"
MODULE = "github.com/kubernetes-csi/csi-test/v5"
SOURCE = Path(__file__).parents[1] / "tests" / "e2e" / "csidriver" / "csi-test.mod"


def csi_suite() -> Path:
    """Find the program in the cache, or build it.

    UnavailableError without a Go toolchain; LabError if the build fails.
    """
    packages = {PROGRAM: f"{MODULE}/cmd/{PROGRAM}"}
    module = GoModule(SOURCE, default_cache() / "csi-suite", packages, MODULE)
    return module.folder_with((PROGRAM,))[PROGRAM]


def main() -> None:
    try:
        print(csi_suite())
    except LabError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
