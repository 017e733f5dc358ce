"""The CSI driver of gocsi, which nobody here wrote: volumes in memory, without mounts.

The Go toolchain builds it from the modules that are pinned in tests/e2e/csidriver.
"""

from pathlib import Path

from lab.go_programs import GoModule
from lab.packages import default_cache

SOURCE = Path(__file__).parents[1] / "tests" / "e2e" / "csidriver"
MODULE = "github.com/rexray/gocsi"
NAME = "mock.gocsi.rexray.com"
"""Of the driver."""
PROGRAM = "mock"


def gocsi_mock(*, cache: Path | None = None) -> Path:
    """Find the driver in the cache, or build it, for a minute.

    UnavailableError without a Go toolchain; LabError if the build fails.
    """
    folder = (cache or default_cache()) / "csidriver"
    module = GoModule(SOURCE / "go.mod", folder, {PROGRAM: f"{MODULE}/{PROGRAM}"}, MODULE)
    return module.folder_with((PROGRAM,))[PROGRAM]
