"""Programs that the Go toolchain builds from published modules, kept in a cache.

A module file pins what they are built from; programs of ours lie beside it, a folder each. What
was built is kept by a digest of all of them, so that a changed pin is built anew.
"""

import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab import LabError, UnavailableError
from lab.locks import locked
from lab.processes import run

# From nothing on one slow core.
BUILD_DEADLINE_SECONDS = 3600
STAMPED = "k8s.io/component-base/version"
STAMPED_IN_CLIENTS = "k8s.io/client-go/pkg/version"
TEST = ".test"
KUBERNETES = "k8s.io/kubernetes"


@dataclass(frozen=True, slots=True)
class Programs:
    """Program files of one version of Kubernetes, such as `v1.36.3`."""

    version: str
    folder: Path

    def __getitem__(self, name: str) -> Path:
        return self.folder / name


class GoModule:
    """What is built from one module file, and where it is kept.

    `packages` says where the programs are that are no folders beside the module file. A program
    `x.test` is made of the tests of its package. `of` is the module whose version they have. Those
    that call C (`uses_c`) need a compiler of it, and run with the libraries of a system like this.
    """

    def __init__(
        self,
        file: Path,
        cache: Path,
        packages: Mapping[str, str] | None = None,
        of: str = KUBERNETES,
        *,
        uses_c: bool = False,
    ) -> None:
        self.version = pinned_version(file, of)
        self._file = file
        self._cache = cache
        self._packages = dict(packages or {})
        self._uses_c = uses_c
        self._folder = cache / f"{self.version}-{self._digest()}"

    def missing(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """List those that are not in the cache."""
        return tuple(name for name in names if not (self._folder / name).exists())

    def folder_with(self, names: tuple[str, ...]) -> Programs:
        """Build what is missing, each program there whole or not at all; for minutes.

        UnavailableError without a Go toolchain, or the compiler of C that they need; LabError if
        the build fails.
        """
        if self.missing(names):
            with locked(self._cache / "lock"):
                missing = self.missing(names)
                if missing:
                    self._build(missing)
        return Programs(self.version, self._folder)

    def _build(self, names: tuple[str, ...]) -> None:
        go = shutil.which("go")
        if go is None:
            raise UnavailableError(
                f"there is no Go toolchain (`go`) to build {', '.join(names)} {self.version}"
            )
        compiler = os.environ.get("CC") or "gcc"
        if self._uses_c and shutil.which(compiler) is None:
            raise UnavailableError(f"there is no `{compiler}` to build {', '.join(names)} with")
        print(f"lab: building {', '.join(names)} {self.version}: minutes", file=sys.stderr)
        self._folder.mkdir(parents=True, exist_ok=True)
        tests = tuple(name for name in names if name.endswith(TEST))
        mains = tuple(name for name in names if name not in tests)
        with tempfile.TemporaryDirectory(dir=self._cache) as scratch:
            if mains:
                self._go(go, "build", scratch, mains)
            for name in tests:
                # Vetting the sources of others takes minutes, and changes no program.
                self._go(go, "test", scratch, (name,), "-c", "-vet=off")
            for name in names:
                Path(scratch, name).rename(self._folder / name)

    def _go(
        self, go: str, command: str, target: str, names: tuple[str, ...], *options: str
    ) -> None:
        sources = (self._packages.get(name, f"./{name}") for name in names)
        run(
            ["nice", go, command, *options, *self._flags(), "-o", f"{target}/", *sources],
            cwd=self._file.parent,
            env={
                **os.environ,
                "CGO_ENABLED": str(int(self._uses_c)),
                "GOWORK": "off",
                "GOFLAGS": "",
            },
            deadline_seconds=BUILD_DEADLINE_SECONDS,
        )

    def _flags(self) -> tuple[str, ...]:
        major, number = self.version.removeprefix("v").split(".")[:2]
        stamps = {
            f"{STAMPED}.gitVersion": self.version,
            f"{STAMPED}.gitMajor": major,
            f"{STAMPED}.gitMinor": number,
            f"{STAMPED}.gitTreeState": "clean",
            f"{STAMPED_IN_CLIENTS}.gitVersion": self.version,
        }
        linker = " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in stamps.items())])
        return (f"-modfile={self._file}", "-trimpath", "-buildvcs=false", f"-ldflags={linker}")

    def _digest(self) -> str:
        """Name what goes into a build, so that a changed pin or main is built anew."""
        digest = hashlib.sha256()
        mains = sorted(self._file.parent.glob("*/main.go"))
        for path in (self._file, self._file.with_suffix(".sum"), *mains):
            digest.update(path.read_bytes())
        return digest.hexdigest()[:12]


def pinned_version(file: Path, module: str = KUBERNETES) -> str:
    """`v1.36.3` out of a module file."""
    pattern = rf"^(?:require)?\s*{re.escape(module)} (v\S+)$"
    found = re.search(pattern, file.read_text(), re.MULTILINE)
    if found is None:
        raise LabError(f"{file.name} does not pin {module}")
    return found[1]
