"""kind itself, and the files of its base image: both of the Go module that `go/go.mod` pins."""

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from lab import UnavailableError
from lab.locks import locked
from lab.packages import default_cache
from lab.processes import run

MODULE_FILE = Path(__file__).parent / "go" / "go.mod"
MODULE = "sigs.k8s.io/kind"
BASE_FILES = "images/base/files"
BUILD_DEADLINE_SECONDS = 1800


@dataclass(frozen=True, slots=True)
class Kind:
    """The program, and the folder of the files that its recipe copies into a node's root."""

    program: Path
    base_files: Path


def find(cache: Path | None = None) -> Kind:
    """Find kind in the cache, or build it, for a minute.

    UnavailableError without a Go toolchain; LabError if the build fails.
    """
    go = shutil.which("go")
    if go is None:
        raise UnavailableError("there is no Go toolchain (`go`) to build kind")
    folder = (cache or default_cache()) / "kind"
    program = folder / _digest() / "kind"
    with locked(folder / "lock"):
        if not program.exists():
            program.parent.mkdir(exist_ok=True)
            partial = program.with_suffix(".partial")
            _go(go, "build", "-trimpath", "-buildvcs=false", "-o", str(partial), MODULE)
            partial.rename(program)
    _go(go, "mod", "download", MODULE)
    module = Path(_go(go, "list", "-m", "-f", "{{.Dir}}", MODULE).strip())
    return Kind(program, module / BASE_FILES)


def _go(go: str, *words: str) -> str:
    return run(
        ["nice", go, *words],
        cwd=MODULE_FILE.parent,
        env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": ""},
        called=f"go {words[0]}",
        deadline_seconds=BUILD_DEADLINE_SECONDS,
    )


def _digest() -> str:
    digest = hashlib.sha256()
    for path in (MODULE_FILE, MODULE_FILE.with_suffix(".sum")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
